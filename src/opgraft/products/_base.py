"""The contract of a product."""

from typing import Any, ClassVar

import numpy as np

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

    @property
    def label(self) -> str:
        """What multiplies, for messages."""
        return repr(self)

    @property
    def default_quantizers(self) -> tuple[Quantizer, Quantizer]:
        """Of the input and of the kernel, where nothing else is asked for."""
        return identity, identity

    def meaning(
        self, c: Contraction, input: Any, kernel: Any, left: np.ndarray, right: np.ndarray
    ) -> np.ndarray | None:
        """What is due under these quantizers, in NumPy and float64, by a loop nest.

        None: the exact contraction, or what the product's function is claimed to compute.
        """
        return None

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
