"""The operations: check, describe as a `Contraction`, hand to the backend.

They take tensors, arrays, variables and KerasTensors, eagerly and in graphs.
"""

import string
from typing import Any, NamedTuple

import keras

from opgraft import recording, spec, values
from opgraft.arithmetic import Arithmetic, exact, standardize
from opgraft.backends import backend, opaque
from opgraft.errors import ArgumentError
from opgraft.spec import Contraction, MatMul


@keras.saving.register_keras_serializable("opgraft")
class Contract(keras.Operation):
    """A contraction as a Keras operation, for Functional models."""

    def __init__(self, contraction: Contraction, arithmetic: Arithmetic, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.contraction = contraction
        self.arithmetic = arithmetic

    def call(self, left, right, state=None):
        states = _states(self.arithmetic, state)
        return backend().contract(self.contraction, self.arithmetic, left, right, states)

    def compute_output_spec(self, left, right, state=None):
        dtype = keras.backend.standardize_dtype
        self.contraction.check_dtypes(dtype(left.dtype), dtype(right.dtype))
        self.arithmetic.check(self.contraction)
        shape = self.contraction.output_shape(tuple(left.shape), tuple(right.shape))
        product = self.arithmetic.product
        return keras.KerasTensor(shape, product.result_dtype(self.contraction, dtype(left.dtype)))

    def get_config(self) -> dict[str, Any]:
        return {
            "contraction": self.contraction.to_config(),
            "arithmetic": self.arithmetic.to_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Contract":
        config = dict(config)
        contraction = values.from_config(config.pop("contraction"))
        arithmetic = values.from_config(config.pop("arithmetic"))
        return cls(contraction, arithmetic, **config)


@keras.saving.register_keras_serializable("opgraft")
class Einsum(keras.Operation):
    """`einsum_dense` as a Keras operation, for Functional models."""

    def __init__(self, equation: str, arithmetic: Arithmetic, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.equation = equation
        self.arithmetic = arithmetic

    def call(self, x, kernel, state=None):
        return einsum_dense(self.equation, x, kernel, arithmetic=self.arithmetic, state=state)

    def compute_output_spec(self, x, kernel, state=None):
        left, right, out = _einsum_terms(self.equation, len(x.shape), len(kernel.shape))
        sizes = dict(zip(right, kernel.shape, strict=True)) | dict(zip(left, x.shape, strict=True))
        dtype = keras.backend.standardize_dtype(x.dtype)
        dtype = self.arithmetic.product.result_dtype(MatMul(), dtype)
        return keras.KerasTensor([sizes[label] for label in out], dtype)

    def get_config(self) -> dict[str, Any]:
        return {"equation": self.equation, "arithmetic": self.arithmetic.to_config()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Einsum":
        config = dict(config)
        arithmetic = values.from_config(config.pop("arithmetic"))
        return cls(arithmetic=arithmetic, **config)


@opaque
def contract(contraction: Contraction, arithmetic: Any, left, right, state: Any = None):
    """Any contraction under any arithmetic; the one door that all operations go through."""
    arithmetic = standardize(arithmetic)
    states = _states(arithmetic, state)
    if isinstance(left, keras.KerasTensor) or isinstance(right, keras.KerasTensor):
        left, right = _with_shape(left, right), _with_shape(right, left)
        return Contract(contraction, arithmetic).symbolic_call(left, right, state)
    recording.observe(arithmetic, left)
    if recording.is_exact():
        arithmetic, states = exact, ((), ())
    if recording.is_recording():
        recording.note(Use(contraction, arithmetic, _shape(left), _shape(right)))
    return backend().contract(contraction, arithmetic, left, right, states)


def _states(arithmetic: Arithmetic, state: Any) -> tuple[tuple, tuple]:
    """What the quantizers of the input and of the kernel remember; () for nothing.

    Raises:
        ArgumentError: it is not what they declare.
    """
    if state is None:
        return (), ()
    declared = tuple(tuple(q.states) for q in (arithmetic.input, arithmetic.kernel))
    try:
        first, second = (tuple(part) for part in state)
    except (TypeError, ValueError):
        first = second = (None,)
    given = tuple(tuple(tuple(getattr(s, "shape", ())) for s in part) for part in (first, second))
    if given != tuple(tuple(s.shape for s in part) for part in declared):
        due = ", ".join(f"({', '.join(f'{s.name} {s.shape}' for s in part)})" for part in declared)
        raise ArgumentError(
            f"state={state!r} must be a pair, of tensors that the quantizer of the input and that "
            f"of the kernel remember; due, with their shapes: ({due})"
        )
    return first, second


class Use(NamedTuple):
    """One contraction that was asked for, with the shapes of its operands."""

    contraction: Contraction
    arithmetic: Arithmetic
    left: tuple[int | None, ...]
    right: tuple[int | None, ...]


def _shape(value) -> tuple[int | None, ...]:
    return tuple(value.shape) if _rank(value) is not None else ()


def _with_shape(value, other):
    """A list beside a KerasTensor, as a tensor of its dtype."""
    return value if hasattr(value, "shape") else keras.ops.convert_to_tensor(value, other.dtype)


@opaque
def matmul(a, b, *, arithmetic: Any, transpose_a: bool = False, transpose_b: bool = False,
           state: Any = None):  # fmt: skip
    """Matrix product under an arithmetic.

    Args:
        a: [..., m, k], or [..., k, m] with `transpose_a`.
        b: [..., k, n], or [..., n, k] with `transpose_b`. Dimensions before the last
            two are batch dimensions and broadcast.
        arithmetic: how products are computed, forward and backward; None means exact.
        transpose_a, transpose_b: take the operand transposed in its last two dimensions.
        state: what the quantizers remember: for that of `a`, and for that of `b`, the tensors
            that its `states` declare. None: nothing; a range is then that of the operand.

    Returns:
        [..., m, n], of the operands' dtype if it is floating.

    Raises:
        ArgumentError: the shapes do not fit.
        DtypeError: `a` and `b` differ in dtype.
        UnsupportedError: the arithmetic has no matrix product.
    """
    return contract(spec.MatMul(bool(transpose_a), bool(transpose_b)), arithmetic, a, b, state)


@opaque
def conv2d(x, kernel, *, arithmetic: Any, strides=1, padding="VALID", dilations=1, groups: int = 1,
           data_format: str = "channels_last", pad_value: float = 0.0,
           state: Any = None):  # fmt: skip
    """2-D convolution (cross-correlation) under an arithmetic.

    Args:
        x: [batch, h, w, in], or [batch, in, h, w] with data_format="channels_first".
        kernel: [kernel_h, kernel_w, in / groups, out].
        arithmetic: how products are computed, forward and backward; None means exact.
        strides, dilations: one number, (vertical, horizontal), or four numbers with 1
            along the batch and the channels.
        padding: "SAME" (asymmetric as in TensorFlow: the odd row and column go below and
            right), "VALID", or ((top, bottom), (left, right)).
        groups: the channels of `x` and of the result are split into so many groups, each
            convolved by itself.
        data_format: "channels_last" or "channels_first".
        pad_value: the value of padded positions, finite.
        state: what the quantizers remember, as in `matmul`.

    Returns:
        [batch, out_h, out_w, out] in the layout of `x`.

    Raises:
        ArgumentError: an argument or a shape does not fit.
        DtypeError: `x` and `kernel` differ in dtype.
        UnsupportedError: the arithmetic cannot compute this convolution.
    """
    first = spec.is_channels_first(data_format)
    contraction = spec.Conv2D(
        strides=spec.pair(strides, "strides", first),
        padding=spec.padding(padding),
        dilations=spec.pair(dilations, "dilations", first),
        groups=spec.group_count(groups),
        channels_first=first,
        pad_value=spec.pad_number(pad_value),
    )
    return contract(contraction, arithmetic, x, kernel, state)


@opaque
def depthwise_conv2d(x, kernel, *, arithmetic: Any, strides=1, padding="VALID", dilations=1,
                     groups: int = 1, data_format: str = "channels_last",
                     pad_value: float = 0.0, state: Any = None):  # fmt: skip
    """Depthwise 2-D convolution under an arithmetic: every channel by itself.

    Args:
        x: [batch, h, w, in], or [batch, in, h, w] with data_format="channels_first".
        kernel: [kernel_h, kernel_w, in, multiplier].
        arithmetic: how products are computed, forward and backward; None means exact.
        groups: only 1; the channels are the groups.

    Other arguments, and errors, are those of `conv2d`.

    Returns:
        [batch, out_h, out_w, in * multiplier] in the layout of `x`.
    """
    if spec.group_count(groups) != 1:
        raise ArgumentError(f"depthwise_conv2d: groups={groups}, but its channels are its groups")
    first = spec.is_channels_first(data_format)
    contraction = spec.DepthwiseConv2D(
        strides=spec.pair(strides, "strides", first),
        padding=spec.padding(padding),
        dilations=spec.pair(dilations, "dilations", first),
        channels_first=first,
        pad_value=spec.pad_number(pad_value),
    )
    return contract(contraction, arithmetic, x, kernel, state)


@opaque
def conv1d(x, kernel, *, arithmetic: Any, strides=1, padding="VALID", dilations=1, groups: int = 1,
           data_format: str = "channels_last", pad_value: float = 0.0,
           state: Any = None):  # fmt: skip
    """1-D convolution under an arithmetic: the `conv2d` of height 1.

    Args:
        x: [batch, steps, in], or [batch, in, steps] with data_format="channels_first".
        kernel: [kernel_size, in / groups, out].
        arithmetic: how products are computed, forward and backward; None means exact.
        strides, dilations: one number, alone or in a list.
        padding: "SAME", "VALID", "CAUSAL" (all padding before), or (before, after).

    Other arguments, and errors, are those of `conv2d`.

    Returns:
        [batch, out_steps, out] in the layout of `x`.
    """
    x, kernel = _with_shape(x, kernel), _with_shape(kernel, x)
    for name, value in (("x", x), ("kernel", kernel)):
        if _rank(value) != 3:
            raise ArgumentError(
                f"conv1d: {name} has the shape {value.shape}; it needs 3 dimensions"
            )
    first = spec.is_channels_first(data_format)
    axis = 2 if first else 1
    dilation = _one(dilations, "dilations")
    try:
        y = conv2d(
            keras.ops.expand_dims(x, axis),
            keras.ops.expand_dims(kernel, 0),
            arithmetic=arithmetic,
            strides=(1, _one(strides, "strides")),
            padding=_padding_1d(padding, kernel, dilation),
            dilations=(1, dilation),
            groups=groups,
            data_format=data_format,
            pad_value=pad_value,
            state=state,
        )
    except ArgumentError as error:
        raise ArgumentError(f"conv1d, as a conv2d of height 1: {error}") from None
    return keras.ops.squeeze(y, axis)


def _rank(value) -> int | None:
    try:
        return len(value.shape) if hasattr(value, "shape") else None
    except ValueError:  # TensorFlow's way to say that it is unknown
        return None


def _one(value, name: str) -> int:
    numbers = tuple(value) if isinstance(value, list | tuple) else (value,)
    if len(numbers) != 1:
        raise ArgumentError(f"{name}={value!r} must be one number for a 1-D convolution")
    return spec.pair(numbers[0], name)[0]


def _padding_1d(padding, kernel, dilation: int):
    if isinstance(padding, str) and padding.upper() == "CAUSAL":
        return ((0, 0), ((kernel.shape[0] - 1) * dilation, 0))
    if isinstance(padding, list | tuple) and len(padding) == 2:
        return ((0, 0), tuple(padding))
    if isinstance(padding, str) and padding.upper() in ("SAME", "VALID"):
        return padding
    raise ArgumentError(f'padding={padding!r} must be "SAME", "VALID", "CAUSAL" or (before, after)')


@opaque
def einsum_dense(equation: str, x, kernel, *, arithmetic: Any, state: Any = None):
    """`einsum(equation, x, kernel)` for the equations of a dense layer, by one matrix product.

    Args:
        equation: two operands and a result, such as "abc,cd->abd" or "...x,xy->...y".
        x, kernel: tensors with the dimensions of the first two terms.
        arithmetic: how products are computed, forward and backward; None means exact.
        state: what the quantizers remember, as in `matmul`.

    Returns:
        A tensor with the dimensions of the third term.

    Every label of `x` and `kernel` that is not summed must stand in the result, and
    none may stand twice in one term.

    Raises:
        ArgumentError: the equation is of another form.
    """
    if isinstance(x, keras.KerasTensor) or isinstance(kernel, keras.KerasTensor):
        x, kernel = _with_shape(x, kernel), _with_shape(kernel, x)
        return Einsum(equation, standardize(arithmetic)).symbolic_call(x, kernel, state)
    left, right, out = _einsum_terms(equation, len(x.shape), len(kernel.shape))
    batch = [label for label in out if label in left and label in right]
    rows = [label for label in out if label in left and label not in right]
    columns = [label for label in out if label in right and label not in left]
    inner = [label for label in left if label in right and label not in out]
    _check_einsum(equation, (left, right, out), batch + rows + columns + inner)
    shape = keras.ops.shape
    sizes = dict(zip(right, shape(kernel), strict=True)) | dict(zip(left, shape(x), strict=True))
    a = _arranged(x, left, (batch, rows, inner), sizes)
    b = _arranged(kernel, right, (batch, inner, columns), sizes)
    y = matmul(a, b, arithmetic=arithmetic, state=state)
    y = keras.ops.reshape(y, [sizes[label] for label in batch + rows + columns])
    order = [(batch + rows + columns).index(label) for label in out]
    return y if order == sorted(order) else keras.ops.transpose(y, order)


def _einsum_terms(equation: str, left_rank: int, right_rank: int) -> tuple[str, str, str]:
    """The three terms, an ellipsis written out in labels that the equation does not use."""
    terms = equation.replace(" ", "").replace("->", ",").split(",")
    if len(terms) != 3 or "->" not in equation:
        raise ArgumentError(f"equation={equation!r} must have the form 'x,kernel->result'")
    free = [label for label in string.ascii_letters if label not in equation]
    count = 0
    for term, rank in zip(terms, (left_rank, right_rank), strict=False):
        if "..." in term:
            count = rank - len(term.replace("...", ""))
    ellipsis = "".join(free[: max(count, 0)])
    left, right, out = (term.replace("...", ellipsis) for term in terms)
    if (len(left), len(right)) != (left_rank, right_rank):
        raise ArgumentError(
            f"equation={equation!r} does not fit operands of {left_rank} and {right_rank} "
            "dimensions"
        )
    return left, right, out


def _check_einsum(equation: str, terms: tuple[str, str, str], used: list[str]) -> None:
    left, right, out = terms
    doubled = any(len(set(term)) != len(term) for term in terms)
    if doubled or set(left + right + out) != set(used):
        raise ArgumentError(
            f"equation={equation!r} is not a matrix product: every label must stand once in a "
            "term, "
            "and a label of one operand alone must stand in the result"
        )


def _arranged(tensor, labels: str, groups, sizes: dict[str, Any]):
    """Transpose to the order of the groups, and make one dimension of each group but the batch."""
    batch, first, second = groups
    order = [labels.index(label) for label in (*batch, *first, *second)]
    if order != sorted(order):
        tensor = keras.ops.transpose(tensor, order)
    if len(first) == 1 and len(second) == 1:
        return tensor
    shape = [sizes[label] for label in batch]
    return keras.ops.reshape(tensor, [*shape, _product(first, sizes), _product(second, sizes)])


def _product(labels, sizes: dict[str, Any]):
    total = 1
    for label in labels:
        total = total * sizes[label]
    return total
