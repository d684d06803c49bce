"""What a verification says: checks, three verdicts, diagnoses, and where it deviates.

Plain data, so that every way to show it (terminal, page, JSON) reads the same.
"""

import dataclasses
import html
import io
import json
import math
import os
import pathlib
from typing import Any

import numpy as np

from opgraft.verification.difference import Difference

# How a check or a verdict is marked, and said in words.
MARKS = {True: "✓", False: "✗", None: "\u2013"}
WORDS = {True: "passed", False: "failed", None: "not complete"}


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: short and stable, in lower case, such as "terminates".
        passed: True, False, or None where it could not be run; `message` says why.
        message: what was seen, and for a failure where and what to do.
        proves: what passing proves, and what it does not.
        case: the smallest failing case, if there is one.
    """

    name: str
    passed: bool | None
    message: str
    proves: str = ""
    case: str = ""

    def __post_init__(self) -> None:
        if self.passed is not None:  # NumPy's True is not True
            object.__setattr__(self, "passed", bool(self.passed))
        if self.proves:  # one way to write a sentence, whoever wrote it
            sentence = self.proves[0].upper() + self.proves[1:].rstrip(".") + "."
            object.__setattr__(self, "proves", sentence)


NO_CHECK = Check("none", None, "nothing was checked")  # shown where a verdict is empty


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Checks of one kind: forward, gradient or contract."""

    name: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check has run and passed."""
        return bool(self.checks) and all(check.passed is True for check in self.checks)

    @property
    def outcome(self) -> bool | None:
        """`passed`, but None where nothing failed and not everything could be run."""
        failed = any(check.passed is False for check in self.checks)
        return True if self.passed else False if failed else None


@dataclasses.dataclass(frozen=True, eq=False)
class Deviation:
    """Arrays of one case, to be drawn: what came out, and what was due.

    Attributes:
        title: such as "forward", "gradient of x".
        case: the case's id.
        expected, actual: arrays of numbers; their shapes differ only where that is what is wrong.
        axes: a name for each axis. Those that end with "row" and "column" are drawn as such.
            Without names, four axes are those of images, the last two of others rows and columns.
    """

    title: str
    case: str
    expected: np.ndarray
    actual: np.ndarray
    axes: tuple[str, ...] = ()

    def difference(self) -> Difference | None:
        """How far the two are apart, or None where they cannot be compared."""
        expected, actual = np.asarray(self.expected), np.asarray(self.actual)
        if expected.shape != actual.shape or not expected.size:
            return None
        return Difference(expected, actual, self.axes)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Report:
    """What `og.verify` found. Print it for a table; `save_html` writes a page.

    Attributes:
        target: what was verified, in words.
        forward, gradient, contract: the three verdicts.
        findings: named diagnoses, such as "agrees with symmetric padding".
        metrics: figures of the forward error against the exact operation, by name.
        deviations: worst cases, to be drawn.
        seconds: how long it took.
    """

    target: str
    forward: Verdict
    gradient: Verdict
    contract: Verdict
    findings: tuple[str, ...] = ()
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    deviations: tuple[Deviation, ...] = ()
    seconds: float = 0.0

    @property
    def verdicts(self) -> tuple[Verdict, Verdict, Verdict]:
        return self.forward, self.gradient, self.contract

    @property
    def passed(self) -> bool:
        """Whether all three verdicts passed."""
        return all(verdict.passed for verdict in self.verdicts)

    @property
    def not_run(self) -> tuple[Check, ...]:
        """Checks that could not be run."""
        return tuple(c for verdict in self.verdicts for c in verdict.checks if c.passed is None)

    @property
    def failures(self) -> tuple[Check, ...]:
        """Checks that failed."""
        return tuple(c for verdict in self.verdicts for c in verdict.checks if c.passed is False)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the arrays, as plain JSON values; NaN and infinity as None."""
        verdicts = {
            verdict.name: {
                "passed": verdict.passed,
                "checks": [dataclasses.asdict(check) for check in verdict.checks],
            }
            for verdict in self.verdicts
        }
        told = {
            "target": self.target,
            "passed": self.passed,
            **verdicts,
            "findings": list(self.findings),
            "metrics": dict(self.metrics),
            "deviations": [_told(deviation) for deviation in self.deviations],
            "seconds": self.seconds,
        }
        return _plain(told)

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_html(self) -> str:
        """A page that needs no other file."""
        from opgraft.verification import page

        return page.render(self)

    def save_html(self, path: str | os.PathLike) -> None:
        """Write the page of `to_html`.

        Raises:
            OSError: the file cannot be written.
        """
        # A path that is no valid Unicode may stand in it.
        pathlib.Path(path).write_bytes(self.to_html().encode("utf-8", "replace"))

    def __rich_console__(self, console, options):
        from opgraft.verification import table

        yield table.render(self, ascii_only=options.ascii_only)

    def __str__(self) -> str:
        from rich.console import Console

        with io.StringIO() as text:
            console = Console(
                file=text, width=80, color_system=None, force_terminal=False, force_jupyter=False
            )
            console.print(self)
            return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    def __repr__(self) -> str:
        found = "; ".join(self.findings)
        state = "passed" if self.passed else "failed"
        return f"<Report on {self.target}: {state}{': ' if found else ''}{found}>"

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame of its own, apart from the notebook's styles."""
        inner = html.escape(self.to_html(), quote=True)
        style = "width: 100%; height: 42rem; border: 1px solid #8884; border-radius: 6px"
        return f'<iframe srcdoc="{inner}" style="{style}" title="Verification report"></iframe>'


def _told(deviation: Deviation) -> dict[str, Any]:
    told = {"title": deviation.title, "case": deviation.case}
    difference = deviation.difference()
    if difference is None:
        shapes = (list(np.shape(each)) for each in (deviation.expected, deviation.actual))
        return told | dict(zip(("expected_shape", "actual_shape"), shapes, strict=True))
    return told | difference.summary()


def _plain(value: Any) -> Any:
    """Python's own values, with None for NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        own = value.item()  # a long double stays one
        return _plain(float(own) if isinstance(own, np.generic) else own)
    return None if isinstance(value, float) and not math.isfinite(value) else value
