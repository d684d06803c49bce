"""From what a user holds (a path, a ctypes function, a Numba cfunc) to `CSymbol`s."""

import ctypes
import os
import pathlib
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from opgraft.errors import ArgumentError, LibraryError, PrototypeError
from opgraft.native import callables, core, prototype, source
from opgraft.products.c_function import CSymbol


def is_native_callable(value) -> bool:
    """A compiled function in this process's memory."""
    return callables.is_numba_cfunc(value) or callables.is_ctypes_function(value)


def load_checked(library, declared, roles, thread_safe, flags, bind=prototype.bind):
    """`load`, for what a user wrote as `thread_safe` and `flags`.

    Raises:
        ArgumentError: they are not what they must be.
    """
    if not isinstance(thread_safe, bool):
        raise ArgumentError(f"thread_safe={thread_safe!r} must be True or False")
    try:
        words = shlex.split(flags) if isinstance(flags, str) else flags
    except ValueError as error:
        raise ArgumentError(f"flags={flags!r} cannot be split into words: {error}") from None
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise ArgumentError(f"flags={flags!r} must be text, or a list of texts")
    return load(library, declared, roles, thread_safe, tuple(words), bind)


def load(
    library, declared, roles, thread_safe: bool, flags: tuple[str, ...], bind=prototype.bind
) -> tuple[CSymbol, ...]:
    """Bind (by `prototype.bind`, or its like), find and load every function that was named."""
    if is_native_callable(library):
        if declared is not None and not isinstance(declared, str):
            raise ArgumentError("give either a ctypes function or a library, not both")
        file = None if callables.is_numba_cfunc(library) else callables.file_of(library)
        if file and declared is None:
            return load(file, library, roles, thread_safe, flags, bind)
        return (_from_memory(library, declared, roles, thread_safe, bind),)
    path = _path_of(library)
    found = _prototypes(path, declared, roles, flags)
    binary = source.compile_source(path, flags) if source.is_source(path) else ""
    file_hash = core.hash_file(str(path))
    symbols = []
    for entry, own_roles in zip(found, _roles_of_each(found, declared, roles), strict=True):
        bound = bind(entry, own_roles)
        symbol = CSymbol(
            str(path), file_hash, binary, bound.prototype.symbol, bound.prototype.text, bound.plan,
            bound.kind, 0, thread_safe,
        )  # fmt: skip
        _open(symbol, path)
        symbols.append(symbol)
    return tuple(symbols)


def _roles_of_each(found: list[prototype.CPrototype], declared, roles) -> list:
    """The part of `roles` that is meant for each of the prototypes."""
    if roles is None or (_is_sequence(roles) and _named(declared)):
        return [None] * len(found)
    if len(found) == 1:
        return [roles]
    if not isinstance(roles, Mapping):
        raise PrototypeError(
            f"roles is a list, and there are {len(found)} prototypes; give {{parameter: role}}"
        )
    names = [{name for name, _ in entry.parameters} for entry in found]
    unknown = set(roles) - set().union(*names)
    if unknown:
        symbols = ", ".join(entry.symbol for entry in found)
        raise PrototypeError(
            f"roles names {sorted(unknown)}, but none of {symbols} has such a parameter"
        )
    return [{name: roles[name] for name in own & set(roles)} for own in names]


def _is_sequence(roles) -> bool:
    return isinstance(roles, list | tuple)


def _named(declared) -> bool:
    """The names were given to the ctypes function already."""
    return callables.is_ctypes_function(declared)


_OTHER_SOURCES = (".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp")


def _path_of(library) -> pathlib.Path:
    if isinstance(library, ctypes.CDLL):
        library = callables.path_of_cdll(library)
        if library is None:
            raise ArgumentError("the ctypes.CDLL has no file; give the path of a library")
    if not isinstance(library, str | os.PathLike):
        raise ArgumentError(
            f"library={library!r} is a {type(library).__name__}; it must be the path of a .so or a "
            ".c file, a ctypes.CDLL, a ctypes function or a Numba cfunc"
        )
    path = pathlib.Path(library).expanduser().absolute()
    if path.is_dir():
        raise LibraryError(f"the library '{path}' is a folder; name the .so or the .c file in it")
    if path.suffix in _OTHER_SOURCES:
        raise LibraryError(
            f"'{path}' is not compiled here, only sources in C whose name ends in .c are. Compile "
            'it yourself (c++ -shared -fPIC, the function declared extern "C") and give the .so'
        )
    if not path.is_file():
        beside = [entry.name for ending in ("*.so", "*.c") for entry in path.parent.glob(ending)]
        raise LibraryError(
            f"the library '{path}' does not exist. {source.near_names(path.name, beside)}"
        )
    return path


def _prototypes(path: pathlib.Path, declared, roles, flags) -> list[prototype.CPrototype]:
    if callables.is_ctypes_function(declared):
        return [callables.from_ctypes(declared, roles if _is_sequence(roles) else None)]
    if declared is None:
        if not source.is_source(path):
            raise PrototypeError(
                f"the prototype of the function in '{path}' is missing: a library does not say "
                "what "
                'its functions take. Paste it: og.c_function(path, "void mm(const float *a, ...)")'
            )
        declared = source.find_prototype(path, flags=flags)
    if isinstance(declared, list | tuple):
        return [entry for part in declared for entry in _prototypes(path, part, roles, flags)]
    if not isinstance(declared, str):
        raise PrototypeError(
            f"prototype={declared!r} is a {type(declared).__name__}; it must be text or a ctypes "
            "function with argtypes"
        )
    return prototype.parse(declared)


def _from_memory(function, declared, roles, thread_safe: bool, bind) -> CSymbol:
    if declared is not None:
        (found,) = prototype.parse(declared)
    elif callables.is_numba_cfunc(function):
        found = callables.from_numba(function)
    else:
        found = callables.from_ctypes(function, roles if _is_sequence(roles) else None)
    address = getattr(function, "address", None) or callables.address_of(function)
    named = declared is None and callables.is_ctypes_function(function) and _is_sequence(roles)
    bound = bind(found, None if named else roles)
    _kept_alive.append(function)
    return CSymbol(
        "", core.process_token(), "", found.symbol, found.text, bound.plan, bound.kind, address,
        thread_safe,
    )  # fmt: skip


# Machine code of a Numba or ctypes function lives as long as its Python object.
_kept_alive: list = []


def _open(symbol: CSymbol, path: pathlib.Path) -> None:
    try:
        core.open_function(symbol.spec())
    except LibraryError as error:
        if "has no function" not in str(error):
            raise
        near = source.near_names(symbol.symbol, _exported(symbol))
        raise LibraryError(
            f"'{path}' has no function '{symbol.symbol}' (in C++, declare it extern \"C\"). {near}"
        ) from None


def _exported(symbol: CSymbol) -> list[str]:
    """Names in the dynamic symbol table, where `nm` is there to read it."""
    try:
        done = subprocess.run(
            ["nm", "-D", "--defined-only", str(symbol.compiled_file)],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return []
    return [line.split()[-1] for line in done.stdout.splitlines() if " T " in line]
