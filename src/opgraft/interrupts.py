"""Ctrl-C, taken at a time that suits: between two steps, and never in the middle of a file."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import keras


@contextmanager
def ignored() -> Iterator[None]:
    """Let no Ctrl-C leave half a file behind."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def between_steps() -> Iterator[keras.callbacks.Callback]:
    """Give a callback by which Ctrl-C ends a `fit` after its step, with KeyboardInterrupt.

    A second Ctrl-C does not wait: the step may be long.
    """
    callback = _Stop()

    def note(*_) -> None:
        callback.asked = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield callback
    finally:
        signal.signal(signal.SIGINT, before)


class _Stop(keras.callbacks.Callback):
    asked = False

    def on_train_batch_end(self, batch, logs=None):
        if self.asked:
            raise KeyboardInterrupt

    on_test_batch_end = on_train_batch_end
