"""The exact contractions by TensorFlow's own operations, and their VJPs.

TensorFlow has no CPU gradient for grouped, dilated or channels_first
convolutions, nor any depthwise one with unequal strides. Those are composed
here from operations that have one, so `contract` is differentiable everywhere,
to any order. Where TensorFlow has the operation itself, it is used as it is,
and the gradients are the very operations that TensorFlow's own would be.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import tensorflow as tf

from opgraft.errors import ArgumentError
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul


@functools.singledispatch
def contract(contraction: Contraction, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """The exact contraction."""
    raise NotImplementedError(type(contraction).__name__)


@contract.register
def _(c: MatMul, a, b):
    return tf.linalg.matmul(a, b, transpose_a=c.transpose_a, transpose_b=c.transpose_b)


@contract.register
def _(c: Conv2D, x, kernel):
    if _has_no_output(c, x, kernel):
        return _no_output(c, x, kernel)
    _refuse_sizes_beyond_memory(c, x, kernel)
    if c.channels_first:
        return _through_channels_last(c, x, kernel)
    if is_one_operation(c):
        return tf.nn.conv2d(x, kernel, _four(c.strides), _tf_padding(c))
    if c.groups > 1:
        return _by_groups(c, x, kernel)
    x = padded(c, x, kernel)
    if c.dilations == (1, 1):
        return tf.nn.conv2d(x, kernel, _four(c.strides), "VALID")
    # Dilated: at stride 1, where TensorFlow has a gradient, then every stride-th output.
    y = tf.nn.convolution(
        x, kernel, padding="VALID", data_format="NHWC", dilations=list(c.dilations)
    )
    return y[:, :: c.strides[0], :: c.strides[1], :]


@contract.register
def _(c: DepthwiseConv2D, x, kernel):
    if _has_no_output(c, x, kernel):
        return _no_output(c, x, kernel)
    _refuse_sizes_beyond_memory(c, x, kernel)
    if c.channels_first:
        return _through_channels_last(c, x, kernel)
    if is_one_operation(c):
        return tf.nn.depthwise_conv2d(x, kernel, _four(c.strides), _tf_padding(c))
    x = padded(c, x, kernel)
    y = tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "VALID", dilations=list(c.dilations))
    return y[:, :: c.strides[0], :: c.strides[1], :]


def is_one_operation(c: Contraction) -> bool:
    """Whether TensorFlow has this contraction and its gradient as single CPU operations."""
    if isinstance(c, MatMul):
        return True
    assert isinstance(c, Conv2D)
    plain = c.dilations == (1, 1) and c.groups == 1 and not c.channels_first and not _pads_with(c)
    if isinstance(c, DepthwiseConv2D):
        return plain and c.strides[0] == c.strides[1]
    return plain


def _has_no_output(c: Conv2D, x, kernel) -> bool:
    """TensorFlow refuses such a convolution, or leaves its gradient unwritten."""
    if x.shape.rank is None or kernel.shape.rank is None:
        return False
    shape = c.output_shape(tuple(x.shape), tuple(kernel.shape))
    return 0 in shape and None not in shape[1:]


def _no_output(c: Conv2D, x, kernel):
    """The empty result, connected to its operands: their gradients are zeros."""
    nothing = tf.concat([tf.reshape(x, [-1])[:0], tf.reshape(kernel, [-1])[:0]], 0)
    shape = c.output_shape(tuple(x.shape), tuple(kernel.shape))
    return tf.reshape(nothing, [tf.shape(x)[0] if size is None else size for size in shape])


# TensorFlow's oneDNN convolution ends the process where no memory can hold the result, and where
# a size does not fit in 32 bits. Seen while shapes are known: TensorFlow alone sees later ones.
_MOST_BYTES = 2**40
_LARGEST_SIZE = 2**31 - 2


def _refuse_sizes_beyond_memory(c: Conv2D, x, kernel) -> None:
    if x.shape.rank is None or kernel.shape.rank is None:
        return
    shape = c.output_shape(tuple(x.shape), tuple(kernel.shape))
    in_bytes = math.prod(size for size in shape if size is not None) * x.dtype.size
    if in_bytes > _MOST_BYTES:
        raise ArgumentError(
            f"opgraft: the result of shape {shape} takes {in_bytes / 2**40:,.1f} TiB, more than "
            f"any machine has: {c.padding=}, {c.strides=}. Give a smaller padding, or larger "
            "strides."
        )
    for axis in (0, 1):
        size = (x.shape[c.spatial_axes[axis]] or 0) + sum(c.explicit_padding[axis])
        if max(size, c.strides[axis]) > _LARGEST_SIZE:
            raise ArgumentError(
                f"opgraft: padded to a size of {size} and with strides of {c.strides[axis]}, axis "
                f"{axis} is beyond TensorFlow's 32 bits: {c.padding=}. Give smaller ones."
            )


def _pads_with(c: Conv2D) -> bool:
    return c.pad_value != 0 and c.padding not in ("VALID", ((0, 0), (0, 0)))


def _four(pair: tuple[int, int]) -> list[int]:
    return [1, *pair, 1]


def _tf_padding(c: Conv2D):
    if isinstance(c.padding, str):
        return c.padding
    return [[0, 0], *(list(side) for side in c.padding), [0, 0]]


def _through_channels_last(c: Conv2D, x, kernel):
    y = contract(replace(c, channels_first=False), tf.transpose(x, (0, 2, 3, 1)), kernel)
    return tf.transpose(y, (0, 3, 1, 2))


def _by_groups(c: Conv2D, x, kernel):
    parts = zip(tf.split(x, c.groups, 3), tf.split(kernel, c.groups, 3), strict=True)
    return tf.concat([contract(replace(c, groups=1), a, b) for a, b in parts], 3)


def padded(c: Conv2D, x, kernel):
    """`x` with its padding written out; sizes may be unknown until run time."""
    sides = [side(c, axis, x, kernel) for axis in (0, 1)]
    return tf.pad(x, [[0, 0], *sides, [0, 0]], constant_values=tf.cast(c.pad_value, x.dtype))


def side(c: Conv2D, axis: int, x, kernel):
    if c.padding != "SAME":
        return list(c.explicit_padding[axis])
    size, taps = x.shape[axis + 1], kernel.shape[axis]
    if size is not None and taps is not None:
        return list(c.axis(axis, size, taps)[:2])
    size, taps, stride = tf.shape(x)[axis + 1], tf.shape(kernel)[axis], c.strides[axis]
    reach = (taps - 1) * c.dilations[axis] + 1
    total = tf.maximum(((size + stride - 1) // stride - 1) * stride + reach - size, 0)
    return [total // 2, total - total // 2]


# ---- vector-Jacobian products ----------------------------------------------------


def input_vjp(c: Contraction, upstream, left, right) -> tf.Tensor:
    """Gradient of the exact contraction for its first operand."""
    return _vjp(c, upstream, (left, right), 0)


def kernel_vjp(c: Contraction, upstream, left, right) -> tf.Tensor:
    """Gradient of the exact contraction for its second operand."""
    return _vjp(c, upstream, (left, right), 1)


def _vjp(c: Contraction, upstream, operands, wanted: int) -> tf.Tensor:
    with tf.name_scope(_NAMES[type(c)][wanted]):
        if isinstance(c, MatMul):
            rule = _MATMUL_RULES[wanted] if _are_matrices(*operands) else None
        else:
            rule = _CONV_RULES[wanted] if is_one_operation(c) else None

        def compute():
            if rule is None:
                return _by_tape(c, upstream, operands, wanted)
            return rule(c, upstream, *operands)

        if isinstance(c, Conv2D):
            return _or_zeros(c, upstream, operands[wanted], compute)
        return compute()


def _or_zeros(c: Conv2D, upstream, operand, compute) -> tf.Tensor:
    """The gradient, or zeros where the convolution had no output at all.

    TensorFlow refuses a kernel larger than its input, or leaves such a gradient
    unwritten; its depthwise kernel gradient is unwritten for an empty batch too.
    """
    sizes = upstream.shape.as_list() if upstream.shape.rank is not None else [None] * 4
    if 0 in sizes:
        return tf.zeros_like(operand)
    batch, *others = sizes
    always_written = c.padding == "SAME" or None not in others
    if always_written and (batch is not None or not isinstance(c, DepthwiseConv2D)):
        return compute()
    return tf.cond(tf.size(upstream) > 0, compute, lambda: tf.zeros_like(operand))


# Names of the backward operations in a graph, by contraction: for the input, for the kernel.
_NAMES = {
    MatMul: ("OpgraftMatMulBackpropInput", "OpgraftMatMulBackpropKernel"),
    Conv2D: ("OpgraftConv2DBackpropInput", "OpgraftConv2DBackpropFilter"),
    DepthwiseConv2D: (
        "OpgraftDepthwiseConv2DBackpropInput",
        "OpgraftDepthwiseConv2DBackpropFilter",
    ),
}


def _are_matrices(left, right) -> bool:
    return left.shape.rank == 2 and right.shape.rank == 2


# With A and B as stored, and A' and B' as multiplied, Y = A' B': dA' = dY B'ᵀ and dB' = A'ᵀ dY.
# A transposed operand gets the transposed product, written without a transpose of its own.
def _matmul_left(c: MatMul, upstream, _, b):
    if c.transpose_a:
        return tf.linalg.matmul(b, upstream, transpose_a=c.transpose_b, transpose_b=True)
    return tf.linalg.matmul(upstream, b, transpose_b=not c.transpose_b)


def _matmul_right(c: MatMul, upstream, a, _):
    if c.transpose_b:
        return tf.linalg.matmul(upstream, a, transpose_a=True, transpose_b=c.transpose_a)
    return tf.linalg.matmul(a, upstream, transpose_a=not c.transpose_a)


def _conv_attributes(c: Conv2D) -> dict:
    explicit = not isinstance(c.padding, str)
    pads = [0, 0, *c.padding[0], *c.padding[1], 0, 0] if explicit else []
    padding = "EXPLICIT" if explicit else c.padding
    return {"strides": _four(c.strides), "padding": padding, "explicit_paddings": pads}


def _conv_input(c: Conv2D, upstream, x, kernel):
    depthwise = isinstance(c, DepthwiseConv2D)
    raw = (
        tf.raw_ops.DepthwiseConv2dNativeBackpropInput
        if depthwise
        else tf.raw_ops.Conv2DBackpropInput
    )
    sizes = tf.shape(x)
    return raw(input_sizes=sizes, filter=kernel, out_backprop=upstream, **_conv_attributes(c))


def _conv_kernel(c: Conv2D, upstream, x, kernel):
    depthwise = isinstance(c, DepthwiseConv2D)
    raw = (
        tf.raw_ops.DepthwiseConv2dNativeBackpropFilter
        if depthwise
        else tf.raw_ops.Conv2DBackpropFilter
    )
    sizes = tf.shape(kernel)
    return raw(input=x, filter_sizes=sizes, out_backprop=upstream, **_conv_attributes(c))


# For the first operand, for the second.
_Rules = tuple[Callable[..., tf.Tensor], Callable[..., tf.Tensor]]
_MATMUL_RULES: _Rules = (_matmul_left, _matmul_right)
_CONV_RULES: _Rules = (_conv_input, _conv_kernel)


def _by_tape(c: Contraction, upstream, operands, wanted: int) -> tf.Tensor:
    """VJP of the composition. In a graph, its forward is not used and is pruned."""
    operand = operands[wanted]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(operand)
        exact = contract(c, *operands)
    gradient = tape.gradient(
        exact, operand, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    gradient.set_shape(operand.shape)
    return gradient
