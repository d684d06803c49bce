"""Gradients by C functions: how they are bound, what they are given, what they may not do."""

import ctypes
import os
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest
import tensorflow as tf
from cases import CONVOLUTIONS, SELECTION, Case, compute, every
from test_gradient import gradients
from test_own_gradients import (
    BOTH,
    CONV2D_VJP,
    MATMUL_VJP,
    check_integers,
    native,
    product,
    prototypes,
    with_gradient,
)

import opgraft as og
from opgraft import reference
from opgraft.errors import (
    ArgumentError,
    CompileError,
    LibraryError,
    PrototypeError,
    UnsupportedError,
)
from opgraft.gradients import c_function
from opgraft.spec import Conv2D, MatMul

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler called cc")
pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore:the Python function")]

FEW = [case for case in SELECTION if isinstance(case.contraction, MatMul)] + SELECTION[::6]
PLAIN = Case(MatMul(), (5, 3), (3, 4))
CONV2D = Case(Conv2D(strides=(2, 1), padding="SAME"), (2, 5, 4, 2), (3, 2, 2, 3))


def own(source, *names, **options):
    return c_function(source, prototypes(source, *names), **options)


# ---- prototypes --------------------------------------------------------------------------


@every(FEW)
def test_without_a_prototype_from_the_source(case, compile_c):
    source = compile_c(MATMUL_VJP.read_text().split("/* Parameters")[0])
    check_integers(case, og.Arithmetic(gradient=c_function(source)), native)


ORDERS = {
    "as usual": (BOTH, None),
    "gradients first": (
        "void v(float *db, float *da, const float *upstream, const float *b, const float *a, "
        "int k, int n, int m)", "da db dy b a k n m",
    ),
    "aliases": (
        "void v(const float *activations, const float *weights, const float *grad_output, "
        "size_t batch_size, size_t in_size, size_t out_size, float *grad_x, float *grad_weights)",
        "a b dy m k n da db",
    ),
    "other integers": (
        "int v(short m, const float *x, long long n, const float *w, unsigned k, "
        "const float *gy, float *gx, float *gw)", "m a n b k dy da db",
    ),
    "pointers that are not const": (
        "void v(float *lhs, float *rhs, float *g, int rows, int inner, int cols, float *dlhs, "
        "float *drhs)", "a b dy m k n da db",
    ),
}  # fmt: skip
BODY = "{ for (int i = 0; i < M; i++) for (int l = 0; l < K; l++) { DA[i*K+l] = 0; " \
    "for (int j = 0; j < N; j++) DA[i*K+l] += DY[i*N+j] * B[l*N+j]; } " \
    "for (int l = 0; l < K; l++) for (int j = 0; j < N; j++) { DB[l*N+j] = 0; " \
    "for (int i = 0; i < M; i++) DB[l*N+j] += A[i*K+l] * DY[i*N+j]; } RETURN }"  # fmt: skip


def written(prototype):
    """A VJP with these parameters, whatever they are called."""
    names = dict(zip(
        ["A", "B", "DY", "M", "K", "N", "DA", "DB"],
        ["a lhs x activations", "b rhs w weights", "dy upstream g gy grad_output",
         "m rows batch_size", "k inner in_size", "n cols out_size", "da gx dlhs grad_x",
         "db gw drhs grad_weights"], strict=True,
    ))  # fmt: skip
    taken = set(re.findall(r"\w+", prototype))
    defines = "".join(
        f"#define {short} {next(a for a in aliases.split() if a in taken)}\n"
        for short, aliases in names.items()
    )
    returns = "return 0;" if prototype.startswith("int") else ""
    return f"#include <stddef.h>\n{defines}#define RETURN {returns}\n{prototype} {BODY}\n"


@pytest.mark.parametrize("name", ORDERS)
def test_parameters_in_any_order_by_their_names(name, compile_c):
    prototype, _ = ORDERS[name]
    gradient = c_function(compile_c(written(prototype)), prototype)
    for case in FEW:
        check_integers(case, og.Arithmetic(gradient=gradient), native)


def test_roles_for_other_names(compile_c):
    prototype = BOTH.replace("*dy", "*incoming").replace("int m", "int foo")
    text = written(BOTH).replace("#define DY dy", "#define DY incoming")
    source = compile_c(text.replace("#define M m", "#define M foo").replace(BOTH, prototype))
    gradient = c_function(source, prototype, roles={"incoming": "upstream", "foo": "m"})
    check_integers(PLAIN, og.Arithmetic(gradient=gradient), native)
    roles = ["input", "kernel", "upstream", "m", "k", "n", "grad_input", "grad_kernel"]
    gradient = c_function(source, prototype, roles=roles)
    check_integers(PLAIN, og.Arithmetic(gradient=gradient), native)


def test_a_library_that_is_compiled_already(tmp_path):
    path = tmp_path / "libgradient.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", path, MATMUL_VJP], check=True)
    library = ctypes.CDLL(os.fspath(path))
    function = library.matmul_vjp
    array = np.ctypeslib.ndpointer(np.float32)
    function.argtypes = [array] * 3 + [ctypes.c_int] * 3 + [array] * 2
    function.restype = None
    roles = ["input", "kernel", "upstream", "m", "k", "n", "grad_input", "grad_kernel"]
    made = [c_function(path, BOTH), c_function(library, BOTH), c_function(function, roles=roles)]
    for gradient in made:
        assert gradient.symbols[0].library == os.fspath(path)
        check_integers(PLAIN, og.Arithmetic(gradient=gradient), native)


# ---- prototypes that are refused ---------------------------------------------------------------

REFUSED = {
    "no gradient": (
        "void v(const float *a, const float *b, const float *dy, int m, int k, int n)",
        "v writes no gradient: it has neither grad_input (grad_input dx da ",
    ),
    "only one gradient": (
        "void v(const float *a, const float *dy, int m, int k, int n, float *db)",
        "nothing writes grad_input of a matmul; exactly one C function must. Give the prototypes "
        "of both functions, separated by a semicolon",
    ),
    "one gradient twice": (
        "void v(const float *dy, int m, int k, int n, float *da, float *db);"
        "void u(const float *dy, int m, int k, int n, float *da)",
        "v and u write grad_input of a matmul; exactly one C function must",
    ),
    "no upstream": (
        "void v(const float *a, const float *b, int m, int k, int n, float *da, float *db)",
        "no parameter gives upstream (names: upstream, dy, dout",
    ),
    "no size": (
        "void v(const float *a, const float *dy, int m, int n, float *da, float *db)",
        "no parameter gives k (names: k, in_size",
    ),
    "unknown parameter": (
        "void v(const float *dy, int m, int k, int n, int foo, float *da, float *db)",
        "parameter 'foo' (`int`) is not known",
    ),
    "one role twice": (
        "void v(const float *dy, const float *grad, int m, int k, int n, float *da, float *db)",
        "'dy' and 'grad' are both bound to upstream",
    ),
    "const gradient": (
        "void v(const float *dy, int m, int k, int n, const float *da, float *db)",
        "v takes grad_input as `const float *`; it is written, and cannot be const",
    ),
    "const kernel gradient": (
        "void v(const float *dy, int m, int k, int n, float *da, const float *db)",
        "v takes grad_kernel as `const float *`; it is written, and cannot be const",
    ),
    "mixed element types": (
        "void v(const float *dy, int m, int k, int n, double *da, float *db)",
        "v has the pointers `const float *`, `double *`, `float *`; those of a gradient must all "
        "be float, or all double",
    ),
    "integers": (
        "void v(const int *dy, int m, int k, int n, int *da, int *db)",
        "those of a gradient must all be float, or all double",
    ),
    "returns a float": (
        "float v(const float *dy, int m, int k, int n, float *da, float *db)",
        "v returns `float`; it must return void, or int where any value but 0 is an error",
    ),
    "a parameter without a name": (
        "void v(const float *, int m, int k, int n, float *da, float *db)",
        "parameter 1 of v has no name; parameters are bound by name",
    ),
    "a forward function": (
        "void v(const float *a, const float *b, int m, int k, int n, float *out)",
        "no parameter gives upstream",
    ),
    "no C": ("void v(float32 dy)", "the prototype does not parse"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_prototype_that_cannot_be_bound(name, compile_c):
    prototype, text = REFUSED[name]
    definitions = "".join(
        f"{one.strip()} {{ {'return 0;' if one.strip().startswith('float') else ''} }}\n"
        for one in prototype.split(";")
        if "float32" not in one and "float *," not in one
    )
    source = compile_c(definitions)
    with pytest.raises((PrototypeError, ArgumentError), match=re.escape(text)):
        c_function(source, prototype)


def test_a_problem_is_listed_with_what_is_known():
    prototype = (
        "void v(const float *a, const float *dy, int m, int k, int cats, float *da, float *db)"
    )
    with pytest.raises(PrototypeError, match=r"(?s)v cannot be bound as a matmul_vjp:.*'cats'.*no "
                       "parameter gives n .*Prototype: void v.*Known pointers: .*upstream.*"
                       "grad_kernel.*Known numbers of a matmul_vjp"):  # fmt: skip
        c_function(MATMUL_VJP, prototype)


def test_the_library_of_a_gradient_is_checked_like_any(tmp_path, compile_c):
    with pytest.raises(LibraryError, match="does not exist"):
        c_function(tmp_path / "none.c", BOTH)
    with pytest.raises(LibraryError, match="matmul_wjp"):
        c_function(MATMUL_VJP, BOTH.replace("matmul_vjp", "matmul_wjp"))
    with pytest.raises(CompileError, match="error"):
        c_function(compile_c("void v(const float *dy, int m, int k, int n, float *da) { oops }"),
                   BOTH)  # fmt: skip
    with pytest.raises(ArgumentError, match="thread_safe='no' must be True or False"):
        c_function(MATMUL_VJP, BOTH, thread_safe="no")
    with pytest.raises(ArgumentError, match="flags=3 must be text, or a list of texts"):
        c_function(MATMUL_VJP, BOTH, flags=3)


# ---- what it serves, and what not ---------------------------------------------------------------


def test_a_convolution_cannot_serve_a_matrix_product(c_both):
    gradient = own(CONV2D_VJP, "conv2d_vjp")
    text = r"conv2d_vjp computes gradients of a convolution and cannot serve a matrix product " \
        r"\(a dense layer\)\. Give the VJP of a matmul, which serves both"  # fmt: skip
    for arithmetic in (og.exact, c_both, og.python_function(np.matmul)):
        with pytest.raises(UnsupportedError, match=text):
            product(with_gradient(arithmetic, gradient))(*PLAIN.normals())


@pytest.mark.parametrize(
    ("name", "option", "pair"), [("stride", "strides", (2, 1)), ("dilation", "dilations", (1, 2))]
)
def test_strides_and_dilations_that_it_is_not_told(name, option, pair, c_both):
    gradient = own(CONV2D_VJP, "conv2d_dw", "conv2d_dx")
    case = Case(Conv2D(**{option: pair}), (1, 6, 7, 2), (2, 3, 2, 3))
    text = f"has no {name} parameters, and the call has {name}s {re.escape(str(pair))}. Add " \
        f"{name}_h and {name}_w to the C function, or give the VJP of a matmul"  # fmt: skip
    with pytest.raises(UnsupportedError, match=text):
        compute(case.contraction, with_gradient(c_both, gradient), *case.normals())


@every([case for case in CONVOLUTIONS if case.contraction.strides == (1, 1)
        and case.contraction.dilations == (1, 1)][::3])  # fmt: skip
def test_two_functions_of_a_plain_convolution(case, c_both):
    """In double, at stride 1: padding, groups, layout and depth are ours to compose."""
    gradient = own(CONV2D_VJP, "conv2d_dw", "conv2d_dx")
    check_integers(case, with_gradient(c_both, gradient), native)


def test_both_kinds_in_one_library(compile_c):
    text = CONV2D_VJP.read_text().split("/* At stride 1")[0] + MATMUL_VJP.read_text()
    both = prototypes(CONV2D_VJP, "conv2d_vjp") + ";" + prototypes(MATMUL_VJP, "matmul_vjp")
    gradient = c_function(compile_c(text), both)
    assert {symbol.kind for symbol in gradient.symbols} == {"matmul_vjp", "conv2d_vjp"}
    for case in (CONV2D, PLAIN, *SELECTION[::8]):
        check_integers(case, og.Arithmetic(gradient=gradient), native)


@pytest.mark.parametrize("graph", [False, True])
def test_double_pointers_give_double_sums(graph):
    """Under float32 operands the gradient is the float64 one, rounded once."""
    gradient = own(MATMUL_VJP, "matmul_vjp_double")
    case = Case(MatMul(), (7, 300), (300, 5))
    operands = (*case.normals(), case.upstream())
    run = product(og.Arithmetic(gradient=gradient))
    got = (tf.function(gradients) if graph else gradients)(run, *map(tf.constant, operands))
    wide = reference.vjp(case.contraction, *(o.astype(np.float64) for o in operands))
    for ours, due in zip(got, wide, strict=True):
        np.testing.assert_array_equal(ours, due.astype(np.float32))


def test_the_output_as_a_parameter():
    """It is what the forward gave."""
    gradient = own(MATMUL_VJP, "matmul_vjp_output")
    a, w, dy = (*PLAIN.integers(), PLAIN.integer_upstream())
    operands = [tf.constant(o, tf.float32) for o in (a, w, dy)]
    for factor in (1, 3):
        arithmetic = og.python_function(lambda a, b, factor=factor: factor * a @ b)
        da, dw = gradients(product(with_gradient(arithmetic, gradient)), *operands)
        y = factor * a @ w
        np.testing.assert_array_equal(da, np.stack([y[:, i % 4] for i in range(3)], 1) + a)
        np.testing.assert_array_equal(dw, dy[0] + w)
    da, _ = gradients(product(og.Arithmetic(gradient=gradient)), *operands)
    np.testing.assert_array_equal(da, np.stack([(a @ w)[:, i % 4] for i in range(3)], 1) + a)


def test_the_output_of_a_convolution_as_a_parameter(c_conv2d):
    """Through im2col, though the forward has no matrix product of its own."""
    gradient = own(MATMUL_VJP, "matmul_vjp_output")
    x, w = (tf.constant(o) for o in CONV2D.normals())
    got = [
        gradients(
            lambda a, b, own=own: compute(CONV2D.contraction, own, a, b),
            x,
            w,
            tf.ones(CONV2D.output),
        )
        for own in (with_gradient(c_conv2d, gradient), og.Arithmetic(gradient=gradient))
    ]
    for ours, due in zip(*got, strict=True):
        np.testing.assert_allclose(ours, due, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("left", "right"),
    [((0, 3), (3, 4)), ((5, 0), (0, 4)), ((5, 3), (3, 0)), ((0, 2, 3), (0, 3, 4))],
)
@pytest.mark.parametrize("how", ["eager", "graph", "batch"])
def test_what_is_empty_never_reaches_it(left, right, how):
    """Though it would return an error."""
    gradient = own(MATMUL_VJP, "matmul_vjp_fails")
    case = Case(MatMul(), left, right)
    if how == "batch" and len(right) > 2:
        how = "graph"  # a batch of kernels of unknown size is refused

    def zeros(case):
        return np.zeros(case.left), np.zeros(case.right)

    check_integers(case, og.Arithmetic(gradient=gradient), zeros, how)


def test_an_empty_batch_of_images_has_zeros_as_gradient():
    for gradient in (own(CONV2D_VJP, "conv2d_vjp"), own(MATMUL_VJP, "matmul_vjp")):
        case = Case(Conv2D(strides=(2, 1), padding="SAME"), (0, 5, 4, 2), (3, 2, 2, 3))
        check_integers(case, og.Arithmetic(gradient=gradient), native)


# ---- when it runs -----------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [False, True])
def test_its_return_code_reaches_the_user(graph, c_matmul):
    run = product(with_gradient(c_matmul, own(MATMUL_VJP, "matmul_vjp_fails")))
    go = tf.function(gradients) if graph else gradients
    fine = Case(MatMul(), (5, 3), (3, 4)).normals()
    assert go(run, *map(tf.constant, fine), tf.ones([5, 4])) is not None
    bad = Case(MatMul(), (5, 4), (4, 3)).normals()
    with pytest.raises(tf.errors.OpError, match=r"opgraft: .*matmul_vjp_fails.* 41"):
        go(run, *map(tf.constant, bad), tf.ones([5, 3]))


def test_only_what_is_asked_for_is_computed(compile_c):
    """One gradient of two: the function of the other is not called."""
    source = compile_c(
        MATMUL_VJP.read_text()
        + "int dw_fails(const float *x, const float *dy, int m, int k, int n, "
        "float *dw) { dw[0] = x[0] + dy[0]; return 13 + m + k + n; }"
    )
    other = "int dw_fails(const float *x, const float *dy, int m, int k, int n, float *dw)"
    declared = prototypes(MATMUL_VJP, "matmul_da") + ";" + other
    arithmetic = og.Arithmetic(gradient=c_function(source, declared))
    a, w = PLAIN.normals()

    def input_only(a):
        with tf.GradientTape() as tape:
            tape.watch(a)
            y = product(arithmetic)(a, w)
        return tape.gradient(y, a)

    due = np.ones((5, 4), np.float32) @ w.T
    np.testing.assert_allclose(tf.function(input_only)(tf.constant(a)), due, rtol=1e-5)


COUNTING = """
#include <unistd.h>
static volatile int inside, met;
void v(const float *dy, int m, int k, int n, float *da, float *db)
{
    if (__sync_add_and_fetch(&inside, 1) > 1)
        met = 1;
    usleep(20000);
    for (int i = 0; i < m * k; i++)
        da[i] = met;
    for (int i = 0; i < k * n; i++)
        db[i] = dy[0];
    __sync_sub_and_fetch(&inside, 1);
}
"""


@pytest.mark.parametrize("thread_safe", [False, True])
def test_two_calls_at_once_only_if_it_is_safe(thread_safe, compile_c):
    arithmetic = og.Arithmetic(gradient=c_function(compile_c(COUNTING), thread_safe=thread_safe))
    run = tf.function(lambda *operands: gradients(product(arithmetic), *operands))
    operands = [tf.constant(o) for o in (*PLAIN.normals(), PLAIN.upstream())]
    run(*operands)
    met = []

    def work():
        met.extend(bool(np.any(run(*operands)[0])) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any(met) is thread_safe


def test_a_library_that_has_changed(compile_c):
    """Made anew it is read anew; what was traced keeps the old."""
    twice = written(BOTH).replace("DA[i*K+l] += ", "DA[i*K+l] += 2 * ")
    source = compile_c(written(BOTH))
    old = c_function(source, BOTH)
    run = product(og.Arithmetic(gradient=old))
    traced = tf.function(lambda *operands: gradients(run, *operands))
    operands = [tf.constant(o, tf.float32) for o in (*PLAIN.integers(), PLAIN.integer_upstream())]
    before = traced(*operands)[0].numpy()
    compile_c(twice)
    new = c_function(source, BOTH)
    assert new != old
    np.testing.assert_array_equal(
        gradients(product(og.Arithmetic(gradient=new)), *operands)[0], 2 * before
    )
    np.testing.assert_array_equal(traced(*operands)[0], before)
