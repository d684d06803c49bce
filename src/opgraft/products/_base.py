"""The contract of a product."""

from typing import ClassVar

from opgraft.errors import UnsupportedError
from opgraft.quantizers import Quantizer, identity
from opgraft.spec import Contraction
from opgraft.values import Value


class Product(Value):
    """Computes contractions: matrix products and convolutions.

    Laws:
      - a value: frozen, comparable, hashable, serialisable, without variables;
      - pure: equal operands give equal results, whatever ran before;
      - it computes every contraction for which `check` is silent, and `check`
        says what to do about those that it refuses. It never computes
        something else instead.

    How a framework runs a product is registered in that framework's backend.
    """

    supports_jit: ClassVar[bool] = False
    in_python: ClassVar[bool] = False  # whether it holds code that no operation can carry

    def check(self, contraction: Contraction) -> None:
        """Raise `UnsupportedError` for a contraction that this product cannot compute."""

    def check_quantizers(self, input: Quantizer, kernel: Quantizer) -> None:
        """Raise for quantizers that this product does not apply, and so would ignore unseen."""
        for name, quantizer in (("input", input), ("kernel", kernel)):
            if quantizer != identity:
                raise UnsupportedError(
                    f"Arithmetic({name}={quantizer!r}): {type(self).__name__} takes its "
                    "operands as they are, and no quantizer but Identity is applied. Quantize "
                    "the tensor before the operation"
                )

    def result_dtype(self, contraction: Contraction, operand: str) -> str:
        """Dtype of the result for operands of the dtype `operand` (NumPy's names)."""
        return operand
