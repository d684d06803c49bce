"""Backward: through a C function flows exactly the gradient of the exact operation.

Where TensorFlow has the operation and its gradient on the CPU, ours is the same
to the last bit. Where it has none, ours stays within a few roundings of a
float64 gradient in NumPy, and is exact on small integers.
"""

import contextlib
import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from broken import gradients as wrong
from cases import (
    CASES,
    CONVOLUTIONS,
    MATMULS,
    SELECTION,
    Case,
    compute,
    every,
    exact_meaning,
    meaning,
)
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework import ops as framework_ops

import opgraft as og
from opgraft import reference, values
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul

pytestmark = pytest.mark.filterwarnings("ignore:the Python function")  # that it is slow

# ---- what ours is compared with: TensorFlow's operation, and `reference.vjp` ----------------


def tensorflow_op(c: Contraction, case: Case):
    """TensorFlow's own operation, if it and its gradient run on the CPU, else None."""
    if isinstance(c, MatMul):
        transposes = dataclasses.asdict(c)
        return lambda a, b: tf.linalg.matmul(a, b, **transposes)
    if c.groups > 1 or c.channels_first or (c.pad_value and c.padding != "VALID"):
        return None
    if c.padding == "VALID" and 0 in case.output[1:3]:
        return None  # no output: an error in TensorFlow
    if not isinstance(c, DepthwiseConv2D):
        return _conv2d(c) if c.dilations == (1, 1) else _dilated(c)
    if case.left[0] == 0:
        return None  # TensorFlow leaves the memory of the kernel's gradient as it was
    if c.strides[0] != c.strides[1] or (c.dilations != (1, 1) and c.strides != (1, 1)):
        return None
    return lambda x, kernel: tf.nn.depthwise_conv2d(
        x, kernel, [1, *c.strides, 1], _padding(c), dilations=list(c.dilations)
    )


def _padding(c: Conv2D):
    return c.padding if isinstance(c.padding, str) else [[0, 0], *map(list, c.padding), [0, 0]]


def _conv2d(c: Conv2D):
    return lambda x, kernel: tf.nn.conv2d(x, kernel, [1, *c.strides, 1], _padding(c))


def _dilated(c: Conv2D):
    """Composed by TensorFlow itself, at stride 1."""
    if c.strides != (1, 1) or not isinstance(c.padding, str):
        return None
    return lambda x, kernel: tf.nn.convolution(
        x, kernel, padding=c.padding, dilations=list(c.dilations)
    )


# ---- the checks --------------------------------------------------------------------------


def gradients(function, left, right, upstream):
    left, right = tf.convert_to_tensor(left), tf.convert_to_tensor(right)
    with tf.GradientTape() as tape:
        tape.watch([left, right])
        y = function(left, right)
    return tape.gradient(y, [left, right], upstream)


def in_mode(mode: str, function):
    """`gradients` of a function, as a function, eagerly or as a graph."""

    def run(left, right, upstream):
        return gradients(function, left, right, upstream)

    return run if mode == "eager" else tf.function(run)


def check_gradient(case: Case, arithmetic, mode: str = "eager") -> None:
    """Equal to TensorFlow's bits; else to float64 within 4 roundings of the terms' magnitude."""
    operands = [*case.normals(), case.upstream()]
    tensors = [tf.constant(operand) for operand in operands]
    got = in_mode(mode, lambda a, b: compute(case.contraction, arithmetic, a, b))(*tensors)
    assert None not in got
    native = tensorflow_op(case.contraction, case)
    if native is not None:
        for ours, theirs in zip(got, in_mode(mode, native)(*tensors), strict=True):
            assert ours.shape == theirs.shape
            assert ours.numpy().tobytes() == theirs.numpy().tobytes()
        return
    exact = reference.vjp(case.contraction, *operands)
    magnitude = dataclasses.replace(case.contraction, pad_value=abs(case.contraction.pad_value))
    bound = reference.vjp(magnitude, *map(abs, operands))
    for ours, expected, terms in zip(got, exact, bound, strict=True):
        assert ours.dtype == tf.float32
        assert tuple(ours.shape) == expected.shape
        assert np.all(abs(ours.numpy() - expected) <= 4 * 2.0**-24 * terms)


def check_adjoint(case: Case, arithmetic) -> None:
    """<dy, f(v, w) - f(0, w)> = <gx, v> and <dy, f(x, u)> = <gw, u>, in small integers: exact."""
    c = case.contraction
    (x, w), (v, u) = (
        [o.astype(np.float32) for o in case.integers(salt)] for salt in ("", "direction")
    )
    upstream = case.integer_upstream().astype(np.float32)
    gx, gw = gradients(lambda a, b: compute(c, arithmetic, a, b), x, w, tf.constant(upstream))
    assert None not in (gx, gw)
    along = compute(c, arithmetic, v, w).numpy() - compute(c, arithmetic, 0 * v, w).numpy()
    assert np.vdot(upstream, along) == np.vdot(gx, v)
    assert np.vdot(upstream, compute(c, arithmetic, x, u)) == np.vdot(gw, u)


both_modes = pytest.mark.parametrize("mode", ["eager", "graph"])


@every(CASES)
def test_the_reference_keeps_the_adjoint_identity_with_the_loop_nest(case):
    """Which defines it: the loop nest shares nothing with `reference.vjp`."""
    (x, w), (v, u) = (
        [o.astype(np.float64) for o in case.integers(salt)] for salt in ("", "direction")
    )
    dy = case.integer_upstream()
    gx, gw = reference.vjp(case.contraction, x, w, dy)
    assert gx.shape == case.left
    assert gw.shape == case.right
    along = meaning(case, np.multiply, v, w) - meaning(case, np.multiply, 0 * v, w)
    assert np.vdot(dy, along) == np.vdot(gx, v)
    assert np.vdot(dy, meaning(case, np.multiply, x, u)) == np.vdot(gw, u)


# ---- the table ---------------------------------------------------------------------------


@both_modes
@every(CASES)
def test_gradient_through_c_is_that_of_the_exact_operation(case, mode, c_both):
    check_gradient(case, c_both, mode)


@every(CASES)
def test_adjoint_identity(case, c_both):
    check_adjoint(case, c_both)


@every(CASES)
def test_gradient_on_integers_is_exact(case, c_both):
    operands = [*case.integers(), case.integer_upstream()]
    got = gradients(
        lambda a, b: compute(case.contraction, c_both, a, b),
        *(tf.constant(operand, tf.float32) for operand in operands),
    )
    for ours, expected in zip(got, reference.vjp(case.contraction, *operands), strict=True):
        np.testing.assert_array_equal(ours, expected)


@every(CASES)
def test_gradient_of_the_exact_arithmetic(case):
    check_gradient(case, og.exact)
    left, right = (operand.astype(np.float32) for operand in case.integers())
    np.testing.assert_array_equal(
        compute(case.contraction, og.exact, left, right), exact_meaning(case)
    )


@both_modes
@every(SELECTION)
def test_gradient_through_a_python_function(case, mode):
    check_gradient(case, og.python_function(np.matmul), mode)


def test_bits_are_compared_wherever_there_are_some():
    """At least half of the table is compared bit for bit, and every kind of contraction."""
    with_bits = [case for case in CASES if tensorflow_op(case.contraction, case)]
    assert len(with_bits) >= len(CASES) // 2
    assert {type(case.contraction) for case in with_bits} == {MatMul, Conv2D, DepthwiseConv2D}


WITHOUT_BITS = [
    case
    for case in CONVOLUTIONS
    if not tensorflow_op(case.contraction, case)
    and 0 not in case.output
    and not case.contraction.pad_value
]


@pytest.mark.filterwarnings("ignore:When dilation rate")
@every(WITHOUT_BITS)
def test_where_no_bits_are_compared_the_gradient_is_right_and_tensorflows_if_it_has_one(case):
    """Without oneDNN TensorFlow raises, or is another operation: depthwise, strided and dilated.

    With oneDNN it has some of these gradients, summed in another order than ours.
    """
    check_adjoint(case, og.exact)
    c = case.contraction
    depthwise = isinstance(c, DepthwiseConv2D)
    four = (lambda pair: [1, 1, *pair]) if c.channels_first else (lambda pair: [1, *pair, 1])
    pads = _padding(c)
    if c.channels_first and not isinstance(pads, str):
        pads = [pads[0], pads[3], *pads[1:3]]
    options = {"dilations": list(c.dilations) if depthwise else four(c.dilations)}
    if c.channels_first:
        options["data_format"] = "NCHW"
    op = tf.nn.depthwise_conv2d if depthwise else tf.nn.conv2d
    shapes = []

    def native(x, kernel):
        y = op(x, kernel, four(c.strides), pads, **options)
        shapes.append(tuple(y.shape))
        return y

    refusals = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, ValueError)
    theirs = None
    with contextlib.suppress(*refusals):
        theirs = gradients(native, *case.normals(), None)
    if theirs is not None and shapes[0] == case.output:
        ours = gradients(lambda a, b: compute(c, og.exact, a, b), *case.normals(), None)
        for mine, native_one in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, native_one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@every([case for case in SELECTION if tensorflow_op(case.contraction, case)])
def test_other_floats_have_the_same_bits_too(case, dtype, c_both):
    tensors = [tf.cast(o, dtype) for o in (*case.normals(), case.upstream())]
    ours = gradients(lambda a, b: compute(case.contraction, c_both, a, b), *tensors)
    theirs = gradients(tensorflow_op(case.contraction, case), *tensors)
    for mine, native in zip(ours, theirs, strict=True):
        assert mine.dtype == dtype
        assert mine.numpy().tobytes() == native.numpy().tobytes()


UNKNOWN = [  # a selection, and all whose SAME padding is composed from sizes at run time
    case
    for case in CONVOLUTIONS
    if case in SELECTION
    or (case.contraction.padding == "SAME" and not tensorflow_op(case.contraction, case))
]


@every(UNKNOWN)
def test_gradient_with_unknown_sizes(case, c_both):
    function = tf.function(
        in_mode("eager", lambda a, b: compute(case.contraction, c_both, a, b)),
        input_signature=[tf.TensorSpec([None] * 4)] * 3,
    )
    operands = [*case.integers(), case.integer_upstream()]
    got = function(*(tf.constant(operand, tf.float32) for operand in operands))
    for ours, expected in zip(got, reference.vjp(case.contraction, *operands), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_integer_operands_have_no_gradient(c_matmul):
    a, b = tf.constant([[1, 2]]), tf.constant([[3], [4]])
    assert gradients(lambda a, b: og.matmul(a, b, arithmetic=c_matmul), a, b, None) == [None, None]


# ---- higher orders, tapes, checkpoints ---------------------------------------------------


def second_order(function, x, w, upstream, v, u):
    """Gradients of <gx, v> + <gw, u> for x, w and the upstream."""
    tensors = [tf.constant(value, tf.float32) for value in (x, w, upstream)]
    with tf.GradientTape() as outer:
        outer.watch(tensors)
        gx, gw = gradients(function, *tensors)
        total = tf.reduce_sum(gx * v) + tf.reduce_sum(gw * u)
    return outer.gradient(total, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)


@every(CASES)
def test_second_order_on_integers_is_exact(case, c_both):
    """<gx, v> = <dy, C(v, w)> without pad values, and <gw, u> = <dy, C(x, u)>: both bilinear."""
    c = case.contraction
    (x, w), (v, u) = (
        [o.astype(np.float32) for o in case.integers(salt)] for salt in ("", "direction")
    )
    dy = case.integer_upstream().astype(np.float32)
    got = second_order(lambda a, b: compute(c, c_both, a, b), x, w, dy, v, u)
    zero_padded = dataclasses.replace(c, pad_value=0.0) if isinstance(c, Conv2D) else c
    plain = dataclasses.replace(case, contraction=zero_padded)
    expected = (
        reference.vjp(c, x, u, dy)[0],
        reference.vjp(zero_padded, v, w, dy)[1],
        meaning(plain, np.multiply, v, w) + meaning(case, np.multiply, x, u),
    )
    for ours, exact in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, exact)


@every([case for case in SELECTION if tensorflow_op(case.contraction, case)])
def test_second_order_has_the_same_bits(case, c_both):
    values_ = (*case.normals(), case.upstream(), *case.integers("direction"))
    ours = second_order(lambda a, b: compute(case.contraction, c_both, a, b), *values_)
    theirs = second_order(tensorflow_op(case.contraction, case), *values_)
    for mine, native in zip(ours, theirs, strict=True):
        assert mine.numpy().tobytes() == native.numpy().tobytes()


SMALL = [
    Case(Conv2D(strides=(2, 1), padding="SAME"), (2, 4, 5, 2), (3, 2, 2, 3)),
    Case(Conv2D(groups=2, dilations=(1, 2)), (1, 4, 5, 4), (2, 2, 2, 2)),
    Case(DepthwiseConv2D(padding="SAME", channels_first=True), (1, 2, 4, 3), (2, 3, 2, 2)),
    Case(MatMul(transpose_b=True), (3, 4), (2, 4)),
]


@pytest.mark.parametrize("vectorised", [True, False])
@every(SMALL)
def test_jacobian(case, vectorised, c_both):
    x, w = (tf.constant(operand, tf.float32) for operand in case.integers())
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, w])
        y = compute(case.contraction, c_both, x, w)
    got = tape.jacobian(y, [x, w], experimental_use_pfor=vectorised)
    units = np.eye(y.shape.num_elements(), dtype=np.float32).reshape(-1, *y.shape)
    rows = [reference.vjp(case.contraction, x, w, unit) for unit in units]
    for ours, expected in zip(got, zip(*rows, strict=True), strict=True):
        np.testing.assert_array_equal(ours, np.reshape(expected, ours.shape))


@every(SMALL)
def test_a_persistent_tape_gives_the_same_gradient_again(case, c_both):
    x, w = map(tf.constant, case.normals())
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, w])
        y = compute(case.contraction, c_both, x, w)
    first, again = (tape.gradient(y, [x, w]) for _ in range(2))
    alone = [tape.gradient(y, operand) for operand in (x, w)]
    for one, two, three in zip(first, again, alone, strict=True):
        assert one.numpy().tobytes() == two.numpy().tobytes() == three.numpy().tobytes()


@both_modes
@every(SMALL)
def test_nested_tapes(case, mode, c_both):
    """A gradient penalty: the outer gradient of an inner gradient's square."""

    def penalty(function, x, w):
        with tf.GradientTape() as outer:
            outer.watch(w)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.tanh(function(x, w))
            gradient = inner.gradient(y, x)
            total = tf.reduce_sum(gradient**2)
        return outer.gradient(total, w)

    run = penalty if mode == "eager" else tf.function(penalty)
    x, w = map(tf.constant, case.normals())
    got = run(lambda a, b: compute(case.contraction, c_both, a, b), x, w)
    expected = run(lambda a, b: compute(case.contraction, og.exact, a, b), x, w)
    assert np.any(got)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def _checkpointing():
    ways = [pytest.param(tf.recompute_grad, id="tf.recompute_grad")]
    missing = pytest.mark.skipif(not hasattr(keras, "remat"), reason="this Keras has no remat")
    return [*ways, pytest.param(getattr(keras, "remat", None), id="keras.remat", marks=missing)]


@pytest.mark.parametrize("checkpoint", _checkpointing())
@both_modes
@every(SMALL)
def test_recomputed_forward(case, mode, checkpoint, c_both):
    def network(a, b):
        return tf.tanh(compute(case.contraction, c_both, a, b))

    operands = [tf.constant(o) for o in (*case.normals(), case.upstream())]
    got = in_mode(mode, checkpoint(network))(*operands)
    for ours, plain in zip(got, in_mode(mode, network)(*operands), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-6, atol=1e-6)


def test_a_variable_as_kernel(c_both):
    case = SMALL[0]
    x, w = case.normals()
    kernel = tf.Variable(w)
    with tf.GradientTape() as tape:
        y = compute(case.contraction, c_both, tf.constant(x), kernel)
    got = tape.gradient(y, kernel, tf.constant(case.upstream()))
    expected = gradients(tensorflow_op(case.contraction, case), x, w, tf.constant(case.upstream()))
    assert got.numpy().tobytes() == expected[1].numpy().tobytes()


# ---- only what is needed -----------------------------------------------------------------

BACKWARD = {
    Conv2D: ("Conv2DBackpropInput", "Conv2DBackpropFilter"),
    DepthwiseConv2D: ("DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter"),
}
ONE_OPERATION = [
    Case(Conv2D(strides=(2, 1), padding="SAME"), (2, 4, 5, 2), (3, 2, 2, 3)),
    Case(DepthwiseConv2D(strides=(2, 2), padding="SAME"), (2, 4, 5, 2), (3, 2, 2, 3)),
]


@pytest.mark.parametrize("wanted", [0, 1])
@every(ONE_OPERATION)
def test_eagerly_only_the_needed_gradient_is_computed(case, wanted, c_both):
    operands = [tf.constant(operand) for operand in case.normals()]
    ran = []

    def observe(op_type, *_, **__):
        ran.append(op_type)

    with tf.GradientTape() as tape:
        tape.watch(operands[wanted])
        y = compute(case.contraction, c_both, *operands)
    op_callbacks.add_op_callback(observe)
    try:
        tape.gradient(y, operands[wanted])
    finally:
        op_callbacks.remove_op_callback(observe)
    names = BACKWARD[type(case.contraction)]
    assert names[wanted] in ran
    assert names[1 - wanted] not in ran


def gradient_graph(case: Case, arithmetic, wanted):
    """The GraphDef of a gradient, without what the runtime prunes."""

    def run(left, right):
        with tf.GradientTape() as tape:
            tape.watch([left, right])
            y = compute(case.contraction, arithmetic, left, right)
        return tape.gradient(y, [left, right][wanted])

    specs = [tf.TensorSpec(shape) for shape in (case.left, case.right)]
    graph = tf.function(run).get_concrete_function(*specs).graph
    names = [tensor.op.name for tensor in graph.outputs]
    return tf.compat.v1.graph_util.extract_sub_graph(graph.as_graph_def(), names)


@pytest.mark.parametrize("wanted", [0, 1])
@every([*ONE_OPERATION, *SMALL])
def test_in_a_graph_only_the_needed_gradient_is_left(case, wanted, c_both):
    nodes = gradient_graph(case, c_both, wanted).node
    kinds = {node.op for node in nodes}
    assert not [kind for kind in kinds if kind.startswith("Opgraft")]  # the forward is not needed
    named = [name for name in BACKWARD_NAMES[type(case.contraction)]
             if any(name in node.name.split("/") for node in nodes)]  # fmt: skip
    assert named == [BACKWARD_NAMES[type(case.contraction)][wanted]]


BACKWARD_NAMES = {
    MatMul: ("OpgraftMatMulBackpropInput", "OpgraftMatMulBackpropKernel"),
    Conv2D: ("OpgraftConv2DBackpropInput", "OpgraftConv2DBackpropFilter"),
    DepthwiseConv2D: (
        "OpgraftDepthwiseConv2DBackpropInput",
        "OpgraftDepthwiseConv2DBackpropFilter",
    ),
}
FORWARD = {
    MatMul: "OpgraftMatMul",
    Conv2D: "OpgraftConv2D",
    DepthwiseConv2D: "OpgraftDepthwiseConv2D",
}


@every([*ONE_OPERATION, *SMALL])
def test_the_graph_says_its_arithmetic_and_names_its_backward(case, c_both):
    @tf.function
    def step(left, right):
        with tf.GradientTape() as tape:
            tape.watch([left, right])
            y = compute(case.contraction, c_both, left, right)
            loss = tf.reduce_sum(y**2)
        return loss, tape.gradient(loss, [left, right])

    specs = [tf.TensorSpec(shape) for shape in (case.left, case.right)]
    nodes = step.get_concrete_function(*specs).graph.as_graph_def().node
    kind = type(case.contraction)
    (forward,) = [node for node in nodes if node.op == FORWARD[kind]]
    assert values.from_json(forward.attr["arithmetic"].s.decode()) == c_both
    symbol = c_both.product.symbol_for(case.contraction)
    assert forward.attr["symbol"].s.decode() == symbol.symbol
    assert forward.attr["library_hash"].s.decode() == symbol.hash
    if kind is not MatMul:
        assert tuple(forward.attr["strides"].list.i) == case.contraction.strides
        assert tuple(forward.attr["dilations"].list.i) == case.contraction.dilations
    for name in BACKWARD_NAMES[kind]:
        assert any(name in node.name.split("/") for node in nodes)


def test_the_gradient_registry_does_not_grow(c_both):
    registry = framework_ops.gradient_registry._registry
    case = SMALL[0]

    def trace():
        gradient_graph(case, c_both, 1)
        gradient_graph(case, og.python_function(lambda a, b: a @ b), 1)
        check_gradient(case, c_both)

    trace()
    before = set(registry)
    for _ in range(5):
        trace()
    assert set(registry) == before


# ---- the checks catch what is wrong ------------------------------------------------------


def fails(check, case: Case, arithmetic) -> bool:
    try:
        check(case, arithmetic)
    except AssertionError:
        return True
    return False


def first_caught(check, arithmetic, cases) -> str | None:
    """The first case on which the check fails."""
    return next((case.id for case in cases if fails(check, case, arithmetic)), None)


# About half of the table: with images and without empty operands, every kind.
BROAD = [case for case in CASES if 0 not in (*case.left, *case.right, *case.output)][::2]


@pytest.mark.parametrize("check", [check_gradient, check_adjoint])
@pytest.mark.parametrize("name", sorted(set(wrong.MISTAKES) - {"no_mistake"}))
def test_a_wrong_gradient_is_caught(name, check, c_both):
    arithmetic = dataclasses.replace(c_both, gradient=wrong.Wrong(name))
    assert first_caught(check, arithmetic, BROAD) is not None


@pytest.mark.parametrize("check", [check_gradient, check_adjoint])
def test_the_gradient_without_a_mistake_passes(check, c_both):
    arithmetic = dataclasses.replace(c_both, gradient=wrong.Wrong("no_mistake"))
    assert first_caught(check, arithmetic, BROAD) is None


def test_a_wrong_forward_breaks_the_adjoint_identity(request, c_matmul):
    broken = request.path.parent / "broken"
    rotated = og.c_function(broken / "conv2d.c", flags=("-O1", "-DROTATED_KERNEL"))
    transposed = og.c_function(broken / "matmul.c", flags=("-O1", "-DRESULT_TRANSPOSED"))
    assert first_caught(check_adjoint, rotated | c_matmul, BROAD) is not None
    assert first_caught(check_adjoint, transposed, MATMULS) is not None
