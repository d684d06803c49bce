"""Other people's errors, short enough for one line of a report."""

import re

_LENGTH = 300


def told(error: BaseException) -> str:
    """The type and the first line that says something, without colours, cut where it is long."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # TensorFlow puts what a function raised behind where it stood in the graph.
    raised = [line for line in lines if re.match(r"\w*(Error|Exception): ", line)]
    first = raised[-1] if raised and lines[0].startswith("Graph execution") else ""
    if first:
        return _cut(first)
    return _cut(f"{type(error).__name__}: {lines[0] if lines else ''}")


def number_of(count: int, things: str = "gradient") -> str:
    """Such as "1 gradient", "2 gradients"."""
    return f"{count} {things}{'' if count == 1 else 's'}"


def _cut(text: str) -> str:
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]} ..."
