"""How two operands are multiplied and summed."""

from opgraft.products._base import Product
from opgraft.products.c_function import CFunction, CSymbol
from opgraft.products.exact import Exact
from opgraft.products.python_function import PythonFunction
from opgraft.products.table import Table

__all__ = ["CFunction", "CSymbol", "Exact", "Product", "PythonFunction", "Table"]
