"""Gradients that are wrong in one way that people get wrong. The tests must catch each."""

import dataclasses
from typing import ClassVar

import tensorflow as tf

from opgraft.backends.tensorflow import gradient, native
from opgraft.gradients import Gradient
from opgraft.spec import Contraction, Conv2D


@dataclasses.dataclass(frozen=True)
class Wrong(Gradient):
    """The native gradient with the mistake that is named."""

    type_name: ClassVar[str] = "wrong_for_a_test"

    mistake: str


MISTAKES = {}


def mistake(function):
    """Register `function(contraction, upstream, left, right)`, which returns both gradients."""
    MISTAKES[function.__name__] = function
    return function


@gradient.vjp.register
def _(wrong: Wrong, contraction, upstream, left, right, skip):
    mistakes = MISTAKES | RIGHT_AT_FIRST
    return mistakes[wrong.mistake](contraction, upstream, left, right)


def right_gradients(contraction: Contraction, upstream, left, right):
    return (
        native.input_vjp(contraction, upstream, left, right),
        native.kernel_vjp(contraction, upstream, left, right),
    )


@mistake
def no_mistake(c, upstream, left, right):
    return right_gradients(c, upstream, left, right)


@mistake
def rotated_kernel(c, upstream, left, right):
    """The input's gradient with the kernel turned by 180 degrees once too often."""
    turned = tf.reverse(right, [0, 1]) if isinstance(c, Conv2D) else right
    return native.input_vjp(c, upstream, left, turned), native.kernel_vjp(c, upstream, left, right)


@mistake
def rotated_kernel_gradient(c, upstream, left, right):
    gx, gw = right_gradients(c, upstream, left, right)
    return gx, tf.reverse(gw, [0, 1]) if isinstance(c, Conv2D) else gw


@mistake
def odd_padding_first(c, upstream, left, right):
    """SAME whose odd row and column go above and left."""
    if isinstance(c, Conv2D) and c.padding == "SAME":
        sizes = [left.shape[axis] for axis in c.spatial_axes]
        axes = [c.axis(i, size, right.shape[i]) for i, size in enumerate(sizes)]
        c = dataclasses.replace(c, padding=tuple((axis.after, axis.before) for axis in axes))
    return right_gradients(c, upstream, left, right)


@mistake
def swapped_dilations(c, upstream, left, right):
    """Where nothing complains, because SAME gives the same output size."""
    if isinstance(c, Conv2D) and c.padding == "SAME":
        c = dataclasses.replace(c, dilations=c.dilations[::-1])
    return right_gradients(c, upstream, left, right)


@mistake
def zero_pad_value(c, upstream, left, right):
    """A kernel gradient that takes padded positions for zeros."""
    plain = dataclasses.replace(c, pad_value=0.0) if isinstance(c, Conv2D) else c
    return right_gradients(plain, upstream, left, right)


@mistake
def last_row_missing(c, upstream, left, right):
    """The output's last row sends nothing back."""
    if upstream.shape[1]:
        upstream = tf.concat([upstream[:, :-1], tf.zeros_like(upstream[:, -1:])], 1)
    return right_gradients(c, upstream, left, right)


@mistake
def mean_over_the_batch(c, upstream, left, right):
    gx, gw = right_gradients(c, upstream, left, right)
    return gx, gw / tf.cast(tf.maximum(tf.shape(left)[0], 1), gw.dtype)


@mistake
def groups_reversed(c, upstream, left, right):
    gx, gw = right_gradients(c, upstream, left, right)
    if isinstance(c, Conv2D) and c.groups > 1:
        gw = tf.concat(tf.split(gw, c.groups, 3)[::-1], 3)
    return gx, gw


@mistake
def almost_right(c, upstream, left, right):
    """Too large by one part in a million."""
    gx, gw = right_gradients(c, upstream, left, right)
    return gx * (1 + 2.0**-20), gw * (1 + 2.0**-20)


@mistake
def frozen_kernel(c, upstream, left, right):
    return native.input_vjp(c, upstream, left, right), None


@mistake
def exchanged_operands(c, upstream, left, right):
    """The first operand's gradient taken at the wrong second operand."""
    return (
        native.input_vjp(c, upstream, left, tf.zeros_like(right) + tf.reduce_mean(right)),
        native.kernel_vjp(c, upstream, left, right),
    )


@mistake
def slightly_too_large(c, upstream, left, right):
    gx, gw = right_gradients(c, upstream, left, right)
    return gx * 1.0005, gw * 1.0005


@mistake
def sign_reversed(c, upstream, left, right):
    gx, gw = right_gradients(c, upstream, left, right)
    return -gx, gw


@mistake
def frozen_input(c, upstream, left, right):
    return tf.zeros_like(left), native.kernel_vjp(c, upstream, left, right)


@mistake
def stride_one(c, upstream, left, right):
    """That of a convolution of stride 1 whose output is cut to the size of this one."""
    if not isinstance(c, Conv2D):
        return right_gradients(c, upstream, left, right)
    return of_other_strides(c, (1, 1), upstream, left, right)


@mistake
def swapped_strides(c, upstream, left, right):
    if not isinstance(c, Conv2D):
        return right_gradients(c, upstream, left, right)
    return of_other_strides(c, c.strides[::-1], upstream, left, right)


def of_other_strides(c: Conv2D, strides, upstream, left, right):
    """Where that output has no place, the upstream is dropped; where this one ends, it is zero."""
    sides = [[0, 0], [0, 0], [0, 0], [0, 0]]
    for i, axis in enumerate(c.spatial_axes):
        size, taps = left.shape[axis], right.shape[i]
        due = c.axis(i, size, taps)
        reach = (taps - 1) * c.dilations[i] + 1
        room = max(0, (size + due.before + due.after - reach) // strides[i] + 1)
        upstream = tf.gather(upstream, tf.range(min(room, due.out)), axis=axis)
        sides[axis][1] = room - min(room, due.out)
    pads = tuple(c.axis(i, left.shape[axis], right.shape[i])[:2]
                 for i, axis in enumerate(c.spatial_axes))  # fmt: skip
    other = dataclasses.replace(c, strides=strides, padding=pads)
    return right_gradients(other, tf.pad(upstream, sides), left, right)


@mistake
def not_finite(c, upstream, left, right):
    """Divides by the sum of the upstream's last row, which may be zero, and multiplies again."""
    gx, gw = right_gradients(c, upstream, left, right)
    total = 0 * tf.reduce_sum(upstream)
    return gx, gw * total / total


# ---- the first order is right, the second is not ------------------------------------------


def constant_operands(c, upstream, left, right):
    """Right, but as if it did not depend on the operands."""
    return right_gradients(c, upstream, tf.stop_gradient(left), tf.stop_gradient(right))


RIGHT_AT_FIRST = {"constant_operands": constant_operands}
