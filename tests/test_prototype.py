"""Reading C prototypes, and binding their parameters by name."""

import ctypes
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opgraft.errors import PrototypeError
from opgraft.native import callables, core, prototype, roles, source

MATMUL = (
    "void custom_matmul(const float *a, const float *b, int batch_size, int in_size, "
    "int out_size, float *out)"
)
CONV2D = (
    "void custom_conv2d(const float *inputs, const float *filters, int batch, int h, int w, "
    "int in_ch, int filter_h, int filter_w, int out_ch, int stride_h, int stride_w, "
    "const char *padding, float *out);"
)
SHORT = "void mm(const float *a, const float *b, int m, int k, int n, float *out)"
SHORT_PLAN = "void input:f32* kernel:f32* m:i32 k:i32 n:i32 output:f32*"


def bind(text, given_roles=None):
    """The one function that is declared in the text, bound."""
    (declared,) = prototype.parse(text)
    return prototype.bind(declared, given_roles)


def refusal(text, given_roles=None):
    """The words by which a prototype is refused."""
    with pytest.raises(PrototypeError) as caught:
        bind(text, given_roles)
    return str(caught.value)


def swapped(old, new, text=SHORT):
    assert old in text
    return text.replace(old, new)


# ---- what binds ----------------------------------------------------------------------


def test_the_two_usual_signatures_bind_as_they_stand():
    matmul, conv2d = bind(MATMUL), bind(CONV2D)
    assert (matmul.kind, matmul.plan) == ("matmul", SHORT_PLAN)
    assert conv2d.kind == "conv2d"
    assert conv2d.plan == (
        "void input:f32* kernel:f32* batch:i32 in_h:i32 in_w:i32 in_ch:i32 filter_h:i32 "
        "filter_w:i32 out_ch:i32 stride_h:i32 stride_w:i32 padding:text output:f32*"
    )
    assert (matmul.prototype.symbol, conv2d.prototype.symbol) == ("custom_matmul", "custom_conv2d")


def tables():
    yield from (("matmul", roles.POINTERS, role) for role in roles.POINTERS)
    yield from (("matmul", roles.MATMUL, role) for role in roles.MATMUL)
    yield from (("conv2d", roles.POINTERS, role) for role in roles.POINTERS)
    yield from (("conv2d", roles.CONV2D, role) for role in roles.CONV2D)
    yield ("conv2d", roles.TEXTS, "padding")


# Parameter names that nothing else is called, so that every alias can stand beside them.
PLAIN = {
    "matmul": {"input": "const float *lhs", "kernel": "const float *rhs", "output": "float *dst",
               "m": "int rows", "k": "int depth", "n": "int units"},
    "conv2d": {"input": "const float *lhs", "kernel": "const float *rhs", "output": "float *dst",
               "in_h": "int in_height", "in_w": "int in_width", "in_ch": "int cin",
               "filter_h": "int kernel_height", "filter_w": "int kernel_width",
               "out_ch": "int cout"},
}  # fmt: skip


@pytest.mark.parametrize(("kind", "table", "role"), tables())
def test_every_alias_of_every_role_binds(kind, table, role):
    for alias in (role, role.upper(), *table[role].split()):
        ctype = "const char *" if table is roles.TEXTS else "int "
        if table is roles.POINTERS:
            ctype = "float *" if role == "output" else "const float *"
        parameters = {**PLAIN[kind], role: ctype + alias}
        bound = bind(f"void f({', '.join(parameters.values())})")
        assert bound.kind == kind
        bound_roles = [word.split(":")[0] for word in bound.plan.split()[1:]]
        assert bound_roles == list(parameters), alias


@pytest.mark.parametrize(
    "table",
    [roles.POINTERS | roles.VJP_POINTERS, roles.TEXTS, roles.MATMUL, roles.CONV2D],
)
def test_no_alias_stands_for_two_roles(table):
    aliases = [alias for names in table.values() for alias in names.split()]
    assert len(aliases) == len(set(aliases))
    assert all(role in names.split() for role, names in table.items())
    assert all(alias == alias.lower() and alias.isidentifier() for alias in aliases)


def test_the_roles_are_those_of_the_core():
    known = {
        *roles.POINTERS, *roles.VJP_POINTERS, *roles.TEXTS, *roles.MATMUL, *roles.CONV2D,
    }  # fmt: skip
    assert known == set(core.roles())


@pytest.mark.parametrize("order", itertools.islice(itertools.permutations(range(6)), 0, None, 37))
def test_parameters_bind_in_any_order(order):
    declared = ["const float *a", "const float *b", "int m", "int k", "int n", "float *out"]
    words = SHORT_PLAN.split()[1:]
    bound = bind(f"void mm({', '.join(declared[i] for i in order)})")
    assert bound.plan.split() == ["void", *(words[i] for i in order)]


@pytest.mark.parametrize(
    "text",
    [
        "void mm(const float a[], const float b[static 4], int m, int k, int n, float out[])",
        "void mm(const float a[8], const float b[4 * 2], int m, int k, int n, float out[restrict])",
        "void mm(float const *a, float const *b, const int m, int k, int n, float *const out)",
        "void mm(const float *restrict a, const float *__restrict b, int m, int k, int n, "
        "float *__restrict__ out)",
        "void mm(float *a, float *b, int m, int k, int n, float *out)",
        "void (mm)(const float (*a), const float *b, signed m, signed int k, int n, float *out);",
        "static inline " + SHORT,
        "extern " + SHORT + ";",
        'extern "C" ' + SHORT,
        'extern "C" {\n' + SHORT + ";\n}",
        "__attribute__((noinline)) " + SHORT,
        '__attribute__((visibility("default"))) ' + SHORT,
        SHORT + " __attribute__((aligned(16), hot));",
        "__inline__ " + SHORT,
        SHORT + " {\n  out[0] = a[0] * b[0];\n}",
        "/* before */ void mm(const float *a, // the left one, int x\n const float *b,\n\n"
        "  int m, int /* rows */ k,\n\tint n, float *out) /* after; */ ;",
        "#include <stdint.h>\n#ifndef GUARD\n" + SHORT + ";\n#endif\n",
        "  \r\n" + SHORT.replace(", ", ",\r\n    "),
    ],
)
def test_spellings_of_one_prototype(text):
    bound = bind(text)
    assert (bound.kind, bound.plan, bound.prototype.symbol) == ("matmul", SHORT_PLAN, "mm")


def orders(words):
    return {" ".join(order) for order in itertools.permutations(words.split())}


# C lets the words of a type stand in any order.
NUMBERS = {
    "i16": orders("short") | orders("short int") | orders("signed short") | {"int16_t"}
    | orders("signed short int"),
    "u16": orders("unsigned short") | orders("unsigned short int") | {"uint16_t"},
    "i32": orders("int") | orders("signed") | orders("signed int") | {"int32_t"},
    "u32": orders("unsigned") | orders("unsigned int") | {"uint32_t"},
    "i64": orders("long") | orders("long int") | orders("long long") | orders("signed long")
    | orders("long long int") | orders("signed long long int")
    | {"int64_t", "ssize_t", "ptrdiff_t", "intptr_t"},
    "u64": orders("unsigned long") | orders("unsigned long int") | orders("unsigned long long")
    | orders("unsigned long long int") | {"uint64_t", "size_t", "uintptr_t"},
}  # fmt: skip
ELEMENTS = {
    **NUMBERS,
    "f32": {"float"},
    "f64": {"double"},
    "i8": {"int8_t"} | orders("signed char"),
    "u8": {"uint8_t", "bool", "_Bool"} | orders("unsigned char"),
}


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_spelling_of_a_number(dtype):
    for spelling in sorted(NUMBERS[dtype]):
        bound = bind(swapped("int k", f"{spelling} k"))
        assert f" k:{dtype} " in bound.plan, spelling


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_every_spelling_of_an_element_type(dtype):
    for spelling in sorted(ELEMENTS[dtype]):
        text = SHORT.replace("float", spelling)
        assert bind(text).plan == SHORT_PLAN.replace("f32", dtype), spelling


def test_operands_and_result_may_differ_in_type():
    text = "int f(const uint8_t *a, const uint8_t *b, size_t m, long k, short n, int32_t *out)"
    assert bind(text).plan == "i32 input:u8* kernel:u8* m:u64 k:i64 n:i16 output:i32*"


def test_several_prototypes_in_one_text():
    text = f"/* both */ {MATMUL};\n\n#define X 1\n{CONV2D}\nfloat mul(float x, float y);"
    found = prototype.parse(text)
    assert [entry.symbol for entry in found] == ["custom_matmul", "custom_conv2d", "mul"]
    assert [prototype.bind(entry).kind for entry in found] == ["matmul", "conv2d", "scalar"]
    assert "custom_conv2d" not in found[0].text
    assert "custom_matmul" not in found[1].text


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("float mul(float x, float y)", "f32 input:f32 kernel:f32"),
        ("float mul(float, float)", "f32 input:f32 kernel:f32"),
        ("double mul(const double a, double b);", "f64 input:f64 kernel:f64"),
        ("uint16_t mul8u(uint8_t, uint8_t)", "u16 input:u8 kernel:u8"),
        ("int mul(int8_t w, int8_t x)", "i32 input:i8 kernel:i8"),
        ("unsigned long long mul(uint32_t q, uint32_t r)", "u64 input:u32 kernel:u32"),
    ],
)
def test_scalar_products(text, plan):
    bound = bind(text)
    assert (bound.kind, bound.plan) == ("scalar", plan)


def test_an_error_code_is_an_int_of_32_bits():
    for returns in ("int", "int32_t", "signed"):
        assert bind(swapped("void", returns)).plan.startswith("i32 ")


# ---- roles given by the user ---------------------------------------------------------


def test_roles_as_a_mapping_name_what_is_not_standard():
    text = "void f(const float *foo, const float *bar, int q, int k, int n, float *zz)"
    given_roles = {"foo": "kernel", "bar": "activations", "q": "rows", "zz": "output"}
    assert bind(text, given_roles).plan == (
        "void kernel:f32* input:f32* m:i32 k:i32 n:i32 output:f32*"
    )


def test_roles_as_a_mapping_override_standard_names():
    assert bind(SHORT, {"a": "kernel", "b": "input", "m": "n", "n": "m"}).plan == (
        "void kernel:f32* input:f32* n:i32 k:i32 m:i32 output:f32*"
    )


@pytest.mark.parametrize("kind", [list, tuple])
def test_roles_as_a_sequence_give_all_in_order(kind):
    text = "void f(float *p, const float *q, const float *r, int s, int t, int u)"
    given_roles = kind(["output", "kernel", "input", "n", "k", "m"])
    assert bind(text, given_roles).plan == (
        "void output:f32* kernel:f32* input:f32* n:i32 k:i32 m:i32"
    )


@pytest.mark.parametrize(
    ("given_roles", "words"),
    [
        ({"mm": "m"}, "roles names 'mm', but mm has no such parameter"),
        ({"mm": "m"}, "it has: a, b, m, k, n, out"),
        ({"oot": "output"}, "did you mean 'out'"),
        ({"a": "nonsense"}, "role 'nonsense' of parameter 'a' (`const float *`) is not known"),
        ({"a": "output"}, "'a' and 'out' are both bound to output"),
        ({"m": "input"}, "role 'input' of parameter 'm'"),
        ({"m": "k"}, "'m' and 'k' are both bound to k"),
        (["input", "kernel"], "roles has 2 names, mm has 6 parameters"),
        ({"a": 3}, "3"),
        (["input", "kernel", "m", "k", 7, "output"], "7"),
        (5, "roles"),
        ("abcdef", "roles"),
    ],
)
def test_wrong_roles_are_refused(given_roles, words):
    assert words in refusal(SHORT, given_roles)


# ---- refusals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("void mm(const float *a, int", "does not parse"),
        ("hello", "does not parse"),
        ("", "no function declaration"),
        ("int x;", "no function declaration"),
        ("void (*f)(float *a);", "no function declaration"),
        (swapped("int m", "int m, int zoom"), "parameter 'zoom' (`int`) is not known"),
        (swapped("int m", "int m, float *mask"), "parameter 'mask' (`float *`) is not known"),
        (swapped("int m", "int *m"), "parameter 'm' (`int *`)"),
        (swapped("const float *a", "float a"), "parameter 'a' (`float`)"),
        (swapped("int m", "int m, int rows"), "'m' and 'rows' are both bound to m"),
        (swapped("float *out", "float *out, float *y"), "'out' and 'y' are both bound to output"),
        (swapped("int k, ", ""), "no parameter gives k (names: k, in_size,"),
        (swapped("const float *b, ", ""), "no parameter gives kernel (names: kernel"),
        (swapped(", float *out", ""), "no parameter gives output"),
        (swapped("float *out", "const float *out"), "takes its output as `const float *`"),
        (swapped("void", "long"), "returns `long`; it must return void, or int"),
        (swapped("void", "unsigned"), "returns `unsigned int`; it must return void, or int"),
        (swapped("void", "float *"), "returns `float *`; it must return void, or int"),
        (swapped("void", "float"), "returns `float`; it must return void, or int"),
        (swapped("float *b", "double *b"), "`const float *` as input and `const double *` as"),
        (swapped("const float *a", "const void *a"), "parameter 'a' of mm has the type"),
        (swapped("const float *a", "const float **a"), "`const float **`, which cannot"),
        (swapped("const float *a", "const float a[4][4]"), "cannot be passed"),
        (swapped("const float *a", "struct tensor *a"), "struct"),
        (swapped("const float *a", "long double *a"), "long double"),
        (swapped("const float *a", "float _Complex *a"), "_Complex"),
        (swapped("const float *a", "real_t *a"), "real_t"),
        (swapped("int m", "int (*m)(int)"), "parameter 'm' of mm is a pointer to a function"),
        (swapped("float *out", "float *out, ..."), "mm is variadic (...)"),
        (swapped("const float *a", "const float *"), "parameter 1 of mm has no name"),
        ("void mm(void)", "no parameter gives input"),
        ("int mm(a, b);", "mm"),
        ("float mul(float x, double y)", "multiplies `float` by `double`"),
        ("void mul(float x, float y)", "returns `void`; a scalar product returns a number"),
        ("float *mul(float x, float y)", "returns `float *`; a scalar product returns a number"),
        ("void *mul(float x, float y)", "return value of mul has the type `void *`"),
    ],
)
def test_what_cannot_be_bound_is_refused_in_words(text, words):
    assert words in refusal(text)


def test_an_unknown_type_lists_the_known_ones():
    for spelling in ("half", "struct tensor", "void", "myfloat"):
        words = refusal(SHORT.replace("float *a", f"{spelling} *a"))
        for known in ("float", "double", "int8_t", "uint64_t", "size_t"):
            assert known in words, spelling


def test_a_refusal_shows_the_prototype_and_lists_what_is_known():
    words = refusal(swapped("int k", "int zoom"))
    assert SHORT.replace("int k", "int zoom") in words
    for known in ("in_size", "out_features", "batch_size", "roles="):
        assert known in words


def test_text_padding_must_be_text():
    conv = CONV2D.replace("const char *padding", "const float *padding")
    assert "parameter 'padding' (`const float *`)" in refusal(conv)


# ---- random prototypes and random text -------------------------------------------------

GAPS = st.sampled_from([" ", "  ", "\n", "\t", " /* int x, */ ", " // y)\n"])


@st.composite
def prototypes(draw):
    """A valid prototype and its plan: aliases, spellings, order and white space at random."""
    kind = draw(st.sampled_from(["matmul", "conv2d"]))
    table = roles.MATMUL if kind == "matmul" else roles.CONV2D
    needs = roles.MATMUL_NEEDS if kind == "matmul" else roles.CONV2D_NEEDS
    extra = [role for role in table if role not in needs]
    chosen = [*needs, *(draw(st.lists(st.sampled_from(extra), unique=True)) if extra else [])]
    operand = draw(st.sampled_from(sorted(ELEMENTS)))
    result = draw(st.sampled_from(sorted(ELEMENTS)))
    words, declared, taken = [], [], set()
    for role in draw(st.permutations(chosen)):
        pointer = role in roles.POINTERS
        names = {**roles.POINTERS, **table}[role].split()
        name = draw(st.sampled_from(names).filter(lambda name: name not in taken))
        taken.add(name)
        dtype = draw(st.sampled_from(sorted(NUMBERS)))
        if pointer:
            dtype = result if role == "output" else operand
        spelling = draw(st.sampled_from(sorted(ELEMENTS[dtype])))
        const = "const " if role in ("input", "kernel") and draw(st.booleans()) else ""
        star = draw(st.sampled_from(["*", "* ", "*restrict "])) if pointer else ""
        declared.append(f"{const}{spelling}{draw(GAPS)}{star}{name}")
        words.append(f"{role}:{dtype}{'*' if pointer else ''}")
    returns = draw(st.sampled_from(["void", "int"]))
    text = f"{returns}{draw(GAPS)}some_f2(" + ("," + draw(GAPS)).join(declared) + ")"
    plan = " ".join(["void" if returns == "void" else "i32", *words])
    return text, kind, plan


@given(prototypes())
def test_random_prototypes_bind(case):
    text, kind, plan = case
    bound = bind(text)
    assert (bound.kind, bound.plan, bound.prototype.symbol) == (kind, plan, "some_f2")


TYPE_WORDS = "void int float double char unsigned long const restrict static struct typedef size_t"
NAMES = "a b m k n out padding f mul 3"
SIGNS = "... ; , ( ) [ ] { } * & = : \" ' # \\ // /* */ \n"
ODD = "_Static_assert _Alignas _Atomic sizeof inline extern union enum volatile __attribute__"
TOKENS = [token for group in (TYPE_WORDS, NAMES, SIGNS, ODD) for token in group.split(" ")]


def bound_or_refused(text):
    """The kinds of the functions in a text; [] if it is refused as it should be."""
    try:
        return [prototype.bind(declared).kind for declared in prototype.parse(text)]
    except PrototypeError:
        return []


@given(st.one_of(st.text(), st.lists(st.sampled_from(TOKENS)).map(" ".join)))
def test_random_text_is_bound_or_refused(text):
    assert set(bound_or_refused(text)) <= {"matmul", "conv2d", "scalar"}


@given(st.integers(0, len(CONV2D) - 1), st.sampled_from(TOKENS), st.integers(0, 4))
def test_a_damaged_prototype_is_bound_or_refused(at, token, cut):
    damaged = CONV2D[:at] + token + CONV2D[at + cut :]
    assert bound_or_refused(damaged) in ([], ["conv2d"])


# ---- ctypes functions ----------------------------------------------------------------


def ctypes_function(argtypes, restype=None):
    """A ctypes function of some name; its types are read, it is never called."""
    function = ctypes.CDLL(None).qsort  # a new object of a new CDLL: nobody else sees its types
    function.argtypes, function.restype = argtypes, restype
    return function


def matmul_types(pointer, size=ctypes.c_int):
    return [pointer, pointer, size, size, size, pointer]


POINTER_STYLES = {
    "POINTER": ctypes.POINTER(ctypes.c_float),
    "ndpointer": np.ctypeslib.ndpointer(np.float32),
    "ndpointer with flags": np.ctypeslib.ndpointer(dtype="f4", ndim=2, flags="C_CONTIGUOUS"),
}


@pytest.mark.parametrize("style", POINTER_STYLES)
def test_ctypes_functions_in_the_usual_order_need_no_names(style):
    pointer, number = POINTER_STYLES[style], ctypes.c_int
    matmul = prototype.bind(callables.from_ctypes(ctypes_function(matmul_types(pointer))))
    assert (matmul.kind, matmul.plan) == ("matmul", SHORT_PLAN)
    types = [pointer, pointer, *[number] * 9, ctypes.c_char_p, pointer]
    conv2d = prototype.bind(callables.from_ctypes(ctypes_function(types, ctypes.c_int)))
    assert conv2d.plan == bind(CONV2D.replace("void", "int")).plan


@pytest.mark.parametrize(
    ("ctype", "dtype"),
    [
        (ctypes.c_double, "f64"), (ctypes.c_int8, "i8"), (ctypes.c_byte, "i8"),
        (ctypes.c_short, "i16"), (ctypes.c_int32, "i32"), (ctypes.c_longlong, "i64"),
        (ctypes.c_ubyte, "u8"), (ctypes.c_uint16, "u16"), (ctypes.c_uint, "u32"),
        (ctypes.c_ulong, "u64"), (ctypes.c_size_t, "u64"),
    ],
)  # fmt: skip
def test_ctypes_element_types(ctype, dtype):
    styles = [ctypes.POINTER(ctype), np.ctypeslib.ndpointer(np.dtype(ctype))]
    for pointer in styles:
        declared = callables.from_ctypes(ctypes_function(matmul_types(pointer, ctypes.c_size_t)))
        expected = SHORT_PLAN.replace("f32", dtype).replace(":i32 ", ":u64 ")
        if dtype == "i32":
            expected = "void input:i32* kernel:i32* m:u64 k:u64 n:u64 output:i32*"
        assert prototype.bind(declared).plan == expected


def test_ctypes_functions_take_names_in_order():
    pointer, number = POINTER_STYLES["POINTER"], ctypes.c_int64
    function = ctypes_function([number, pointer, number, pointer, number, pointer])
    names = ["out_size", "result", "rows", "weights", "depth", "x"]
    bound = prototype.bind(callables.from_ctypes(function, names))
    assert bound.plan == "void n:i64 output:f32* m:i64 kernel:f32* k:i64 input:f32*"


def test_ctypes_scalar_products_need_no_names():
    function = ctypes_function([ctypes.c_uint8] * 2, ctypes.c_uint16)
    bound = prototype.bind(callables.from_ctypes(function))
    assert (bound.kind, bound.plan) == ("scalar", "u16 input:u8 kernel:u8")


@pytest.mark.parametrize(
    ("argtypes", "names", "words"),
    [
        (None, None, "'qsort' has no argtypes; set function.argtypes"),
        (matmul_types(ctypes.c_void_p), None, "c_void_p.*cannot be read"),
        (matmul_types(np.ctypeslib.ndpointer()), None, "cannot be read"),
        (matmul_types(np.ctypeslib.ndpointer(">f4")), None, "dtype >f4, which cannot be passed"),
        (matmul_types(np.ctypeslib.ndpointer(np.complex64)), None, "complex64, which cannot"),
        (matmul_types(ctypes.POINTER(ctypes.POINTER(ctypes.c_float))), None, "cannot be read"),
        (matmul_types(ctypes.CFUNCTYPE(None)), None, "cannot be read"),
        ([ctypes.c_int] * 3, None, "ctypes keeps no parameter names"),
        (matmul_types(ctypes.POINTER(ctypes.c_float)), ["a", "b"], "roles has 2 names.*6 argtypes"),
    ],
)
def test_ctypes_functions_that_cannot_be_read(argtypes, names, words):
    function = ctypes.CDLL(None).qsort if argtypes is None else ctypes_function(argtypes)
    with pytest.raises(PrototypeError, match=f"(?s){words}"):
        callables.from_ctypes(function, names)


# ---- prototypes found in a source ------------------------------------------------------

MUL = "float mul(float a, float b)"


@pytest.mark.parametrize(
    "text",
    [
        MUL + " { return a * b; }",
        "static float half(float a) { return a / 2; }\n" + MUL + "\n{\n  return half(a) * b;\n}\n",
        "#define TWICE(x) \\\n  float x(float a) {}\n" + MUL + "{ return a * b; }",
        "// void old(int a) {\n/* void older(int a) { */\n" + MUL + " { return a * b; }",
        MUL + ";\n" + MUL + " { if (a > b) { return a * b; } while (a) { a -= b; } return b; }",
        "struct s { int a; };\ntypedef struct { int n; } size;\n" + MUL + " { return a * b; }",
        "static float scale = 2, y;\n" + MUL + " {\n  y = a, scale * mul(a, b);\n  return y;\n}",
        'const char *hint = "void fake(int a) {";\n' + MUL + " { return a * b; }",
        "extern float other(float x);\nint there(void);\n" + MUL + " { return a * other(b); }",
        "#if 0\nvoid dead(int a) { }\n#endif\n" + MUL + " { return a * b; }",
        '#ifdef __cplusplus\nextern "C" {\n#endif\n' + MUL + " { return a * b; }\n"
        "#ifdef __cplusplus\n}\n#endif",
    ],
)
def test_the_one_function_of_a_source_is_found(compile_c, text):
    found = source.find_prototype(compile_c(text))
    assert bind(found).plan == "f32 input:f32 kernel:f32"
    assert bind(found).prototype.symbol == "mul"


def test_a_function_of_a_source_is_found_by_name(compile_c):
    path = compile_c(f"{MATMUL} {{}}\n{CONV2D.rstrip(';')} {{}}\nstatic {MUL} {{ return a; }}\n")
    assert bind(source.find_prototype(path, "custom_conv2d")).kind == "conv2d"
    assert bind(source.find_prototype(path, "mul")).kind == "scalar"
    with pytest.raises(PrototypeError, match=r"2 functions \(custom_matmul, custom_conv2d\)"):
        source.find_prototype(path)
    with pytest.raises(PrototypeError, match=r"no function 'custom_conv'.*mean 'custom_conv2d'"):
        source.find_prototype(path, "custom_conv")


def test_a_source_without_functions_says_so(compile_c):
    with pytest.raises(PrototypeError, match="none"):
        source.find_prototype(compile_c("int table[4] = {1, 2, 3, 4};\n"))
