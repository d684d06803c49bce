"""The user's C functions."""

import ctypes
import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from opgraft import environment
from opgraft.errors import UnsupportedError
from opgraft.native import core
from opgraft.products._base import Product
from opgraft.spec import Contraction, Conv2D

_NUMPY_NAMES = {
    "f32": "float32", "f64": "float64", "i8": "int8", "i16": "int16", "i32": "int32",
    "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, repr=False)
class CSymbol:
    """One C function: where it lives, and how it is called.

    Attributes:
        library: absolute path of the `.so` or the `.c` that the user named; ""
            for a function that lives only in this process's memory.
        hash: SHA-256 of that file, or the token of the process.
        binary: name in the cache of the object compiled from a source, else "".
        symbol: the function's name in the library.
        prototype: its declaration, for people.
        plan: its declaration with roles, for the core.
        kind: matmul, conv2d or scalar; of a gradient matmul_vjp or conv2d_vjp.
        address: where it lives in memory, or 0.
        thread_safe: whether two calls may run at once.
    """

    library: str
    hash: str
    binary: str
    symbol: str
    prototype: str
    plan: str
    kind: str
    address: int = 0
    thread_safe: bool = True

    def __repr__(self) -> str:
        return f"<{self.kind} {self.symbol} of {self.library or 'this process'}>"

    def spec(self) -> core.FunctionSpec:
        text = (self.library, self.hash, self.binary, self.symbol, self.plan)
        return core.FunctionSpec(*map(os.fsencode, text), self.address or None, self.thread_safe)

    @property
    def compiled_file(self) -> pathlib.Path:
        """The shared object that really runs: a private copy, or what a source was compiled to."""
        return environment.cache_folder() / f"{self.binary or self.hash}.so"

    def scalar(self) -> Callable[[Any, Any], Any]:
        """A scalar function that was opened, to be called from Python."""
        kinds = [_NUMPY_NAMES[word.split(":")[-1]] for word in self.plan.split()]
        prototype = ctypes.CFUNCTYPE(*(np.ctypeslib.as_ctypes_type(kind) for kind in kinds))
        if self.address:
            return prototype(self.address)
        return prototype((self.symbol, ctypes.CDLL(str(self.compiled_file))))

    @property
    def roles(self) -> dict[str, str]:
        """The role of each parameter, in order, and its type as the plan writes it."""
        words = (word.split(":") for word in self.plan.split()[1:])
        return dict(words)

    @property
    def operand_dtype(self) -> str:
        kind = self.roles["upstream" if "upstream" in self.roles else "input"]
        return _NUMPY_NAMES[kind.rstrip("*")]

    def takes_pair(self, name: str, pair: tuple[int, int]) -> bool:
        """Whether it can be told such strides or dilations, by two parameters or by one."""
        if pair == (1, 1) or {f"{name}_h", f"{name}_w"} <= self.roles.keys():
            return True
        return name in self.roles and pair[0] == pair[1]

    @property
    def output_dtype(self) -> str:
        if self.kind == "scalar":  # summed by us: in double, or in 64-bit integers
            return "float64" if self.plan.startswith("f") else "int64"
        return _NUMPY_NAMES[self.roles["output"].rstrip("*")]


@dataclasses.dataclass(frozen=True)
class CFunction(Product):
    """Contractions by the user's C functions: a matmul, a convolution, a scalar product.

    A convolution goes through the convolution if there is one that can take
    it, else through the matmul by im2col, else through the scalar product.
    Operands are cast to the C function's element type: floating types round to
    nearest even; a cast that involves an integer type must keep every value, or
    the operation fails and names the value. The result is rounded to the dtype
    of floating operands; integer operands get the C function's own result type.
    """

    type_name: ClassVar[str] = "c_function"

    symbols: tuple[CSymbol, ...]

    def to_config(self):
        return {
            "type": self.type_name,
            "symbols": [list(dataclasses.astuple(symbol)) for symbol in self.symbols],
        }

    @classmethod
    def from_fields(cls, symbols):
        product = cls(tuple(CSymbol(*fields) for fields in symbols))
        for symbol in product.symbols:
            core.open_function(symbol.spec())  # refuse a library that is gone or has changed
        return product

    def symbol_for(self, contraction: Contraction) -> CSymbol:
        """The function that computes this contraction.

        Raises:
            UnsupportedError: none can, and what to do.
        """
        by_kind = {symbol.kind: symbol for symbol in self.symbols}
        matrix = by_kind.get("matmul") or by_kind.get("scalar")
        names = ", ".join(symbol.symbol for symbol in self.symbols)
        if not isinstance(contraction, Conv2D):
            if matrix is None:
                raise UnsupportedError(
                    f"{names} is a convolution and cannot serve a matrix product (a dense layer). "
                    "Give a matmul beside it: og.c_function(...) | og.c_function(...)"
                )
            return matrix
        direct = by_kind.get("conv2d")
        if direct is None:
            assert matrix is not None
            return matrix
        if direct.takes_pair("dilation", contraction.dilations):
            return direct
        if matrix is None:
            raise UnsupportedError(
                f"{names} has no dilation parameters, and the call has dilations "
                f"{contraction.dilations}. Add dilation_h and dilation_w to the C function, or "
                "give "
                "a matmul beside it, through which dilated convolutions then go: "
                "og.c_function(...) | og.c_function(...)"
            )
        return matrix

    def check(self, contraction: Contraction) -> None:
        self.symbol_for(contraction)

    def result_dtype(self, contraction: Contraction, operand: str) -> str:
        if "float" in operand:
            return operand
        return self.symbol_for(contraction).output_dtype
