"""What the verifier does to everything that runs inside it: write it down, compute it exactly."""

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


_exactly: contextvars.ContextVar[bool] = contextvars.ContextVar("exactly", default=False)


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """While it is open, every contraction that this context asks for is computed exactly."""
    token = _exactly.set(True)
    try:
        yield
    finally:
        _exactly.reset(token)


def is_exact() -> bool:
    return _exactly.get()


def is_recording() -> bool:
    return bool(_recorders.get())


def note(entry: Any) -> None:
    for noted in _recorders.get():
        noted.append(entry)
