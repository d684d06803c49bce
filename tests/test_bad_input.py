"""Bad input and bad surroundings: every mistake is a clear error, and the process lives on.

What could kill a process runs in another one. Those are forked from one parent
that has TensorFlow imported, and opgraft not: a new process then costs little.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import opgraft as og
from opgraft.errors import ArgumentError, DtypeError, LibraryError

rng = np.random.default_rng(4)
MUL = "float mul(float a, float b) { return a * b; }\n"


def whole(*shape, dtype="float32"):
    return rng.integers(-4, 5, shape).astype(dtype)


def typed(compile_c, operand):
    """The example matrix product, for another type of elements."""
    text = (pathlib.Path(og.__file__).parent / "kernels" / "matmul.c").read_text()
    text = "#include <stdint.h>\n" + text.replace("float", operand).replace("0.0f", "0")
    return og.c_function(compile_c(text, f"{operand}.c"))


@pytest.fixture
def still_works(c_both):
    """After the mistake, the next call is right."""
    yield
    a, b = whole(3, 5), whole(5, 2)
    np.testing.assert_array_equal(og.matmul(a, b, arithmetic=c_both), a @ b)


# ---- geometry ------------------------------------------------------------------------

CONV2D = ((2, 7, 6, 4), (3, 2, 4, 6))
OPERATIONS = {
    og.conv2d: CONV2D,
    og.depthwise_conv2d: ((2, 7, 6, 4), (3, 2, 4, 2)),
    og.conv1d: ((2, 7, 4), (3, 4, 6)),
}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"strides": 0}, "strides=0: every number must be at least 1"),
        ({"strides": -2}, "strides=-2: every number must be at least 1"),
        ({"strides": 1.5}, "strides=1.5 must be whole numbers"),
        ({"strides": True}, "strides=True must be whole numbers"),
        ({"strides": None}, "strides=None must be whole numbers"),
        ({"strides": 2**31}, "strides=2147483648: every number must be below"),
        ({"dilations": 10**30}, "every number must be below"),
        ({"padding": "same size"}, "padding='same size' must be"),
        ({"padding": None}, "padding=None must be"),
        ({"groups": 0}, "groups=0"),
        ({"groups": 2.0}, "groups=2.0"),
        ({"data_format": "NHWC"}, "data_format='NHWC' must be \"channels_last\" or"),
        ({"pad_value": "zero"}, "pad_value='zero' must be a finite number"),
        ({"pad_value": float("nan")}, "pad_value=nan must be a finite number"),
        ({"pad_value": None}, "pad_value=None must be a finite number"),
    ],
)
def test_wrong_arguments_are_named(operation, wrong, words, c_both, still_works):
    operands = [whole(*shape) for shape in OPERATIONS[operation]]
    with pytest.raises(ArgumentError, match=re.escape(words)):
        operation(*operands, arithmetic=c_both, **wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"strides": (1, 0)}, r"strides=\(1, 0\): every number must be at least 1"),
        ({"strides": (1, 2, 3)}, r"strides=\(1, 2, 3\) must be 1, 2 or 4 numbers"),
        ({"strides": ()}, r"strides=\(\) must be 1, 2 or 4 numbers"),
        ({"strides": (2, 1, 1, 1)}, "must be 1 along the batch and the channels"),
        ({"dilations": (1, 2, 2, 3)}, "must be 1 along the batch and the channels"),
        ({"padding": ((1, 1),)}, "must be"),
        ({"padding": ((1, 1), (1, -1))}, "paddings must not be negative"),
        ({"padding": ((1, 1), (0.5, 1))}, "must be"),
        ({"padding": ((10**30, 0), (0, 0))}, "every number must be below"),
        ({"groups": 3}, r"kernel .* takes 4 in each of 3 group\(s\)"),
        ({"groups": 10**30}, "groups"),
    ],
)
def test_wrong_pairs_are_named(wrong, words, c_both, still_works):
    with pytest.raises(ArgumentError, match=words):
        og.conv2d(*(whole(*shape) for shape in CONV2D), arithmetic=c_both, **wrong)


@pytest.mark.parametrize(
    ("operation", "left", "right", "words"),
    [
        (og.matmul, (3, 4), (5, 2), r"inner sizes of a \(3, 4\) and b \(5, 2\) are 4 and 5"),
        (og.matmul, (4,), (4, 2), r"a has the shape \(4,\); it needs at least 2 dimensions"),
        (og.matmul, (3, 4), (), r"b has the shape \(\); it needs at least 2 dimensions"),
        (og.matmul, (2, 3, 4), (3, 4, 5), "batch dimensions of a .* do not broadcast"),
        (og.conv2d, (7, 6, 4), (3, 2, 4, 6), r"x has the shape \(7, 6, 4\); it needs 4 dimensions"),
        (og.conv2d, (2, 7, 6, 4), (2, 4, 6), r"kernel has the shape \(2, 4, 6\); it needs 4"),
        (og.conv2d, (2, 7, 6, 4), (3, 2, 5, 6), r"x \(2, 7, 6, 4\) has 4 channels.*takes 5"),
        (og.depthwise_conv2d, (2, 7, 6, 4), (3, 2, 3, 2), "has 4 channels.*has 3"),
        (og.conv1d, (2, 7, 6, 4), (3, 4, 6), "x has the shape .*needs 3 dimensions"),
        (og.conv1d, (2, 7, 4), (3, 5, 6), "has 4 channels.*takes 5"),
    ],
)
def test_shapes_that_do_not_fit(operation, left, right, words, c_both, still_works):
    left, right = whole(*left), whole(*right)
    anything = [tf.TensorSpec(None), tf.TensorSpec(None)]
    with pytest.raises(ArgumentError, match=words):
        operation(left, right, arithmetic=c_both)
    with pytest.raises(ArgumentError, match=words):
        tf.function(lambda a, b: operation(a, b, arithmetic=c_both))(left, right)
    with pytest.raises((ArgumentError, tf.errors.InvalidArgumentError)) as caught:  # at run time
        tf.function(lambda a, b: operation(a, b, arithmetic=c_both), anything)(left, right)
    assert "opgraft" in str(caught.value) or isinstance(caught.value, ArgumentError)


def test_groups_that_do_not_divide(c_both, still_works):
    with pytest.raises(ArgumentError, match=r"groups=2 does not divide the 5 output channels"):
        og.conv2d(whole(1, 5, 4, 4), whole(2, 3, 2, 5), arithmetic=c_both, groups=2)
    some = [tf.TensorSpec((None, None, None, None)), tf.TensorSpec((None, None, None, None))]
    convolve = tf.function(lambda x, k: og.conv2d(x, k, arithmetic=c_both, groups=2), some)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"groups is 2, which does not divide"):
        convolve(whole(1, 5, 4, 4), whole(2, 3, 2, 5))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"do not fit .* 2 group\(s\)"):
        convolve(whole(1, 5, 4, 4), whole(2, 3, 4, 6))


@pytest.mark.parametrize(
    ("equation", "left", "words"),
    [("ab,bc", (3, 4), "form"), ("ab,bc->ac->a", (3, 4), "form"), ("", (3, 4), "form"),
     ("aab,bc->ac", (3, 3, 4), "not a matrix"), ("ab,bc->a", (3, 4), "not a matrix"),
     ("abd,bc->ac", (3, 4), "does not fit"), ("abd,bc->ac", (3, 4, 5), "not a matrix")],
)  # fmt: skip
def test_einsum_equations_that_are_no_matrix_product(equation, left, words, c_both, still_works):
    with pytest.raises(ArgumentError, match=words):
        og.einsum_dense(equation, whole(*left), whole(4, 2), arithmetic=c_both)


@pytest.mark.parametrize("name", ["c_both", "exact"])
def test_empty_operands_give_empty_or_zero_results(name, c_both):
    arithmetic = {"c_both": c_both, "exact": og.exact}[name]
    for left, right in [((0, 4), (4, 2)), ((3, 0), (0, 2)), ((3, 4), (4, 0)), ((0, 3, 4), (4, 2))]:
        y = og.matmul(whole(*left), whole(*right), arithmetic=arithmetic)
        np.testing.assert_array_equal(y, np.matmul(whole(*left), whole(*right)) * 0)
    convolutions = [
        ((0, 7, 6, 2), (3, 2, 2, 4), (0, 5, 5, 4)), ((2, 7, 6, 2), (3, 2, 2, 0), (2, 5, 5, 0)),
        ((2, 3, 3, 2), (5, 2, 2, 4), (2, 0, 2, 4)), ((2, 7, 6, 0), (3, 2, 0, 4), (2, 5, 5, 4)),
        ((2, 5, 4, 3), (0, 2, 3, 2), (2, 6, 3, 2)),
    ]  # fmt: skip
    for x, kernel, shape in convolutions[: 3 if name == "exact" else 5]:  # TensorFlow has no more
        y = og.conv2d(whole(*x), whole(*kernel), arithmetic=arithmetic).numpy()
        assert y.shape == shape
        assert not y.any()


# ---- dtypes and values -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "bool", "str", "object"])
@pytest.mark.parametrize("name", ["c_both", "exact"])
def test_dtypes_that_cannot_be_multiplied(dtype, name, c_both, still_works):
    arithmetic = {"c_both": c_both, "exact": og.exact}[name]
    a, b = whole(3, 4).astype(dtype), whole(4, 2).astype(dtype)
    with pytest.raises(DtypeError):
        og.matmul(a, b, arithmetic=arithmetic)
    x, kernel = whole(1, 4, 3, 2).astype(dtype), whole(2, 2, 2, 3).astype(dtype)
    with pytest.raises(DtypeError):
        og.conv2d(x, kernel, arithmetic=arithmetic)
    if dtype in ("bool", "complex64"):
        symbol = keras.KerasTensor((None, 4), dtype=dtype)
        with pytest.raises(DtypeError, match=f"dtype {dtype} cannot be multiplied"):
            og.matmul(symbol, b, arithmetic=arithmetic)


@pytest.mark.parametrize(
    "value",
    [None, "abc", {"a": 1}, [[1.0], [1.0, 2.0]], object(),
     tf.sparse.from_dense(np.eye(4)), tf.ragged.constant([[1.0], [2.0, 3.0]])],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_no_tensor_is_refused(value, c_both, still_works):
    for operands in ((value, whole(4, 2)), (whole(3, 4), value)):
        with pytest.raises((DtypeError, ArgumentError)):
            og.matmul(*operands, arithmetic=c_both)


def test_operands_of_two_dtypes(c_both, still_works):
    for left, right in [("float32", "float64"), ("float16", "float32"), ("int32", "float32")]:
        with pytest.raises(DtypeError, match=f"a is {left} and b is {right}; both must have one"):
            og.matmul(whole(3, 4, dtype=left), whole(4, 2, dtype=right), arithmetic=c_both)
        symbol = keras.Input((4,), dtype=left)
        with pytest.raises(DtypeError, match=f"a is {left} and b is {right}"):
            og.matmul(symbol, whole(4, 2, dtype=right), arithmetic=c_both)


@pytest.mark.parametrize(
    ("operand", "dtype", "value"),
    [
        ("int32_t", "float32", 0.5), ("int32_t", "float32", np.nan), ("int8_t", "float32", 128.0),
        ("int32_t", "float64", -np.inf), ("int32_t", "float64", 2.0**31), ("int8_t", "int16", -300),
        ("int8_t", "float32", -129.0), ("uint8_t", "float16", -1.0), ("uint8_t", "int16", 256),
        ("int64_t", "float64", 2.0**63), ("float", "int32", 2**24 + 1),
        ("float", "int64", -(2**24) - 1), ("double", "int64", 2**53 + 1),
        ("uint64_t", "int64", -5), ("int64_t", "uint64", 2**64 - 1),
    ],
)  # fmt: skip
def test_values_that_the_c_type_cannot_hold_are_named(
    operand, dtype, value, compile_c, still_works
):
    arithmetic = typed(compile_c, operand)
    for which in ("input", "kernel"):
        for run in (og.matmul, tf.function(og.matmul)):
            operands = {"input": whole(3, 5, 4), "kernel": whole(3, 4, 2)}
            operands = {name: np.abs(entry).astype(dtype) for name, entry in operands.items()}
            spot = int(rng.integers(operands[which].size))
            operands[which].flat[spot] = value
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                run(*operands.values(), arithmetic=arithmetic)
            said = rf"the {which} holds (\S+) \(element {spot}, {dtype}\).*C type {operand} cannot"
            (shown,) = re.findall(said, str(caught.value))
            np.testing.assert_equal(type(value)(shown), value)


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_the_value_in_an_image_is_named_by_its_place(layout, compile_c, still_works):
    x = whole(2, 7, 6, 3) if layout == "channels_last" else whole(2, 3, 7, 6)
    spot = int(rng.integers(x.size))
    x.flat[spot] = 2.5
    how = {"arithmetic": typed(compile_c, "int32_t"), "padding": "SAME", "data_format": layout}
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"2\.5 \(element {spot}, float"):
        og.conv2d(x, whole(3, 2, 3, 4), **how)


def test_a_pad_value_that_the_c_type_cannot_hold(compile_c, still_works):
    for operand, value in [("int32_t", 0.5), ("uint8_t", -1.0), ("int8_t", 128.0)]:
        arithmetic = typed(compile_c, operand)
        x, kernel = np.abs(whole(1, 5, 4, 2)), np.abs(whole(2, 3, 2, 3))
        with pytest.raises((ArgumentError, tf.errors.OpError), match=rf"pad_value.*{value:g}"):
            og.conv2d(x, kernel, arithmetic=arithmetic, padding="SAME", pad_value=value)


# ---- arithmetics and options -------------------------------------------------------------


NO_ARITHMETIC = ["exact", {}, {"class_name": "Foo"}, 3, og.Arithmetic, np.matmul, [og.exact]]


@pytest.mark.parametrize("wrong", NO_ARITHMETIC, ids=str)
def test_what_is_no_arithmetic_is_refused(wrong, still_works):
    with pytest.raises(ArgumentError, match=r"must be an og\.Arithmetic"):
        og.matmul(whole(3, 4), whole(4, 2), arithmetic=wrong)
    with pytest.raises(ArgumentError, match=r"must be an og\.Arithmetic"):
        og.layers.Dense(3, arithmetic=wrong)


def test_the_parts_of_an_arithmetic_are_checked():
    for field in ("input", "kernel", "product", "gradient"):
        for wrong in (3, None, "native", og.exact):
            with pytest.raises(ArgumentError, match=rf"Arithmetic\({field}="):
                og.Arithmetic(**{field: wrong})


def test_what_cannot_be_joined(c_matmul, compile_c):
    for other in (og.exact, 3, None, og.python_function(np.matmul)):
        with pytest.raises(ArgumentError, match="only arithmetics of C functions can be joined"):
            _ = c_matmul | other
    with pytest.raises(
        ArgumentError, match="two functions of the kind matmul: custom_matmul, custom"
    ):
        _ = c_matmul | typed(compile_c, "float")


@pytest.mark.parametrize(
    "wrong", [{"thread_safe": "no"}, {"gradient": "native"}, {"flags": 3}, {"flags": [3]}]
)
def test_wrong_options_of_a_c_function_are_named(wrong, compile_c):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        og.c_function(compile_c(MUL), **wrong)


# ---- libraries and sources -----------------------------------------------------------------


def test_a_missing_library_or_symbol_gives_near_names(compile_c):
    path = compile_c(MUL, "libproduct.c")
    with pytest.raises(LibraryError, match=r"libprodct.* does not exist.*'libproduct\.c'"):
        og.c_function(path.with_name("libprodct.c"))
    with pytest.raises(LibraryError, match=r"no function 'mull'.*Did you mean 'mul'\?"):
        og.c_function(path, "float mull(float, float)")
    with pytest.raises(LibraryError, match="is a folder"):
        og.c_function(path.parent, "float mul(float, float)")
    for wrong in (None, 3, b"lib.so", ["lib.so"]):
        with pytest.raises(ArgumentError, match="it must be the path"):
            og.c_function(wrong, "float mul(float, float)")


def test_files_that_are_no_library(tmp_path, compile_c):
    subprocess.run(["cc", "-c", "-o", tmp_path / "only.so", compile_c(MUL)], check=True)
    (tmp_path / "text.so").write_text("not a library\n" * 100)
    (tmp_path / "empty.so").touch()
    for name in ("only.so", "text.so", "empty.so"):
        with pytest.raises(LibraryError, match=rf"{name}' (cannot be loaded|is not a shared)"):
            og.c_function(tmp_path / name, "float mul(float, float)")


@pytest.mark.parametrize("name", [b"a b", "größe/äé日本".encode(), b"not-\xff-utf8", b"q'\"\\d"])
def test_odd_paths_work(name, tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.makedirs(folder)
    path = os.fsdecode(os.path.join(folder, b"mul.c"))
    with open(path, "w") as file:
        file.write(MUL)
    library = path.replace("mul.c", "mul.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, path], check=True)
    a, b = whole(3, 4), whole(4, 2)
    for arithmetic in (og.c_function(path), og.c_function(library, "float mul(float, float)")):
        np.testing.assert_array_equal(og.matmul(a, b, arithmetic=arithmetic), a @ b)
        layer = og.layers.Dense(3, arithmetic=arithmetic)
        assert og.layers.Dense.from_config(layer.get_config()).arithmetic == arithmetic


# ---- new processes -------------------------------------------------------------------------

PARENT = """
import json, os, signal, sys, traceback
import keras, tensorflow

def run(code, output, environ):
    signal.alarm(100)
    for number, name in enumerate((os.devnull, output, output)):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(environ)
    try:
        exec(code, {})
    except BaseException:
        traceback.print_exc()
        return 1
    return sys.stdout.flush() or 0

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os._exit(run(**json.loads(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def new_process(tmp_path_factory):
    """Run code in a process of its own: its exit code, and all that it printed."""
    folder = tmp_path_factory.mktemp("processes")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], **pipes)

    def run(code, **environ):
        output = folder / os.urandom(8).hex()
        environ = {"OPGRAFT_CACHE_DIR": str(folder / "cache"), **environ}
        order = {"code": textwrap.dedent(code), "output": str(output), "environ": environ}
        print(json.dumps(order), file=parent.stdin, flush=True)
        return int(parent.stdout.readline()), output.read_text(errors="replace")

    yield run
    parent.stdin.close()
    parent.wait()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OPGRAFT_NUM_THREADS", "0", "'0' is not a number from 1"),
        ("OPGRAFT_NUM_THREADS", "two", "'two' is not a number"),
        ("OPGRAFT_NUM_THREADS", "9" * 5000, "is not a number"),
        ("OPGRAFT_VARIANT", "fastest", "variant 'fastest' is not one of: auto"),
        ("OPGRAFT_CACHE_DIR", "", "'' is not a folder"),
        ("OPGRAFT_CACHE_DIR", "/dev/null", "'/dev/null' is not a folder"),
        ("OPGRAFT_CACHE_DIR", "/dev/null/below", "cannot be made"),
        ("OPGRAFT_CACHE_DIR", "/proc/nowhere", "cannot be made"),
        ("OPGRAFT_CACHE_DIR", "/proc/sys", "cannot be written"),
        ("XDG_CACHE_HOME", "/dev/null/below", "cannot be made"),
        ("OPGRAFT_LIBRARY_PATH", "/nowhere:/", "'/nowhere' is not a folder"),
        ("OPGRAFT_CC", "cc 'unclosed", "is not a command"),
        ("OPGRAFT_CC", "   ", "names no command"),
        ("OPGRAFT_CC", "/nowhere/to/be/cc -m64", "C compiler '/nowhere/to/be/cc' is not found"),
        ("OPGRAFT_CC", "true", "said nothing and wrote nothing"),
        ("OPGRAFT_CC", "false", "does not compile"),
        ("OPGRAFT_CORE", "/nowhere/core.so", "'/nowhere/core.so' is not a file"),
        ("OPGRAFT_CORE", "/etc/passwd", "OPGRAFT_CORE"),
        ("OPGRAFT_THREADS", "2", "not known. Those that are: OPGRAFT_NUM_THREADS"),
    ],
)
def test_wrong_environment_variables_are_named(name, value, words, new_process, compile_c):
    call = f"opgraft.c_function({str(compile_c(MUL))!r}, 'float mul(float, float)')"
    code = f"import opgraft; {call}"
    if name == "XDG_CACHE_HOME":
        code = "import os; del os.environ['OPGRAFT_CACHE_DIR']\n" + code
    cache = {"OPGRAFT_CACHE_DIR": str(compile_c("").parent / "cache")}  # nothing is compiled in it
    exit_code, output = new_process(code, **{**cache, name: value})
    assert exit_code == 1
    said = output[output.rindex("opgraft.errors.") :]
    assert words in said
    assert value == "false" or {"XDG_CACHE_HOME": "OPGRAFT_CACHE_DIR"}.get(name, name) in said


def test_right_environment_variables_are_taken(new_process, tmp_path, compile_c):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/cache \xff")
    settings = {"OPGRAFT_NUM_THREADS": "1", "OPGRAFT_VARIANT": "generic", "OPGRAFT_CC": "cc -w"}
    settings |= {"OPGRAFT_CACHE_DIR": odd, "OPGRAFT_LIBRARY_PATH": f"{tmp_path}:/"}
    code = f"""
        import opgraft as og
        a = [[1., 2.], [3., 5.]]
        print(og.matmul(a, a, arithmetic=og.c_function({str(compile_c(MUL))!r})).numpy().tolist())
        og.show_config()
    """
    exit_code, output = new_process(code, **settings)
    assert exit_code == 0, output
    assert "[[7.0, 12.0], [18.0, 31.0]]" in output
    assert re.search(r"threads +1\b", output)
    assert re.search(r"variant +generic", output)
    assert os.listdir(odd)


HUGE = """
    import numpy as np, tensorflow as tf, opgraft as og
    arithmetic, convolution = og.c_function({matmul!r}), og.c_function({conv2d!r})
    x, kernel = np.ones((1, 4, 5, 2), "float32"), np.ones((3, 3, 2, 2), "float32")
    huge = 2**31 - 1
    for c in (arithmetic, convolution, og.exact):
        for strides, pad in [(1, 10**6), (1, huge), (huge, huge), (huge, 10**6), (7, 2**30)]:
            for dtype in ("float32", "float64"):
                try:
                    og.conv2d(x.astype(dtype), kernel.astype(dtype), arithmetic=c,
                              strides=strides, padding=((pad, pad), (pad, pad)))
                    print("computed")
                except (og.errors.OpgraftError, tf.errors.OpError) as error:
                    print("refused", type(error).__name__, error)
    big = tf.broadcast_to(1.0, (1, 1))
    print(og.matmul(big, big, arithmetic=arithmetic).numpy().tolist())
"""


def test_sizes_beyond_all_memory_do_not_kill_the_process(new_process, c_matmul, c_conv2d):
    paths = [entry.product.symbols[0].library for entry in (c_matmul, c_conv2d)]
    exit_code, output = new_process(HUGE.format(matmul=paths[0], conv2d=paths[1]))
    assert exit_code == 0, output
    assert len(re.findall("^(?:refused .*Error .|computed)", output, re.M)) == 30
    assert re.search(r"takes [\d.,]+ TiB, more than any machine has: .*smaller padding", output)
    assert re.search("is beyond TensorFlow's 32 bits: .*Give smaller ones", output)
    assert output.strip().endswith("[[1.0]]")


# ---- the cache -------------------------------------------------------------------------------

USE = """
    import opgraft as og
    arithmetic = og.c_function({path!r}, "float mul(float, float)")
    print(og.matmul([[3.0]], [[5.0]], arithmetic=arithmetic).numpy().item(), flush=True)
"""


def damage(path, kind):
    content = bytearray(path.read_bytes())
    if kind == "one bit":
        content[len(content) // 2] ^= 1
    elif kind == "zeros":
        content = bytes(len(content))
    else:
        content = content[: int(kind)]
    path.unlink()  # a new file: the old one may be mapped by somebody
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["0", "10", "64", "1000", "5000", "one bit", "zeros"])
@pytest.mark.parametrize("suffix", [".c", ".so"])
def test_a_damaged_cache_is_made_anew(kind, suffix, new_process, tmp_path, compile_c):
    path, cache = compile_c(MUL), tmp_path / "cache"
    if suffix == ".so":
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "m.so", path], check=True)
        path = tmp_path / "m.so"
    use = USE.format(path=str(path))
    assert new_process(use, OPGRAFT_CACHE_DIR=str(cache)) == (0, "15.0\n")
    (object_file,) = cache.glob("*.so")
    damage(object_file, kind)
    assert new_process(use, OPGRAFT_CACHE_DIR=str(cache)) == (0, "15.0\n")
    assert new_process(use, OPGRAFT_CACHE_DIR=str(cache)) == (0, "15.0\n")


DELETE = """
    import shutil
    shutil.rmtree({cache!r})
    print(og.matmul([[3.0]], [[7.0]], arithmetic=arithmetic).numpy().item())
    again = og.c_function({path!r}, "float mul(float, float)", thread_safe=False)
    print(og.matmul([[2.0]], [[7.0]], arithmetic=again).numpy().item())
"""


def test_a_cache_that_was_deleted_while_running(new_process, tmp_path, compile_c):
    cache = str(tmp_path / "cache")
    code = (USE + DELETE).format(path=str(compile_c(MUL)), cache=cache)
    assert new_process(code, OPGRAFT_CACHE_DIR=cache) == (0, "15.0\n21.0\n14.0\n")


AT_ONCE = """
    import os
    children = [os.fork()]
    while children[-1] and len(children) < 4:
        children.append(os.fork())
    if children[-1]:
        print([os.waitpid(pid, 0)[1] for pid in children], flush=True)
        os._exit(0)
"""


def test_processes_that_compile_one_source_at_once(new_process, tmp_path, compile_c):
    code = AT_ONCE + USE.format(path=str(compile_c(MUL)))
    result = new_process(code, OPGRAFT_CACHE_DIR=str(tmp_path / "cache"))
    assert result == (0, "15.0\n" * 4 + "[0, 0, 0, 0]\n")


# Writes a part of the object, says so, and then takes its time.
SLOW_COMPILER = """#!/bin/sh
case "$*" in *-shared*)
  head -c 3000 /dev/zero > "$(echo "$*" | sed 's/.*-o //; s/ .*//')"
  touch '{mark}'
  sleep 60
esac
exec cc "$@"
"""


KILLED = """
    import os, pathlib, time
    child = os.fork()
    if child:
        while not pathlib.Path({mark!r}).exists():
            time.sleep(0.02)
        os.killpg(child, 9)
        print(os.waitpid(child, 0)[1], flush=True)
        os._exit(0)
    os.setsid()
"""


def test_a_compilation_that_is_killed_leaves_a_usable_cache(new_process, tmp_path, compile_c):
    slow, mark = tmp_path / "slow-cc", tmp_path / "compiling"
    slow.write_text(SLOW_COMPILER.format(mark=mark))
    slow.chmod(0o755)
    use, cache = USE.format(path=str(compile_c(MUL))), str(tmp_path / "cache")
    killed = KILLED.format(mark=str(mark)) + use
    result = new_process(killed, OPGRAFT_CACHE_DIR=cache, OPGRAFT_CC=str(slow))
    assert result == (0, "9\n")
    before = time.monotonic()
    assert new_process(use, OPGRAFT_CACHE_DIR=cache) == (0, "15.0\n")
    assert time.monotonic() - before < 50  # it waited for nobody


# ---- forks -------------------------------------------------------------------------------------

FORKED = """
    import multiprocessing, numpy as np, opgraft as og
    arithmetic = og.c_function({path!r})
    a, b = np.arange(60000.0).reshape(3000, 20) % 7, np.arange(40.0).reshape(20, 2) % 5

    def use(pipe):
        y = og.matmul(a, b, arithmetic=arithmetic)  # by many tiles: a cast from double to float
        pipe.send(bool(np.array_equal(y, a @ b)))

    context = multiprocessing.get_context("fork")
    assert np.array_equal(og.matmul(a, b, arithmetic=arithmetic), a @ b)
    for _ in range(3):
        mine, theirs = context.Pipe()
        child = context.Process(target=use, args=(theirs,))
        child.start()
        print(mine.poll(60) and mine.recv())
        child.join(5)
        print(child.exitcode)
        assert np.array_equal(og.matmul(a, b, arithmetic=arithmetic), a @ b)
"""


def test_a_forked_child_computes_and_so_does_its_parent(new_process, c_matmul):
    path = c_matmul.product.symbols[0].library
    settings = {"OPGRAFT_NUM_THREADS": "3"}
    exit_code, output = new_process(FORKED.format(path=path), **settings)
    assert (exit_code, output) == (0, "True\n0\n" * 3)
