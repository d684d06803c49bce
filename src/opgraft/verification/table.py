"""A report in the terminal: what is wrong on top, then every check, then the figures."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from opgraft.verification.difference import number
from opgraft.verification.findings import MARKS, NO_CHECK, WORDS, Check, Report, Verdict

GOOD, BAD, OPEN = "green", "bold red", "yellow"
STYLES = {True: GOOD, False: BAD, None: OPEN}
ASCII_MARKS = {True: "ok", False: "XX", None: "--"}
NAME_WIDTH = 26
SHOWN = 3


def render(report: Report, *, ascii_only: bool = False) -> RenderableType:
    """The whole report; `ascii_only` for a terminal that has no marks.

    All text is a `rich.text.Text`: a path may hold [brackets].
    """
    marks = ASCII_MARKS if ascii_only else MARKS
    parts: list[RenderableType] = [Text(report.target, "bold"), Text()]
    if not report.passed:
        parts += [_wrong(report), Text()]
    names = [check.name for verdict in report.verdicts for check in verdict.checks]
    width = min(NAME_WIDTH, max(map(len, names), default=1))
    for verdict in report.verdicts:
        parts += [_heading(verdict), _checks(verdict, marks, width), Text()]
    if report.metrics:
        figures = (f"{name} {number(value)}" for name, value in report.metrics.items())
        parts += [_labelled([("Metrics:", Text(", ".join(figures)))]), Text()]
    return Group(*parts, _last_line(report))


def _wrong(report: Report) -> Table:
    rows = [("What is wrong:", Text(finding, BAD)) for finding in report.findings]
    if not rows:
        names = Text(", ".join(check.name for check in report.failures), BAD)
        rows = [("What is wrong:", names)] if report.failures else []
    if report.not_run:
        names = Text(", ".join(check.name for check in report.not_run), OPEN)
        rows.append(("Could not be run:", names))
    cases = dict.fromkeys(check.case for check in report.failures if check.case)
    rows += [("Smallest case:", Text(case)) for case in list(cases)[:SHOWN]]
    rows += [("Worst element:", Text(text)) for text in _worst(report)]
    return _labelled(rows)


def _worst(report: Report) -> Iterator[str]:
    failed = tuple(v.name for v in report.verdicts if v.outcome is False)
    shown = [d for d in report.deviations if d.title.startswith(failed)]
    for deviation in shown[:SHOWN]:
        difference = deviation.difference()
        if difference is not None and difference.deviating.any():
            at = difference.worst
            place = ", ".join(map(str, at))
            due, came = number(difference.expected[at]), number(difference.actual[at])
            yield f"{deviation.title} [{place}]: expected {due}, actual {came}"


def _labelled(rows: list[tuple[str, Text]]) -> Table:
    """Labels beside their texts; a label that stands above its like is not repeated."""
    sheet = Table.grid(padding=(0, 1))
    sheet.add_column(no_wrap=True)
    sheet.add_column(overflow="fold")
    previous = ""
    for label, text in rows:
        sheet.add_row(Text(label if label != previous else "", "bold"), text)
        previous = label
    return sheet


def _heading(verdict: Verdict) -> Text:
    state = WORDS[verdict.outcome], STYLES[verdict.outcome]
    return Text.assemble((f"{verdict.name.capitalize()}: ", "bold"), state)


def _checks(verdict: Verdict, marks: dict, width: int) -> Padding:
    sheet = Table.grid(padding=(0, 1))
    sheet.add_column(no_wrap=True)
    sheet.add_column(overflow="fold", width=width + 1)
    sheet.add_column(overflow="fold")
    for check in verdict.checks or (NO_CHECK,):
        style = STYLES[check.passed]
        bold = "bold" if check.passed is False else ""
        sheet.add_row(Text(marks[check.passed], style), Text(check.name, bold), _message(check))
    return Padding(sheet, (0, 0, 0, 2))


def _message(check: Check) -> Text:
    case = f"\ncase: {check.case}" if check.case and check.passed is False else ""
    return Text.assemble(check.message, (case, "dim"))


def _last_line(report: Report) -> Text:
    if report.passed:
        return Text(f"PASSED in {report.seconds:.1f} s", f"bold {GOOD}")
    states = (f"{verdict.name} {WORDS[verdict.outcome]}" for verdict in report.verdicts)
    return Text.assemble((f"FAILED in {report.seconds:.1f} s", BAD), f": {', '.join(states)}")
