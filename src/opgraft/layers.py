"""Keras layers whose multiply-accumulate is an arithmetic.

Each is the Keras layer of the same name: same arguments, defaults and weights,
one more argument `arithmetic=`, and one method that hands the contraction to
`opgraft.ops`. No Keras code is repeated.
"""

import inspect
from typing import Any, ClassVar

import keras

from opgraft import ops
from opgraft.arithmetic import standardize
from opgraft.backends import keras_private
from opgraft.errors import UnsupportedError
from opgraft.quantizers import Quantizer
from opgraft.remembered import Remembered


class ArithmeticLayer:
    """Mixin: owns `arithmetic`, saves it, and says whether XLA can compile the layer.

    Attributes:
        arithmetic: what computes its contractions.
        remembered: a sublayer with the weights that the quantizers declare; None where they
            declare none.
    """

    remembered: Remembered | None = None
    _contractions: ClassVar[tuple[str, ...]] = ("",)
    _native_layer: type[keras.Layer]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if ArithmeticLayer in cls.__bases__:  # not for subclasses that users make
            _become_twin(cls, cls.__bases__[1])

    def set_arithmetic(self, arithmetic: Any) -> None:
        """Use another arithmetic from now on; functions that are traced already keep theirs.

        What quantizers remember is kept where the new arithmetic has the same ones, else it
        starts anew.

        Raises:
            UnsupportedError: Keras has quantized the layer, and would not use the arithmetic.
        """
        check_not_quantized(self)
        self.arithmetic = standardize(arithmetic)
        self.supports_jit = self.arithmetic.supports_jit
        quantizers = self.arithmetic.input, self.arithmetic.kernel
        if self.remembered is None or self.remembered.quantizers != quantizers:
            keras_private.set_sublayer(self, "remembered", self._remembering(quantizers))

    def _remembering(self, quantizers: tuple[Quantizer, Quantizer]) -> Remembered | None:
        if not any(quantizer.states for quantizer in quantizers):
            return None
        wide = keras.backend.result_type(self.variable_dtype, "float32")  # type: ignore[attr-defined]
        with keras.name_scope(self.name):  # type: ignore[attr-defined]
            return Remembered(quantizers, self._contractions, name="remembered", dtype=wide)

    def _see(self, inputs: Any, kernel: Any, training: Any, contraction: str = "") -> None:
        """Let the quantizers know the operands of a contraction that is about to be computed."""
        if self.remembered is not None and training and self.trainable:  # type: ignore[attr-defined]
            self.remembered.see(contraction, inputs, kernel)

    def _how(self, contraction: str = "") -> dict[str, Any]:
        """How one of its contractions is computed, as the operations take it."""
        state = None if self.remembered is None else self.remembered.states(contraction)
        return {"arithmetic": self.arithmetic, "state": state}

    def quantize(self, mode: Any = None, **keywords: Any) -> None:
        if not isinstance(self, ArithmeticLayer):  # restored since Keras bound this method to it
            return type(self).quantize(self, mode, **keywords)
        raise UnsupportedError(
            f"layer '{self.name}' has an arithmetic of its own, which Keras's quantization "  # type: ignore[attr-defined]
            "would replace unseen. Call og.restore(model) first"
        )

    def get_config(self) -> dict[str, Any]:
        arithmetic = keras.saving.serialize_keras_object(self.arithmetic)
        return {**super().get_config(), "arithmetic": arithmetic}  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """As Keras's, but an arithmetic whose library is gone says so itself, not through Keras."""
        arithmetic = standardize(config.get("arithmetic"))
        return super().from_config({**config, "arithmetic": arithmetic})  # type: ignore[misc]

    def _floating(self, inputs: Any) -> Any:
        """Integers as numbers of the layer's compute dtype, as Keras takes them."""
        if "float" in keras.backend.standardize_dtype(inputs.dtype):
            return inputs
        return keras.ops.cast(inputs, self.compute_dtype)  # type: ignore[attr-defined]

    def _finish(self, outputs: Any, bias: Any, channel_axis: int = -1) -> Any:
        """Add the bias along the channels, then apply the activation, as the Keras layer does."""
        if bias is not None:
            shape = [1] * len(outputs.shape)
            shape[channel_axis] = -1
            outputs = keras.ops.add(outputs, keras.ops.reshape(bias, shape))
        return outputs if self.activation is None else self.activation(outputs)  # type: ignore[attr-defined]


def _become_twin(cls: Any, native: type[keras.Layer]) -> None:
    """Give a layer the constructor of its Keras layer, with one argument more."""

    def __init__(self: Any, *args: Any, arithmetic: Any = None, **keywords: Any) -> None:  # noqa: N807
        native.__init__(self, *args, **keywords)
        self.set_arithmetic(arithmetic)

    own = inspect.Parameter("arithmetic", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = list(inspect.signature(native.__init__).parameters.values())
    rest = [p for p in parameters if p.kind is p.VAR_KEYWORD]
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    __init__.__signature__ = inspect.Signature([*named, own, *rest])  # type: ignore[attr-defined]
    cls.__init__ = __init__
    cls._native_layer = native
    cls.__doc__ = (
        f"`keras.layers.{native.__name__}` under an arithmetic.\n\n"
        "Arguments, defaults, weights and shapes are those of the Keras layer.\n\n"
        "Args:\n    arithmetic: how products are computed, forward and backward; "
        "None means `og.exact`.\n"
    )


def check_not_quantized(layer: Any) -> None:
    """Raise `UnsupportedError` for a layer that Keras computes by a quantization of its own."""
    mode = getattr(layer, "quantization_mode", None)
    if mode is not None:
        raise UnsupportedError(
            f"layer '{layer.name}' is quantized by Keras ({mode}), which computes it without "
            "asking any arithmetic. Use a plain floating dtype policy"
        )


def native_layer(layer: type) -> type[keras.Layer]:
    """The Keras class that a class of this module is a thin subclass of."""
    assert issubclass(layer, ArithmeticLayer)
    return layer._native_layer


def _spatial(layer: Any) -> dict[str, Any]:
    """The arguments that every convolution layer has."""
    return {
        "strides": layer.strides,
        "padding": layer.padding,
        "dilations": layer.dilation_rate,
        "data_format": layer.data_format,
    }


def _channel_axis(layer: Any) -> int:
    return -1 if layer.data_format == "channels_last" else 1


@keras.saving.register_keras_serializable("opgraft")
class Dense(ArithmeticLayer, keras.layers.Dense):
    def call(self, inputs, training=None):
        # On sequences Keras multiplies all rows at once; so do we, for the same gradient bits.
        inputs = self._floating(inputs)
        rows = inputs
        if len(inputs.shape) > 2:
            rows = keras.ops.reshape(inputs, (-1, inputs.shape[-1]))
        self._see(rows, self.kernel, training)
        outputs = ops.matmul(rows, self.kernel, **self._how())
        if len(inputs.shape) > 2:
            shape = (*keras.ops.shape(inputs)[:-1], self.units)
            outputs = keras.ops.reshape(outputs, shape)
        if self.bias is not None:
            outputs = keras.ops.add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)


@keras.saving.register_keras_serializable("opgraft")
class EinsumDense(ArithmeticLayer, keras.layers.EinsumDense):
    def call(self, inputs, training=None):
        inputs = self._floating(inputs)
        self._see(inputs, self.kernel, training)
        outputs = ops.einsum_dense(self.equation, inputs, self.kernel, **self._how())
        if self.bias is not None:
            outputs = keras.ops.add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)


@keras.saving.register_keras_serializable("opgraft")
class Conv1D(ArithmeticLayer, keras.layers.Conv1D):
    def convolution_op(self, inputs, kernel):
        return ops.conv1d(inputs, kernel, groups=self.groups, **self._how(), **_spatial(self))

    def call(self, inputs, training=None):
        self._see(inputs, self.kernel, training)
        bias = self.bias if self.use_bias else None
        return self._finish(self.convolution_op(inputs, self.kernel), bias, _channel_axis(self))


@keras.saving.register_keras_serializable("opgraft")
class Conv2D(ArithmeticLayer, keras.layers.Conv2D):
    def convolution_op(self, inputs, kernel):
        return ops.conv2d(inputs, kernel, groups=self.groups, **self._how(), **_spatial(self))

    def call(self, inputs, training=None):
        self._see(inputs, self.kernel, training)
        return super().call(inputs)


@keras.saving.register_keras_serializable("opgraft")
class DepthwiseConv2D(ArithmeticLayer, keras.layers.DepthwiseConv2D):
    def call(self, inputs, training=None):
        self._see(inputs, self.kernel, training)
        outputs = ops.depthwise_conv2d(inputs, self.kernel, **self._how(), **_spatial(self))
        return self._finish(outputs, self.bias if self.use_bias else None, _channel_axis(self))


@keras.saving.register_keras_serializable("opgraft")
class SeparableConv2D(ArithmeticLayer, keras.layers.SeparableConv2D):
    _contractions = ("depthwise", "pointwise")

    def call(self, inputs, training=None):
        self._see(inputs, self.depthwise_kernel, training, "depthwise")
        outputs = ops.depthwise_conv2d(
            inputs, self.depthwise_kernel, **self._how("depthwise"), **_spatial(self)
        )
        self._see(outputs, self.pointwise_kernel, training, "pointwise")
        outputs = ops.conv2d(
            outputs,
            self.pointwise_kernel,
            data_format=self.data_format,
            **self._how("pointwise"),
        )
        return self._finish(outputs, self.bias if self.use_bias else None, _channel_axis(self))
