"""Operands that an arithmetic can be given, and what it makes of them."""

import numpy as np

from opgraft.arithmetic import Arithmetic
from opgraft.products import CFunction
from opgraft.quantizers import Scaled
from opgraft.verification import due
from opgraft.verification.cases import Case


def operand_dtype(arithmetic: Arithmetic, case: Case) -> np.dtype:
    """Of what computes the case in the end: the element type of a C function."""
    product = arithmetic.product
    if isinstance(product, CFunction):
        return np.dtype(product.symbol_for(case.contraction).operand_dtype)
    return np.dtype(np.float32)


def integers(arithmetic: Arithmetic, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Float operands whose values the arithmetic's function can hold."""
    left, right = due.small_integers(case, operand_dtype(arithmetic, case))
    return left.astype(np.float32), right.astype(np.float32)


def quantizes(arithmetic: Arithmetic) -> bool:
    return isinstance(arithmetic.input, Scaled) or isinstance(arithmetic.kernel, Scaled)
