"""`Arithmetic`, the one value that layers and operations take, and its short constructors."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras

from opgraft import gradients, values
from opgraft.errors import ArgumentError, UnsupportedError
from opgraft.native import loading
from opgraft.products import CFunction, Exact, Product, PythonFunction
from opgraft.quantizers import Quantizer, identity
from opgraft.spec import Contraction


@keras.saving.register_keras_serializable("opgraft")
@dataclasses.dataclass(frozen=True)
class Arithmetic(values.Value):
    """How a contraction is computed, forward and backward.

    Attributes:
        input, kernel: what the arithmetic sees of each operand.
        product: how the two are multiplied and summed.
        gradient: what flows back (`opgraft.gradients`).

    A value: comparable, hashable, serialisable by Keras, without variables.
    """

    type_name: ClassVar[str] = "arithmetic"

    input: Quantizer = identity
    kernel: Quantizer = identity
    product: Product = Exact()  # noqa: RUF009 (a frozen value)
    gradient: gradients.Gradient = gradients.native

    def __post_init__(self) -> None:
        for name, kind in (("input", Quantizer), ("kernel", Quantizer), ("product", Product),
                           ("gradient", gradients.Gradient)):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ArgumentError(
                    f"Arithmetic({name}={value!r}): a {kind.__name__} is needed, not "
                    f"{type(value).__name__}"
                )
        gradient = self.gradient
        if gradient.of_codes or gradient.of_output or gradient.in_python:
            self._refuse_states()

    def _refuse_states(self) -> None:
        """A gradient that is given the operands alone would quantize them in another range."""
        for name, quantizer in (("input", self.input), ("kernel", self.kernel)):
            if quantizer.states:
                raise UnsupportedError(
                    f"Arithmetic({name}={quantizer!r}): {self.gradient!r} cannot know the range "
                    "that a layer remembers. Give a range, as og.calibrate does, or leave it to "
                    "each call, or take og.gradients.native"
                )

    def __or__(self, other: "Arithmetic") -> "Arithmetic":
        """C functions of both: a convolution and a matmul that serve one network together."""
        mine, theirs = self.product, getattr(other, "product", None)
        if not isinstance(mine, CFunction) or not isinstance(theirs, CFunction):
            raise ArgumentError("only arithmetics of C functions can be joined by |")
        if dataclasses.replace(self, product=theirs) != other:
            raise ArgumentError("arithmetics joined by | must agree in quantizers and gradient")
        return dataclasses.replace(self, product=_joined(mine.symbols + theirs.symbols))

    @property
    def supports_jit(self) -> bool:
        """Whether XLA can compile it."""
        return self.product.supports_jit and self.gradient.supports_jit

    def check(self, contraction: Contraction) -> None:
        """Raise `UnsupportedError` for a contraction that it cannot compute."""
        self.product.check_quantizers(self.input, self.kernel)
        self.product.check(contraction)
        self.gradient.of(self).check(contraction)

    def get_config(self) -> dict[str, Any]:
        """For Keras; warns of a function that no other process will find."""
        in_memory = [s.symbol for s in getattr(self.product, "symbols", ()) if s.address]
        if in_memory:
            warnings.warn(
                f"{', '.join(in_memory)} lives in the memory of this process only: what is saved "
                "with it can be loaded here, and nowhere else. Compile it to a library to share it",
                stacklevel=2,
            )
        return {"value": self.to_config()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Arithmetic":
        return values.from_config(config["value"])


exact = Arithmetic()


def standardize(arithmetic: Any) -> Arithmetic:
    """What users may write for `arithmetic=`: an Arithmetic, a Product, or None for exact.

    Raises:
        ArgumentError: anything else.
    """
    if arithmetic is None:
        return exact
    if isinstance(arithmetic, Product):
        return Arithmetic(product=arithmetic)
    if isinstance(arithmetic, dict):  # as written by Keras
        arithmetic = keras.saving.deserialize_keras_object(arithmetic)
    if not isinstance(arithmetic, Arithmetic):
        raise ArgumentError(
            f"arithmetic={arithmetic!r} is a {type(arithmetic).__name__}; it must be an "
            "og.Arithmetic, such as og.exact or og.c_function(...)"
        )
    return arithmetic


def c_function(
    library: Any,
    prototype: Any = None,
    *,
    roles: Mapping[str, str] | Sequence[str] | None = None,
    gradient: gradients.Gradient = gradients.native,
    thread_safe: bool = True,
    flags: str | Sequence[str] = ("-O3",),
) -> Arithmetic:
    """An arithmetic whose product is your C function.

    Args:
        library: path of a `.so`, or of a `.c` source, which is compiled once with
            the system's compiler and cached by content; or a `ctypes.CDLL`, a ctypes
            function or a Numba cfunc.
        prototype: the function's declaration, pasted as text (several may be given,
            separated by semicolons: a matmul and a convolution that serve one
            network together), or a ctypes function with `argtypes`. For a `.c` source
            that defines one function it may be left out.
        roles: {parameter: role} for parameters whose names are not standard, or the
            roles of all parameters in order.
        gradient: what flows back; `og.gradients.native` is the framework's own.
        thread_safe: False if two calls must never run at once.
        flags: compiler flags for a `.c` source.

    The function receives C-contiguous arrays: matrices row-major, images
    [batch, h, w, channels], convolution kernels [h, w, in, out], and the sizes
    of this very call. It must write every element of its output and nothing else.

    Raises:
        LibraryError: the library or the symbol is missing.
        CompileError: the source does not compile.
        PrototypeError: the prototype does not parse or a parameter cannot be bound.
    """
    symbols = loading.load_checked(library, prototype, roles, thread_safe, flags)
    return Arithmetic(product=_joined(symbols), gradient=gradient)


def python_function(
    function: Callable[..., Any], *, gradient: gradients.Gradient = gradients.native
) -> Arithmetic:
    """An arithmetic whose product is a Python function of NumPy arrays.

    It is slower than a C function and cannot be exported, and says so once.

    Args:
        function: of two matrices [m, k] and [k, n], for every contraction; or a
            convolution, whose further parameters are bound by name (see
            `opgraft.products.PythonFunction`). A Numba `cfunc` is compiled code and
            goes down the path of `c_function`; it is fast, and lives in this process only.
        gradient: what flows back; `og.gradients.native` is the framework's own.

    Raises:
        ArgumentError: it is no function, or needs a parameter that is not known.
    """
    if loading.is_native_callable(function):
        return c_function(function, gradient=gradient)
    if not callable(function):
        raise ArgumentError(f"python_function needs a function, not {type(function).__name__}")
    if type(function).__hash__ is None:
        raise ArgumentError(
            f"python_function needs a hashable function; {type(function).__name__} defines __eq__ "
            "without __hash__. Wrap it: lambda a, b: f(a, b)"
        )
    product = PythonFunction(function)
    _ = product.extra_parameters  # refuse unknown parameters now, not in the first step
    return Arithmetic(product=product, gradient=gradient)


def _joined(symbols) -> CFunction:
    kinds = [symbol.kind for symbol in symbols]
    for kind in kinds:
        if kinds.count(kind) > 1:
            names = ", ".join(symbol.symbol for symbol in symbols if symbol.kind == kind)
            raise ArgumentError(f"there are two functions of the kind {kind}: {names}; give one")
    return CFunction(tuple(sorted(symbols, key=lambda symbol: symbol.kind)))
