"""Tables in the files that multiplier libraries and simulators write."""

import os
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from opgraft.errors import ArgumentError
from opgraft.multipliers import codes

if TYPE_CHECKING:
    from opgraft.multipliers._multiplier import Multiplier


def read(
    path: str | os.PathLike, *, signed: bool | None, ascending: bool, name: str, cost: Any
) -> "Multiplier":
    """See `Multiplier.from_file`."""
    from opgraft.multipliers._multiplier import Multiplier

    file, key = _split(path)
    if not file.is_file():
        raise ArgumentError(f"there is no file {file}")
    keywords: dict[str, Any] = {"signed": signed, "name": name, "cost": cost}
    suffix = file.suffix.lower()
    if ascending and suffix not in _ARRAYS:
        raise ArgumentError(f"{file.name}: ascending=True is for tables in {', '.join(_ARRAYS)}")
    if suffix in (".c", ".so"):
        return Multiplier.from_c(file, **keywords)
    if suffix == ".v":
        return Multiplier.from_verilog(file, **keywords)
    if suffix not in _READERS:
        raise ArgumentError(
            f"{file.name}: tables are read from {', '.join([*_READERS, '.c', '.so', '.v'])}; for "
            "another format read it yourself and give og.Multiplier.from_array(table)"
        )
    table, known = _READERS[suffix](file, key)
    if signed is None and not ascending:
        keywords["signed"] = known
    keywords["name"] = name or key or file.stem
    try:
        return Multiplier.from_array(table, ascending=ascending, **keywords)
    except ArgumentError as error:
        raise ArgumentError(f"{file.name}: {error}") from None


_UNREADABLE = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)


def keys(path: str | os.PathLike) -> list[str]:
    """Of the tables in a `.npz` file, as `file.npz:key`; of another file the file alone."""
    file, key = _split(path)
    if file.suffix.lower() != ".npz" or key or not file.is_file():
        return [os.fspath(path)]
    with _archive(file) as archive:
        return [f"{file}:{name}" for name in archive.files]


def exists(path: str | os.PathLike) -> bool:
    """Whether there is such a file, of which a key may be named behind a colon."""
    return _split(path)[0].is_file()


def _split(path: str | os.PathLike) -> tuple[pathlib.Path, str]:
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise ArgumentError(f"{path!r} is no path of a file") from None
    match = re.fullmatch(r"(.*\.npz):([^:/]+)", text)
    return (pathlib.Path(match[1]), match[2]) if match else (pathlib.Path(text), "")


def _opened(file: pathlib.Path) -> Any:
    try:
        return np.load(file, allow_pickle=False)
    except _UNREADABLE as error:
        raise ArgumentError(f"{file.name} is no NumPy file: {error}") from None


def _npy(file: pathlib.Path, key: str) -> tuple[np.ndarray, None]:
    array = _opened(file)
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"{file.name} holds several arrays; its name must end in .npz")
    return array, None


def _npz(file: pathlib.Path, key: str) -> tuple[np.ndarray, None]:
    with _archive(file) as archive:
        if not key and len(archive.files) == 1:
            key = archive.files[0]
        if key not in archive.files:
            if not archive.files:
                raise ArgumentError(f"{file.name} holds no array")
            raise ArgumentError(
                f"{file.name} holds {', '.join(archive.files[:20])}: choose one, such as "
                f"{file.name}:{archive.files[0]}"
            )
        try:
            return archive[key], None
        except _UNREADABLE as error:
            raise ArgumentError(f"{file.name}: {key} cannot be read: {error}") from None


def _archive(file: pathlib.Path) -> Any:
    archive = _opened(file)
    if isinstance(archive, np.ndarray):
        raise ArgumentError(f"{file.name} holds one array alone; its name must end in .npy")
    return archive


def _bin(file: pathlib.Path, key: str) -> tuple[np.ndarray, None]:
    data = file.read_bytes()
    if len(data) != 2 * 65536:
        raise ArgumentError(
            f"{file.name} has {len(data)} bytes; a table of 256 x 256 16-bit numbers has 131072"
        )
    return np.frombuffer(data, "<u2").reshape(256, 256), None


_NUMBER = r"[-+]?(?:0[xX][0-9a-fA-F]+|\d+)"


def _header(file: pathlib.Path, key: str) -> tuple[np.ndarray, bool | None]:
    """`type name[rows][columns] = {{...}, ...};`, comments left out."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", file.read_text(errors="replace"), flags=re.S)
    found = re.search(
        r"([A-Za-z_][\w\s]*?)\s+(\w+)\s*\[\s*(\d+)\s*\]\s*\[\s*(\d+)\s*\]\s*=\s*(\{.*?\})\s*;",
        text, re.S,
    )  # fmt: skip
    if not found:
        raise ArgumentError(f"{file.name} holds no `type table[256][256] = {{...}};`")
    numbers = [_c_integer(number) for number in re.findall(_NUMBER, found[5])]
    rows, columns = int(found[3]), int(found[4])
    if len(numbers) != rows * columns:
        raise ArgumentError(
            f"{file.name}: {found[2]} is declared as [{rows}][{columns}], and {len(numbers)} "
            f"numbers are given where {rows * columns} are needed"
        )
    signed = True if min(numbers) < 0 else None
    return np.array(numbers).reshape(rows, columns), signed


def _c_integer(text: str) -> int:
    """C writes octal numbers with a 0 in front."""
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
    try:
        return int(text, 8 if octal else 0)
    except ValueError:
        raise ArgumentError(f"{text} is no number in C") from None


def _triples(file: pathlib.Path, key: str) -> tuple[np.ndarray, bool | None]:
    """Lines "a b product", separated by spaces, commas or semicolons; `#` begins a comment."""
    rows: list[tuple[int, int, int]] = []
    titled = False
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        words = re.split(r"[\s,;]+", line.partition("#")[0].strip())
        if words == [""]:
            continue
        try:
            a, b, product = (_whole(word) for word in words)
        except ValueError:
            if not rows and not titled:
                titled = True
                continue
            raise ArgumentError(
                f'{file.name}, line {number}: "{line.strip()}" is no "a b product"'
            ) from None
        rows.append((a, b, product))
    if not rows:
        raise ArgumentError(f'{file.name} holds no line "a b product"')
    return _of_triples(file.name, np.array(rows, np.int64))


def _whole(word: str) -> int:
    """A whole number, also as "0x1f" or "5.0"; within 64 bits."""
    if re.fullmatch(r"[-+]?0[xX][0-9a-fA-F]+", word):
        number: float = int(word, 16)
    else:
        number = int(word) if re.fullmatch(r"[-+]?\d+", word) else float(word)
    if not abs(number) < 2**63 or number != int(number):
        raise ValueError(word)
    return int(number)


def _of_triples(name: str, rows: np.ndarray) -> tuple[np.ndarray, bool | None]:
    signed = True if rows[:, :2].min() < 0 else None
    sizes = []
    for column in (rows[:, 0], rows[:, 1]):
        reach = max(int(column.max()), -int(column.min()) - 1)
        sizes.append(2 ** (max(reach, 1).bit_length() + (signed is True)))
        if sizes[-1] > 2**codes.WIDEST:
            raise ArgumentError(
                f"{name}: operands reach from {int(column.min())} to {int(column.max())}, which "
                f"are more than {codes.WIDEST} bits{' with a sign' * (signed is True)}"
            )
    table = np.zeros(sizes, np.int64)
    seen = np.zeros(sizes, np.int64)
    at = rows[:, 0] % sizes[0], rows[:, 1] % sizes[1]
    table[at] = rows[:, 2]
    np.add.at(seen, at, 1)
    if (seen != 1).any():
        a, b = (int(i) for i in np.argwhere(seen != 1)[0])
        how = "missing" if not seen[a, b] else "given more than once"
        raise ArgumentError(
            f"{name}: the pair with the codes {a}, {b} is {how}; one line is needed for each of "
            f"the {sizes[0]} x {sizes[1]} pairs"
        )
    return table, signed


_ARRAYS = (".npy", ".npz", ".bin", ".h", ".hpp")
_READERS: dict[str, Callable[[pathlib.Path, str], tuple[np.ndarray, bool | None]]] = {
    ".npy": _npy, ".npz": _npz, ".bin": _bin, ".h": _header, ".hpp": _header, ".txt": _triples,
    ".csv": _triples,
}  # fmt: skip
