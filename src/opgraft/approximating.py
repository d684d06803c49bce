"""`approximate`: arithmetics of multipliers that are not exact."""

from typing import Any

from opgraft import gradients
from opgraft.arithmetic import Arithmetic
from opgraft.backends import backend
from opgraft.errors import ArgumentError
from opgraft.multipliers import FloatMultiplier
from opgraft.products import Coded, Mantissas, Product, Table, accumulators
from opgraft.products.accumulators import Accumulator
from opgraft.quantizers import Quantizer


def approximate(
    multiplier: Any,
    *,
    input: Quantizer | None = None,
    kernel: Quantizer | None = None,
    exchanged: bool = False,
    keeps_padding: bool = False,
    accumulator: Accumulator = accumulators.exact,
    gradient: gradients.Gradient = gradients.native,
) -> Arithmetic:
    """An arithmetic whose products of quantized operands are a multiplier's.

    y = s_x s_w sum of f(q(x), q(w)); with zero points z_x and z_w each f(a, b) is corrected by
    - z_x b - z_w a + z_x z_w. An exact multiplier gives the exact product of what was quantized.
    Integers are summed exactly, in 32 bits, or in 64 where a bound does not show that these are
    enough, unless an accumulator says otherwise; other numbers in double, in their order.

    Args:
        multiplier: an `og.Multiplier` of at most 8 bits; an `og.FloatMultiplier`, whose operands
            are not quantized; or, for up to 16 bits, `og.c_function(...)` of a product of two
            integers, such as int32_t mul12(int16_t, int16_t), which is called for every product.
        input, kernel: what makes codes of the activation and of the kernel: quantizers of the
            multiplier's widths, `og.quantizers.Symmetric` for a signed multiplier, `Affine` for
            an unsigned one and `Levels` for one of other numbers (fp8, posits), which are the
            defaults, with ranges found at each call. `og.calibrate` gives the activations ranges
            of their own. For sign-magnitude, `og.multipliers.sign_magnitude(multiplier)` is
            signed.
        exchanged: look up table[kernel, activation] instead of table[activation, kernel].
        keeps_padding: padded taps go through the multiplier, with the code of 0. Otherwise they
            add nothing, whatever f(0, b) is.
        accumulator: of `og.accumulators`: a stated width that wraps or saturates, or an adder of
            yours. f(a, b) goes through it; what zero points add is added exactly afterwards.
        gradient: what flows back: by default the native gradient at the quantized operands,
            masked where an operand was clipped; `og.gradients.by_contraction(og.gradients.same,
            og.gradients.same)` goes back through the same multiplier.

    Raises:
        ArgumentError: it is no multiplier, or a quantizer does not make its codes.
        UnsupportedError: the multiplier cannot be summed so.
    """
    product = _product(multiplier, bool(exchanged), bool(keeps_padding), accumulator)
    defaults = product.default_quantizers
    arithmetic = Arithmetic(
        defaults[0] if input is None else input, defaults[1] if kernel is None else kernel,
        product, gradient,
    )  # fmt: skip
    product.check_quantizers(arithmetic.input, arithmetic.kernel)
    backend().check_product(arithmetic)
    return arithmetic


def _product(multiplier: Any, exchanged: bool, keeps_padding: bool, accumulator: Any) -> Product:
    if isinstance(multiplier, Arithmetic):
        if exchanged:
            raise ArgumentError(
                "approximate(exchanged=True): write the C function with its parameters exchanged"
            )
        _refuse_accumulator(accumulator, "a C function")
        return Coded(multiplier.product, keeps_padding)  # type: ignore[arg-type]
    if isinstance(multiplier, FloatMultiplier):
        if keeps_padding:
            raise ArgumentError("approximate(keeps_padding=True): a float product with 0 is 0")
        _refuse_accumulator(accumulator, "an og.FloatMultiplier")
        return Mantissas(multiplier, exchanged)
    return Table(multiplier, exchanged, keeps_padding, accumulator)


def _refuse_accumulator(accumulator: Any, what: str) -> None:
    if accumulator != accumulators.exact:
        raise ArgumentError(
            f"approximate(accumulator={accumulator!r}): the products of {what} are not added by "
            "an accumulator; those of an og.Multiplier of integers are"
        )
