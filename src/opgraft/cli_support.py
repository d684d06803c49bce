"""What the commands share: where they print, and how they read what the user named."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from opgraft.errors import ArgumentError, OpgraftError

EXAMPLES = Path(__file__).parent / "kernels"

console = Console(markup=False, highlight=False)  # a path may hold [brackets]
complaints = Console(stderr=True, markup=False, highlight=False)


@dataclass(frozen=True)
class Kernel:
    """A C function that the command line named, ready to compute."""

    file: str
    prototype: str
    arithmetic: Any


def load_kernel(
    named: str, prototype: str | None, option: str, flags: Sequence[str] = ("-O3",), **settings: Any
) -> Kernel:
    """The C function at FILE[:SYMBOL].

    Args:
        named: the path of a source or a library, with the symbol behind a colon.
        prototype: its declaration; None to read it from the source.
        option: the option by which the user can give one.
        flags: compiler flags for a source.
        settings: further arguments of `og.c_function`.

    Raises:
        ArgumentError: it cannot be found, bound or compiled.
    """
    import opgraft as og

    path, symbol = _file_and_symbol(named)
    try:
        if not path.is_file():
            raise ArgumentError(f"There is no file {path}. Check the path.")
        text = prototype or _prototype(path, symbol, option, tuple(flags))
        if symbol and not re.search(rf"\b{symbol}\s*\(", text):
            raise ArgumentError(f"The prototype does not declare {symbol}: {text}")
        return Kernel(str(path), text, og.c_function(path, text, flags=flags, **settings))
    except OpgraftError as error:
        raise ArgumentError(f"{path}: {error}") from error


def _prototype(path: Path, symbol: str | None, option: str, flags: tuple[str, ...]) -> str:
    from opgraft.native.source import find_prototype

    if path.suffix != ".c":
        raise ArgumentError(
            "A library does not say what arguments its functions take. "
            f"Paste the prototype: {option} 'void f(const float *a, …)'."
        )
    try:
        return find_prototype(path, symbol, flags)
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def _file_and_symbol(named: str) -> tuple[Path, str | None]:
    file, colon, symbol = named.rpartition(":")
    if colon and symbol.isidentifier() and not Path(named).exists():
        return Path(file), symbol
    return Path(named), None


def writable_folder(path: Path) -> Path:
    """Make the folder now, and try it: an error must not wait until the work is done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        reason = f"Cannot write into the folder {path}: {error.strerror}. Choose another."
        raise ArgumentError(reason) from error
    return path


def writable_file(option: str, path: Path) -> Path:
    """Try the file of an option, and leave its content alone."""
    if path.is_dir():
        raise ArgumentError(f"{option} {path}: this is a folder. Give the path of a file.")
    if not path.exists():
        writable_folder(path.parent)
    elif path.is_file():  # a pipe would take the trial for all there is
        try:
            path.open("ab").close()
        except OSError as error:
            reason = f"{option} {path}: cannot be written: {error.strerror}. Choose another file."
            raise ArgumentError(reason) from error
    return path
