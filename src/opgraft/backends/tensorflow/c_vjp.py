"""Gradients by the user's C functions.

The C function sees plain operands in its own element type: two matrices, or an NHWC
image that is padded already and a kernel, of one group. The contraction is composed of
such plain parts by TensorFlow's operations, each part is given the C function as its
gradient, and a tape does the rest.
"""

import functools

import tensorflow as tf

from opgraft.arithmetic import Arithmetic
from opgraft.backends.tensorflow import backward, native
from opgraft.backends.tensorflow.graft import Rule, Tensors, apply, apply_apart
from opgraft.backends.tensorflow.library import follow_once, ops
from opgraft.backends.tensorflow.symbols import attributes
from opgraft.errors import UnsupportedError
from opgraft.gradients import CVjp
from opgraft.native import core, vjp
from opgraft.products import CSymbol
from opgraft.spec import Contraction, Conv2D, DepthwiseConv2D, MatMul


def gradients(gradient: CVjp, c: Contraction, upstream, left, right) -> Tensors:
    """The gradients of both operands. Second order through them is an error."""
    backward.refuse_unknown_kernel(c, right)
    parts = PlainParts(vjp.serving(gradient.symbols, c), gradient.forward)

    def run(left, right, upstream):
        def pulled_back():
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([left, right])
                y = parts.compose(c, left, right)
            return tape.gradient(
                y, [left, right], upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )

        return backward.unless_empty(pulled_back, upstream, [left, right])

    def refuse(*_):
        raise UnsupportedError(
            f"a second derivative was asked for, and the C function {parts.names} gives the first "
            "only. Use og.gradients.native, or a vjp in TensorFlow operations: "
            "og.gradients.custom(...)"
        )

    rule = Rule(f"the gradient by {parts.names}", refuse)
    return apply_apart(run, lambda _: rule, [left, right, upstream])


class PlainParts:
    """A contraction as plain parts whose gradients are C functions. Only shapes are computed."""

    def __init__(self, symbols: list[CSymbol], forward: Arithmetic | None) -> None:
        self._symbols, self._forward = symbols, forward
        self._convolves = symbols[0].kind == "conv2d_vjp"
        self.names = " and ".join(symbol.symbol for symbol in symbols)

    def compose(self, c: Contraction, left, right) -> tf.Tensor:
        dtype, own = left.dtype, self._symbols[0].operand_dtype
        left, right = tf.cast(left, own), tf.cast(right, own)
        if isinstance(c, MatMul):
            return tf.cast(self._matmul(c, left, right), dtype)
        assert isinstance(c, Conv2D)
        return tf.cast(self._conv2d(c, left, right), dtype)

    def _matmul(self, c: MatMul, a, b) -> tf.Tensor:
        a = tf.linalg.matrix_transpose(a) if c.transpose_a else a
        b = tf.linalg.matrix_transpose(b) if c.transpose_b else b
        if b.shape.rank == 2:  # one kernel for the whole batch: its rows are rows of one product
            rows = tf.reshape(a, (-1, a.shape[-1] or tf.shape(a)[-1]))
            shape = tf.concat([tf.shape(a)[:-1], tf.shape(b)[-1:]], 0)
            return tf.reshape(self._matrices(rows, b), shape)
        batch = tf.broadcast_dynamic_shape(tf.shape(a)[:-2], tf.shape(b)[:-2])
        stacks = [
            tf.reshape(
                tf.broadcast_to(x, tf.concat([batch, tf.shape(x)[-2:]], 0)),
                tf.concat([[-1], tf.shape(x)[-2:]], 0),
            )
            for x in (a, b)
        ]
        pairs = zip(*map(_unstack, stacks), strict=True)
        y = tf.stack([self._matrices(*pair) for pair in pairs])
        return tf.reshape(y, tf.concat([batch, tf.shape(a)[-2:-1], tf.shape(b)[-1:]], 0))

    def _matrices(self, a, b, forward=None) -> tf.Tensor:
        m, k, n = tf.shape(a)[0], tf.shape(a)[1], tf.shape(b)[1]
        if forward is None:
            forward = functools.partial(self._contract, MatMul(), a, b)
        return self._part(a, b, (m, n), {"m": m, "k": k, "n": n}, forward)

    def _contract(self, c: Contraction, a, b) -> tf.Tensor:
        assert self._forward is not None
        return backward.contract(c, self._forward, a, b)

    def _conv2d(self, c: Conv2D, x, kernel) -> tf.Tensor:
        x = tf.transpose(x, (0, 2, 3, 1)) if c.channels_first else x
        groups = c.groups
        if isinstance(c, DepthwiseConv2D):
            kh, kw, groups, multiplier = kernel.shape
            kernel = tf.reshape(kernel, (kh, kw, 1, groups * multiplier))
        x = native.padded(c, x, kernel)
        plain = Conv2D(strides=c.strides, dilations=c.dilations)
        one_group = self._convolution if self._convolves else self._by_patches
        pairs = zip(tf.split(x, groups, 3), tf.split(kernel, groups, 3), strict=True)
        y = tf.concat([one_group(plain, *pair) for pair in pairs], 3)
        return tf.transpose(y, (0, 3, 1, 2)) if c.channels_first else y

    def _convolution(self, c: Conv2D, x, kernel) -> tf.Tensor:
        out_h, out_w = _output_size(c, x, kernel)
        batch, in_h, in_w, in_ch = tf.unstack(tf.shape(x))
        filter_h, filter_w, _, out_ch = kernel.shape
        sizes = {
            "batch": batch, "in_h": in_h, "in_w": in_w, "in_ch": in_ch, "filter_h": filter_h,
            "filter_w": filter_w, "out_ch": out_ch, "out_h": out_h, "out_w": out_w,
            "stride_h": c.strides[0], "stride_w": c.strides[1], "stride": c.strides[0],
            "dilation_h": c.dilations[0], "dilation_w": c.dilations[1],
            "dilation": c.dilations[0], "groups": 1,
        }  # fmt: skip
        shape = (batch, out_h, out_w, out_ch)
        return self._part(x, kernel, shape, sizes, functools.partial(self._contract, c, x, kernel))

    def _by_patches(self, c: Conv2D, x, kernel) -> tf.Tensor:
        kh, kw, ins, outs = kernel.shape
        patches = tf.image.extract_patches(
            x, [1, kh, kw, 1], [1, *c.strides, 1], [1, *c.dilations, 1], "VALID"
        )

        def forward():  # of the patches it is that of the convolution, flat
            return tf.reshape(self._contract(c, x, kernel), (-1, outs))

        flat = self._matrices(
            tf.reshape(patches, (-1, kh * kw * ins)), tf.reshape(kernel, (-1, outs)), forward
        )
        return tf.reshape(flat, tf.concat([tf.shape(patches)[:3], [outs]], 0))

    def _part(self, a, b, shape, sizes: dict, forward) -> tf.Tensor:
        """An operation of a shape, whose gradient is the C function's.

        Its value is asked for only if a C function takes it, and is then that of `forward`.
        """
        vector = tf.stack([tf.cast(sizes.get(role, 0), tf.int64) for role in core.roles()])

        def value(a, b):
            return [tf.zeros(shape, a.dtype) if self._forward is None else forward()]

        def call(inputs, outputs, upstreams):
            return self._call(*inputs, outputs[0], upstreams[0], vector)

        return apply(value, Rule(self.names, call), [a, b])[0]

    def _call(self, a, b, y, dy, sizes) -> Tensors:
        follow_once()
        found: dict[int, tf.Tensor] = {}
        for symbol in self._symbols:
            written = [vjp.writes(symbol, gradient) for gradient in vjp.GRADIENTS]
            both = ops().opgraft_vjp(
                input=a, kernel=b, output=y, upstream=dy, sizes=sizes, writes_input=written[0],
                writes_kernel=written[1], **attributes(symbol),
            )  # fmt: skip
            found |= {i: both[i] for i in (0, 1) if written[i]}
        return [tf.reshape(found[i], tf.shape(operand)) for i, operand in enumerate((a, b))]


def _output_size(c: Conv2D, x, kernel) -> list:
    return [
        (tf.shape(x)[i + 1] - (kernel.shape[i] - 1) * c.dilations[i] - 1) // c.strides[i] + 1
        for i in (0, 1)
    ]


def _unstack(stack) -> Tensors:
    if stack.shape[0] is None:
        raise UnsupportedError(
            "the gradient of a batched matrix product by a C function needs a batch size that is "
            "known when the graph is traced; give the input a fixed batch size"
        )
    return tf.unstack(stack)
