"""Functions that are already in this process: ctypes functions and Numba cfuncs.

Both are read into the same `CPrototype` that a pasted declaration gives, so
nothing behind this file knows where a prototype came from.
"""

import ctypes
import inspect
import os

import numpy as np

from opgraft.errors import PrototypeError
from opgraft.native.prototype import CPrototype, CType

_SCALARS = {
    ctypes.c_float: "f32", ctypes.c_double: "f64", ctypes.c_int8: "i8", ctypes.c_int16: "i16",
    ctypes.c_int32: "i32", ctypes.c_int64: "i64", ctypes.c_uint8: "u8", ctypes.c_uint16: "u16",
    ctypes.c_uint32: "u32", ctypes.c_uint64: "u64", ctypes.c_size_t: "u64", ctypes.c_char: "i8",
    ctypes.c_ssize_t: "i64", ctypes.c_bool: "u8",
}  # fmt: skip
_NUMPY = {"f4": "f32", "f8": "f64", "i1": "i8", "i2": "i16", "i4": "i32", "i8": "i64",
          "u1": "u8", "u2": "u16", "u4": "u32", "u8": "u64"}  # fmt: skip

# Without names, a function is known by the order of the two usual signatures.
_USUAL = (
    ("a", "b", "m", "k", "n", "out"),
    ("inputs", "filters", "batch", "h", "w", "in_ch", "filter_h", "filter_w", "out_ch",
     "stride_h", "stride_w", "padding", "out"),
)  # fmt: skip
_POINTER_NAMES = {"a", "b", "out", "inputs", "filters", "padding"}


def is_numba_cfunc(value) -> bool:
    """A Numba `cfunc` shows itself by these attributes; Numba need not be there."""
    return hasattr(value, "address") and hasattr(value, "ctypes") and hasattr(value, "inspect_llvm")


def is_ctypes_function(value) -> bool:
    return isinstance(value, ctypes._CFuncPtr) if hasattr(ctypes, "_CFuncPtr") else False


def address_of(function) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class _LinkMap(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("file", ctypes.c_char_p)]


_RTLD_DI_LINKMAP = 2


def path_of_cdll(library: ctypes.CDLL) -> str | None:
    """The file of a loaded library, also of one that was opened by its bare name."""
    entry = ctypes.POINTER(_LinkMap)()
    handle = ctypes.c_void_p(library._handle)
    if ctypes.CDLL(None).dlinfo(handle, _RTLD_DI_LINKMAP, ctypes.byref(entry)):
        return None
    return os.fsdecode(entry.contents.file) or None


class _DlInfo(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def file_of(function) -> str | None:
    """The library that a ctypes function was taken from, or None if it lies in no file."""
    info, address = _DlInfo(), ctypes.c_void_p(address_of(function))
    if not ctypes.CDLL(None).dladdr(address, ctypes.byref(info)) or not info.symbol:
        return None
    return os.fsdecode(info.file) if info.address == address.value else None


def from_numba(cfunc) -> CPrototype:
    """The prototype of a Numba cfunc; parameter names are those of its Python function."""
    names = list(inspect.signature(cfunc.__wrapped__).parameters)
    return _read(cfunc.ctypes, cfunc.__name__, names)


def from_ctypes(function, names=None) -> CPrototype:
    """The prototype of a ctypes function whose `argtypes` are set.

    `ctypes` types, `POINTER(type)` and `numpy.ctypeslib.ndpointer` are read.
    ctypes keeps no parameter names: without `names`, the order must be that of
    one of the two usual signatures (matrix product or convolution).

    Raises:
        PrototypeError: argtypes are not set, or have a type that cannot be read.
    """
    symbol = getattr(function, "__name__", "function")
    if function.argtypes is None:
        raise PrototypeError(
            f"the ctypes function '{symbol}' has no argtypes; set function.argtypes (and restype), "
            "or paste its prototype as text"
        )
    return _read(function, symbol, names or _usual_names(function.argtypes, symbol))


def _usual_names(argtypes, symbol: str) -> tuple[str, ...]:
    pointers = [_ctype(entry, symbol).pointer for entry in argtypes]
    if pointers == [False, False]:  # a scalar product has no names to bind
        return ("a", "b")
    for names in _USUAL:
        if pointers == [name in _POINTER_NAMES for name in names]:
            return names
    raise PrototypeError(
        f"ctypes keeps no parameter names, and the argtypes of '{symbol}' are not those of "
        f"({', '.join(_USUAL[0])}) or ({', '.join(_USUAL[1])}). Give all names in order: "
        'roles=["a", "b", ...], or paste the prototype as text'
    )


def _read(function, symbol: str, names) -> CPrototype:
    if len(names) != len(function.argtypes):
        raise PrototypeError(
            f"roles has {len(names)} names, '{symbol}' has {len(function.argtypes)} argtypes"
        )
    types = [_ctype(entry, symbol) for entry in function.argtypes]
    returns = (
        CType("", text="void") if function.restype is None else _ctype(function.restype, symbol)
    )
    declared = ", ".join(
        f"{ctype.text}{'' if ctype.pointer else ' '}{name}"
        for name, ctype in zip(names, types, strict=True)
    )
    text = f"{returns.text} {symbol}({declared})"
    return CPrototype(symbol, returns, tuple(zip(names, types, strict=True)), text)


def _ctype(entry, symbol: str) -> CType:
    if entry in _SCALARS:
        return CType(_SCALARS[entry], text=entry.__name__.removeprefix("c_"))
    if entry is ctypes.c_char_p:
        return CType("i8", pointer=True, const=True, text="const char *")
    pointee = getattr(entry, "_type_", None)
    if pointee in _SCALARS:
        return CType(
            _SCALARS[pointee], pointer=True, text=f"{pointee.__name__.removeprefix('c_')} *"
        )
    if getattr(entry, "_dtype_", None) is not None:  # numpy.ctypeslib.ndpointer
        return _ndpointer(entry, symbol)
    raise PrototypeError(
        f"'{symbol}' has the argtype {entry!r}, which cannot be read. Use ctypes numbers, "
        "POINTER(type), c_char_p or numpy.ctypeslib.ndpointer(dtype)"
    )


def _ndpointer(entry, symbol: str) -> CType:
    dtype = np.dtype(entry._dtype_)
    code = f"{dtype.kind}{dtype.itemsize}"
    if code not in _NUMPY or not dtype.isnative:
        raise PrototypeError(
            f"'{symbol}' has an ndpointer of dtype {dtype}, which cannot be passed. "
            f"Those that can: {', '.join(str(np.dtype(known)) for known in _NUMPY)}"
        )
    return CType(_NUMPY[code], pointer=True, text=f"{dtype} *")
