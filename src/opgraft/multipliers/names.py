"""What a command line names: files of tables, and families such as `drum:4`."""

import inspect
import re
from collections.abc import Callable
from typing import Any

from opgraft.errors import ArgumentError
from opgraft.multipliers import families, files
from opgraft.multipliers._multiplier import Multiplier

FAMILIES: dict[str, Callable[..., Multiplier]] = {
    function.__name__: function
    for function in (
        families.exact, families.truncated, families.broken_array, families.mitchell,
        families.drum, families.roba, families.kulkarni, families.rounded,
    )
}  # fmt: skip


def read(text: str, signed: bool | None = None) -> list[Multiplier]:
    """The multipliers that a text names: one, or all that are in a `.npz` file.

    Args:
        text: a path, as for `Multiplier.from_file`; `file.npz` stands for all of its tables,
            `file.npz:KEY` for one. Or, where there is no such file, a family with its
            arguments: `mitchell`, `drum:4`, `truncated:columns=4`, `exact:widths=8x4`.
        signed: whether they are two's complement; None: files as `from_file` finds out, and
            families unsigned. A family that is not signed itself becomes so by
            `sign_magnitude`.

    Raises:
        ArgumentError: there is neither such a file nor such a family, or what it holds or is
            given is wrong.
    """
    family, _, arguments = text.partition(":")
    function = FAMILIES.get(family.replace("-", "_"))
    if function is not None and not files.exists(text):
        return [_of_family(text, function, arguments, bool(signed))]
    if not files.exists(text) and not re.search(r"[./\\]", text):
        raise ArgumentError(
            f"there is neither a file nor a family {text}; families are {', '.join(FAMILIES)}"
        )
    return [Multiplier.from_file(each, signed=signed) for each in files.keys(text)]


def _of_family(
    text: str, function: Callable[..., Multiplier], arguments: str, signed: bool
) -> Multiplier:
    signature = inspect.signature(function)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for argument in filter(None, arguments.split(",")):
        name, equals, value = argument.partition("=")
        if equals:
            named[name.strip()] = _value(text, value)
        else:
            positional.append(_value(text, name))
    itself = "signed" in signature.parameters
    if itself and signed:
        named["signed"] = True
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        takes = ", ".join(name for name in signature.parameters if name != "signed")
        raise ArgumentError(f"{text}: {error}; {function.__name__} takes {takes}") from None
    try:
        made = function(*positional, **named)
    except ArgumentError as error:
        raise ArgumentError(f"{text}: {error}") from None
    return families.sign_magnitude(made) if signed and not itself else made


def _value(text: str, value: str) -> int | tuple[int, ...]:
    if not re.fullmatch(r"\s*\d+(x\d+)?\s*", value):
        raise ArgumentError(f"{text}: {value or 'nothing'} is no number, such as 4, or widths, 8x4")
    numbers = tuple(int(number) for number in value.split("x"))
    return numbers if len(numbers) > 1 else numbers[0]
