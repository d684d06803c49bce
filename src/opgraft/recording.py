"""What can be done to everything that runs inside: write it down, observe it, compute exactly."""

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


_observers: contextvars.ContextVar[tuple] = contextvars.ContextVar("observers", default=())


@contextlib.contextmanager
def observed(observer: Any) -> Iterator[None]:
    """While it is open, observer(arithmetic, left) is called for each contraction."""
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)


def observe(arithmetic: Any, left: Any) -> None:
    for observer in _observers.get():
        observer(arithmetic, left)


def is_exact() -> bool:
    return _exactly.get()


def is_recording() -> bool:
    return bool(_recorders.get())


def note(entry: Any) -> None:
    for noted in _recorders.get():
        noted.append(entry)
