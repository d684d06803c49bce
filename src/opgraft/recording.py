"""Writing down what is asked for while something runs: contractions, and custom ops."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_recorders: contextvars.ContextVar[tuple[list, ...]] = contextvars.ContextVar(
    "recorders", default=()
)


@contextlib.contextmanager
def recorded() -> Iterator[list[Any]]:
    """While it is open, everything that this context notes is appended to the list."""
    noted: list[Any] = []
    token = _recorders.set((*_recorders.get(), noted))
    try:
        yield noted
    finally:
        _recorders.reset(token)


def is_recording() -> bool:
    return bool(_recorders.get())


def note(entry: Any) -> None:
    for noted in _recorders.get():
        noted.append(entry)
