"""The two backward contractions as contractions of their own, under any arithmetic.

For y = C(x, w), dx and dw are again a matrix product or a convolution:

  - matrix product: dA = dy·Bᵀ and dB = Aᵀ·dy;
  - input of a convolution: dy, with zeros between its elements for the strides, is
    convolved with the kernel rotated by 180° and its channels exchanged;
  - kernel of a convolution: the input, its batch taken for channels, is convolved with
    dy as the kernel; strides become dilations, and dilations strides.
"""

import tensorflow as tf

from opgraft.arithmetic import Arithmetic, exact
from opgraft.backends.tensorflow import native
from opgraft.errors import UnsupportedError
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul


def input_gradient(arithmetic: Arithmetic, c: Contraction, upstream, left, right) -> tf.Tensor:
    """dx under an arithmetic."""
    if arithmetic == exact:
        return native.input_vjp(c, upstream, left, right)
    if isinstance(c, MatMul):
        if c.transpose_a:
            back, operands = MatMul(c.transpose_b, True), (right, upstream)
        else:
            back, operands = MatMul(False, not c.transpose_b), (upstream, right)
        return _unbroadcast(contract(back, arithmetic, *operands), left, upstream)
    refuse_unknown_kernel(c, right)
    assert isinstance(c, Conv2D)
    conv = c

    def compute():
        return [_conv_input(arithmetic, conv, upstream, left, right)]

    return unless_empty(compute, upstream, [left])[0]


def kernel_gradient(arithmetic: Arithmetic, c: Contraction, upstream, left, right) -> tf.Tensor:
    """dw under an arithmetic."""
    if arithmetic == exact:
        return native.kernel_vjp(c, upstream, left, right)
    if isinstance(c, MatMul):
        if c.transpose_b:
            back, operands = MatMul(True, c.transpose_a), (upstream, left)
        else:
            back, operands = MatMul(not c.transpose_a, False), (left, upstream)
        return _unbroadcast(contract(back, arithmetic, *operands), right, upstream)
    refuse_unknown_kernel(c, right)
    assert isinstance(c, Conv2D)
    conv = c

    def compute():
        return [_conv_kernel(arithmetic, conv, upstream, left, right)]

    return unless_empty(compute, upstream, [right])[0]


def contract(c: Contraction, arithmetic: Arithmetic, left, right) -> tf.Tensor:
    """Under an arithmetic, by the door that every contraction goes through."""
    from opgraft.backends.tensorflow import contraction

    return contraction.contract(c, arithmetic, left, right)


def _unbroadcast(gradient, operand, upstream) -> tf.Tensor:
    """Summed over the batch dimensions along which the operand was broadcast."""
    if operand.shape.rank == 2 and upstream.shape.rank == 2:
        return gradient
    axes, _ = tf.raw_ops.BroadcastGradientArgs(
        s0=tf.shape(operand)[:-2], s1=tf.shape(upstream)[:-2]
    )
    summed = tf.reshape(tf.reduce_sum(gradient, axes), tf.shape(operand))
    summed.set_shape(operand.shape)
    return summed


def refuse_unknown_kernel(c: Contraction, kernel) -> None:
    """Raise where a convolution's kernel has no static size to build its gradient from."""
    if isinstance(c, Conv2D) and not kernel.shape.is_fully_defined():
        raise UnsupportedError(
            f"the gradient of this {c.type_name} needs the sizes of the kernel, which are not "
            f"known here ({kernel.shape}). Give the kernel a static shape: tf.ensure_shape, or a "
            "tf.TensorSpec with sizes"
        )


def unless_empty(compute, upstream, operands) -> list[tf.Tensor]:
    """`compute()`, gradients of these operands; zeros where there is nothing to compute."""

    def gradients():
        found = list(compute())
        for gradient, operand in zip(found, operands, strict=True):
            gradient.set_shape(operand.shape)
        return found

    def zeros():
        return [tf.zeros_like(operand) for operand in operands]

    sizes = [tensor.shape.num_elements() for tensor in (upstream, *operands)]
    if 0 in sizes:
        return zeros()
    if None not in sizes:
        return gradients()
    empty = tf.reduce_any([tf.size(tensor) == 0 for tensor in (upstream, *operands)])
    return tf.cond(empty, zeros, gradients)


# ---- convolutions, NHWC and grouped ------------------------------------------------------


def _channels_last(c: Conv2D, tensor) -> tf.Tensor:
    return tf.transpose(tensor, (0, 2, 3, 1)) if c.channels_first else tensor


def _grouped(c: Conv2D, x, kernel):
    """(groups, kernel [kh, kw, in / groups, out]) of the plain convolution that `c` is."""
    if not isinstance(c, DepthwiseConv2D):
        return c.groups, kernel
    kh, kw, channels, multiplier = kernel.shape
    return channels, tf.reshape(kernel, (kh, kw, 1, channels * multiplier))


def _reach(c: Conv2D, kernel) -> tuple[int, int]:
    """Rows and columns from a kernel's first tap to its last."""
    return tuple((kernel.shape[i] - 1) * c.dilations[i] for i in (0, 1))


def _conv_input(arithmetic: Arithmetic, c: Conv2D, upstream, left, right) -> tf.Tensor:
    x, dy = _channels_last(c, left), _channels_last(c, upstream)
    groups, kernel = _grouped(c, x, right)
    kh, kw, ins, outs = kernel.shape
    turned = tf.reshape(tf.reverse(kernel, (0, 1)), (kh, kw, ins, groups, outs // groups))
    turned = tf.reshape(
        tf.transpose(turned, (0, 1, 4, 3, 2)), (kh, kw, outs // groups, groups * ins)
    )
    reach = _reach(c, kernel)
    back = Conv2D(dilations=c.dilations, groups=groups, padding=((reach[0],) * 2, (reach[1],) * 2))
    padded = contract(back, arithmetic, _with_zeros_between(dy, c.strides), turned)
    for axis in (0, 1):
        padded = _cut(padded, axis + 1, native.side(c, axis, x, kernel)[0], tf.shape(x)[axis + 1])
    return tf.transpose(padded, (0, 3, 1, 2)) if c.channels_first else padded


def _with_zeros_between(dy, strides: tuple[int, int]) -> tf.Tensor:
    """Stride - 1 zeros after every row and column but the last."""
    for axis, stride in zip((1, 2), strides, strict=True):
        if stride == 1:
            continue
        shape = tf.shape(dy)
        spread = tf.expand_dims(dy, axis + 1)
        zeros = [[0, 0]] * 5
        zeros[axis + 1] = [0, stride - 1]
        spread = tf.pad(spread, zeros)
        size = shape[axis] * stride
        dy = tf.reshape(spread, tf.concat([shape[:axis], [size], shape[axis + 1 :]], 0))
        dy = _cut(dy, axis, 0, size - (stride - 1))
    return dy


def _cut(tensor, axis: int, first, size) -> tf.Tensor:
    """`size` entries along an axis from `first` on, zeros where the tensor has ended."""
    missing = tf.maximum(first + size - tf.shape(tensor)[axis], 0)
    zeros = [[0, 0]] * 4
    zeros[axis] = [0, missing]
    slices = [slice(None)] * 4
    slices[axis] = slice(first, first + size)
    return tf.pad(tensor, zeros)[tuple(slices)]


def _conv_kernel(arithmetic: Arithmetic, c: Conv2D, upstream, left, right) -> tf.Tensor:
    x, dy = _channels_last(c, left), _channels_last(c, upstream)
    groups, kernel = _grouped(c, x, right)
    ins = kernel.shape[2]
    reach = _reach(c, kernel)
    x = native.padded(c, x, kernel)
    for axis in (0, 1):  # what no output has seen would make the kernel larger
        rows = (tf.shape(dy)[axis + 1] - 1) * c.strides[axis] + reach[axis] + 1
        x = _cut(x, axis + 1, 0, rows)
    batch, h, w = (tf.shape(x)[i] for i in range(3))
    images = tf.transpose(tf.reshape(x, (batch, h, w, groups, ins)), (4, 1, 2, 3, 0))
    images = tf.reshape(images, (ins, h, w, groups * batch))
    back = Conv2D(strides=c.dilations, dilations=c.strides, groups=groups)
    taps = contract(back, arithmetic, images, tf.transpose(dy, (1, 2, 0, 3)))
    gradient = tf.transpose(taps, (1, 2, 0, 3))
    return tf.reshape(gradient, tf.shape(right))
