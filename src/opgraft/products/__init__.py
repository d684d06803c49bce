"""How two operands are multiplied and summed."""

from opgraft.products._base import Product
from opgraft.products.c_function import CFunction, CSymbol
from opgraft.products.coded import Coded
from opgraft.products.exact import Exact
from opgraft.products.mantissas import Mantissas
from opgraft.products.python_function import PythonFunction
from opgraft.products.quantized import Quantized
from opgraft.products.table import Table

__all__ = [
    "CFunction", "CSymbol", "Coded", "Exact", "Mantissas", "Product", "PythonFunction",
    "Quantized", "Table",
]  # fmt: skip
