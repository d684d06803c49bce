"""Errors. Each says what was wrong, where, and what to do next.

Every class derives from `OpgraftError` and from the built-in exception that a
caller would expect at that place, so both `except` clauses work.
"""


class OpgraftError(Exception):
    """Base of every error that Opgraft raises on purpose."""

    # TensorFlow re-creates an error that leaves a traced function only if it is
    # constructed as every exception is; otherwise its type would be lost.
    __init__ = Exception.__init__


class ArgumentError(OpgraftError, ValueError):
    """An argument has a value or a shape that cannot be served."""


class DtypeError(OpgraftError, TypeError):
    """An element type does not fit."""


class PrototypeError(OpgraftError, ValueError):
    """A C prototype cannot be read, or a parameter cannot be bound."""


class LibraryError(OpgraftError, OSError):
    """A library is missing, has changed, lacks a symbol or cannot be loaded."""


class CompileError(OpgraftError, RuntimeError):
    """A C source does not compile; the compiler's words are shown whole."""


class UnsupportedError(OpgraftError, NotImplementedError):
    """The arithmetic cannot do this; the message says what can."""


class SettingError(OpgraftError, ValueError):
    """An environment variable has a value that is not known."""
