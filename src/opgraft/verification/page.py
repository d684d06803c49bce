"""A report as one HTML page: styles and drawings inside, nothing fetched, no scripts."""

from __future__ import annotations

import html
import pathlib
from collections.abc import Iterable

import numpy as np

from opgraft.verification import page_figures as figures
from opgraft.verification.difference import NOISE, Difference, number, ranges, short
from opgraft.verification.findings import MARKS, NO_CHECK, WORDS, Check, Deviation, Report, Verdict

STYLES = pathlib.Path(__file__).with_name("page.css")
CLASSES = {True: "good", False: "bad", None: "open"}
QUESTIONS = {
    "forward": "Does it compute what it declares?",
    "gradient": "Is what flows back the gradient of what it declares?",
    "contract": "Does it keep to its arguments, come back, and give the same every time?",
}
PANEL_SIDE = 24  # rows and columns up to which values are drawn one by one
RUNS = 8  # of indices, listed for one axis

_text = html.escape


def render(report: Report) -> str:
    """The whole page."""
    title = f"{MARKS[report.passed]} {_text(report.target)} · opgraft verify"
    parts = [
        _head(report),
        *(_verdict(verdict) for verdict in report.verdicts),
        _metrics(report.metrics) if report.metrics else "",
        _deviations(report.deviations) if report.deviations else "",
        "<footer>Written by opgraft verify.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{STYLES.read_text(encoding='utf-8')}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(filter(None, parts)) + "\n</main>\n</body>\n</html>\n"
    )


# ---- what was found ------------------------------------------------------------------


def _head(report: Report) -> str:
    checks = [check for verdict in report.verdicts for check in verdict.checks]
    ran = sum(check.passed is not None for check in checks)
    passed = sum(check.passed is True for check in checks)
    state = "PASSED" if report.passed else "FAILED"
    counts = f"{passed} of {len(checks)} checks passed"
    counts += f", {len(checks) - ran} could not be run" if ran < len(checks) else ""
    verdicts = "".join(
        f'<li><a href="#{_text(verdict.name)}">{_marked(verdict.outcome)} '
        f"{_text(verdict.name.capitalize())}</a></li>"
        for verdict in report.verdicts
    )
    return (
        f'<header>\n<p class="kicker">opgraft verify</p>\n<h1>{_text(report.target)}</h1>\n'
        f'<div class="verdict {CLASSES[report.passed]}">\n'
        f"<strong>{_marked(report.passed)} {state}</strong> "
        f'<span class="faint">in {report.seconds:.1f} s: {counts}</span>\n'
        f"<ul>{verdicts}</ul>\n</div>\n</header>\n" + ("" if report.passed else _wrong(report))
    )


def _wrong(report: Report) -> str:
    named = [f"<li>{_text(finding)}</li>" for finding in report.findings]
    unnamed = report.failures if not named else ()
    named += [f"<li>{_text(check.name)}</li>" for check in unnamed]
    parts = ['<section>\n<h2 id="findings">What is wrong</h2>']
    parts += [f'<ul class="findings">{"".join(named)}</ul>'] if named else []
    cases = list(dict.fromkeys(check.case for check in report.failures if check.case))
    if cases:
        listed = ", ".join(f"<code>{_text(case)}</code>" for case in cases[:3])
        parts.append(f'<p class="cases">Smallest failing case: {listed}</p>')
    if report.not_run:
        names = ", ".join(_text(check.name) for check in report.not_run)
        parts.append(f'<p class="cases">Could not be run: {names}</p>')
    return "\n".join([*parts, "</section>"])


def _verdict(verdict: Verdict) -> str:
    heading = (
        f"{_text(verdict.name.capitalize())} {_marked(verdict.outcome)} {WORDS[verdict.outcome]}"
    )
    question = QUESTIONS.get(verdict.name, "")
    rows = [_check(check) for check in verdict.checks or (NO_CHECK,)]
    head = ("", "check", "what was seen", "what passing proves")
    return (
        f'<section id="{_text(verdict.name)}">\n<h2>{heading}</h2>\n'
        f'<p class="faint">{question}</p>\n{_table(head, rows, "checks")}\n</section>'
    )


def _check(check: Check) -> tuple[str, ...]:
    seen = _text(check.message)
    if check.case and check.passed is False:
        seen += f"\nSmallest case: <code>{_text(check.case)}</code>"
    return _marked(check.passed), _text(check.name), seen, _text(check.proves)


def _marked(passed: bool | None) -> str:
    label = f'role="img" aria-label="{WORDS[passed]}"'
    return f'<span class="{CLASSES[passed]}" {label}>{MARKS[passed]}</span>'


def _metrics(metrics: dict[str, float]) -> str:
    rows = [(_text(str(name)), number(value)) for name, value in metrics.items()]
    return (
        '<section>\n<h2 id="metrics">Metrics</h2>\n'
        '<p class="faint">The forward error against the exact operation.</p>\n'
        f"{_table(('figure', 'value'), rows, 'figures')}\n</section>"
    )


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]], kind: str) -> str:
    """Cells are HTML already."""
    heads = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    parts = (f'<table class="{kind}">', f"<thead><tr>{heads}</tr></thead>", "<tbody>", body)
    return "\n".join([*parts, "</tbody>", "</table>"])


# ---- where it deviates ---------------------------------------------------------------


def _deviations(deviations: tuple[Deviation, ...]) -> str:
    articles = "\n".join(_deviation(deviation) for deviation in deviations)
    return f'<section>\n<h2 id="deviations">Where it deviates</h2>\n{articles}\n</section>'


def _deviation(deviation: Deviation) -> str:
    case = f" <code>{_text(deviation.case)}</code>" if deviation.case else ""
    difference = deviation.difference()
    if difference is None:
        body = f"<p>{_why_not_drawn(deviation)}</p>"
    else:
        body = f"<p>{_extent(difference)}</p>\n{_facts(difference)}\n{_drawings(difference)}"
    return f"<article>\n<h3>{_text(deviation.title)}{case}</h3>\n{body}\n</article>"


def _why_not_drawn(deviation: Deviation) -> str:
    due, came = (np.shape(each) for each in (deviation.expected, deviation.actual))
    if due == came:
        return f"The shape is {due}: there are no elements to compare."
    return f"The shape should be {due}; it is {came}."


def _extent(difference: Difference) -> str:
    """In a sentence, how much deviates."""
    total = difference.errors.size
    count = int(np.count_nonzero(difference.deviating))
    if not count:
        return f"All {total:,} elements agree."
    text = f"{count:,} of {total:,} elements deviate ({count / total:.1%})"
    if difference.not_numbers:
        text += f", {difference.not_numbers:,} of them by NaN or infinity"
    measured = difference.sizes[difference.deviating & np.isfinite(difference.sizes)]
    if measured.size:
        others = ", the others" if difference.not_numbers else ","
        most = float(measured.max())
        mean = float((measured / most).mean()) * most  # a sum of large numbers would be infinite
        text += f"{others} by {short(mean)} on average and {short(most)} at most"
    if difference.ignored:
        text += (
            f". {difference.ignored:,} more differ by less than {NOISE:.1%} of the largest error "
            "and are not counted"
        )
    return f"{text}."


def _facts(difference: Difference) -> str:
    """The worst element, and the places at which anything deviates, as two tables."""
    at = difference.worst
    place = ", ".join(
        f"{_text(name)} {index}" for name, index in zip(difference.axes, at, strict=True)
    )
    worst = [
        ("place", place or "the only element"),
        ("expected", number(difference.expected[at])),
        ("actual", number(difference.actual[at])),
        ("error", number(difference.errors[at])),
    ]
    where = [
        (_text(name), _where(indices, size), f"{size:,}")
        for name, indices, size in difference.places()
    ]
    tables = [_table(("worst element", ""), worst, "figures")]
    if difference.deviating.any() and where:
        tables.append(_table(("axis", "deviates at", "size"), where, "figures"))
    return f'<div class="facts">{"".join(f"<div>{table}</div>" for table in tables)}</div>'


def _where(indices: list[int], size: int) -> str:
    if len(indices) == size:
        return "all"
    runs = ranges(indices).split(", ")
    more = f", … ({len(indices):,} in all)" if len(runs) > RUNS else ""
    return ", ".join(runs[:RUNS]) + more


def _drawings(difference: Difference) -> str:
    sizes, names = difference.map(), _plane_names(difference)
    drawing, rows, columns = figures.error_map(sizes, names)
    others = [name for i, name in enumerate(difference.axes) if i not in difference.plane]
    over = f"largest over {_text(_and(others))}" if others else ""
    cells = (
        f"each cell the largest of {rows} &times; {columns} elements"
        if (rows, columns) != (1, 1)
        else ""
    )
    note = "; ".join(filter(None, (over, cells)))
    parts = [_figure("Where: |actual &minus; expected|", note, drawing)]
    if difference.finite.size:
        histogram = figures.histogram(difference.finite)
        note = "all elements" if not difference.not_numbers else "all elements that are finite"
        parts.append(_figure("How much: histogram of errors", note, histogram))
    if max(sizes.shape) <= PANEL_SIDE:
        return f"{_side_by_side(parts)}\n{_side_by_side(_panels(difference, names))}"
    return _side_by_side(parts)


def _plane_names(difference: Difference) -> tuple[str, str]:
    names = [_text(difference.axes[axis]) for axis in difference.plane]
    return ("row", "column") if len(names) < 2 else (names[0], names[1])


def _panels(difference: Difference, names: tuple[str, str]) -> list[str]:
    """Values around the worst element: what was due, what came, and how far apart they are."""
    due, came, apart = (
        difference.at_worst(array)
        for array in (difference.expected, difference.actual, difference.errors)
    )
    scale, step = _limit(due, came), _limit(apart)
    fixed = ", ".join(
        f"{_text(name)} {at}"
        for i, (name, at) in enumerate(zip(difference.axes, difference.worst, strict=True))
        if i not in difference.plane
    )
    note = f"at {fixed}" if fixed else ""
    return [
        _figure(title, note, figures.panel(values, limit, names))
        for title, values, limit in (
            ("Expected", due, scale),
            ("Actual", came, scale),
            ("Error (actual &minus; expected)", apart, step),
        )
    ]


def _limit(*arrays: np.ndarray) -> float:
    return max(float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in arrays)


def _and(names: list[str]) -> str:
    plural = [f"{name}s" for name in names]
    return " and ".join(filter(None, [", ".join(plural[:-1]), plural[-1]]))


def _side_by_side(parts: list[str]) -> str:
    return f'<div class="drawings">\n{"".join(parts)}</div>'


def _figure(title: str, note: str, drawing: str) -> str:
    under = f"<span>{note}</span>" if note else ""
    return f"<figure>\n<figcaption>{title}{under}</figcaption>\n{drawing}\n</figure>\n"
