"""The command `opgraft inspect`: the facts of multipliers, and what will surprise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opgraft.cli_support import complaints, console, writable_file
from opgraft.errors import ArgumentError

if TYPE_CHECKING:
    from opgraft.multipliers import Multiplier

STDOUT = Path("-")
NAME_WIDTH = 30


def inspect(
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|FAMILY...",
            help="Tables (.npy, .npz, .npz:KEY, .bin, .h, .txt, .csv), a C function (.c), a "
            "Verilog module (.v), or a family: mitchell, drum:4, truncated:columns=4.",
            show_default=False,
        ),
    ] = None,
    signed: Annotated[
        bool | None,
        typer.Option(
            "--signed/--unsigned",
            help="Whether operands and results are two's complement.",
            show_default="found out",
        ),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A JSON file of published power, area and delay."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write all facts here; - for standard output."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the errors here, as .png, .pdf, .svg.")
    ] = None,
) -> None:
    """Show how far approximate multipliers are from exact, and what in them will surprise."""
    from opgraft.multipliers import names

    if not named:
        raise ArgumentError(
            "Name what to inspect: opgraft inspect FILE|FAMILY.... FILE is a table, a C function "
            f"or a Verilog module; families are {', '.join(names.FAMILIES)}."
        )
    kind = _picture_kind(picture)
    for option, path in (("--json", json_file), ("--picture", picture)):
        if path is not None and (option, path) != ("--json", STDOUT):
            writable_file(option, path)
    published = published_costs(costs)
    found = [each for text in named for each in names.read(text, signed)]
    facts = [_facts(*with_cost(each, published)) for each in found]
    _write(facts, found, json_file, picture, kind)
    people: Console = complaints if json_file == STDOUT else console
    for at, table in enumerate(_tables(facts, people.width)):
        people.print("\n" * bool(at), end="")
        people.print(table)
    _tell(people, facts, len(named) == len(found) == 1)
    for path in (json_file, picture):
        if path is not None and path != STDOUT:
            people.print(f"Saved {path}", soft_wrap=True)


# ---- what is known of them -----------------------------------------------------------------


def _facts(multiplier: Multiplier, notes: Sequence[str]) -> dict[str, Any]:
    first, second = multiplier.zero_behaviour
    return {
        "name": multiplier.name,
        "signed": multiplier.signed,
        "widths": list(multiplier.widths),
        "sha256": multiplier.sha256,
        "metrics": multiplier.metrics(),
        "rank": multiplier.rank,
        "commutative": multiplier.commutative,
        "not_zero": {"first": first, "second": second},
        "cost": multiplier.cost and asdict(multiplier.cost),
        "surprises": [*notes, *multiplier.surprises()],
        "notes": list(multiplier.notes),
    }


def published_costs(path: Path | None) -> dict[str, Any]:
    """The figures of each circuit in a file such as EvoApproxLib's, by name."""
    if path is None:
        return {}
    try:
        circuits = json.loads(path.read_text())["circuits"]
        return {name: dict(circuit) for name, circuit in circuits.items()}
    except OSError as error:
        raise ArgumentError(f"--costs {path}: {error.strerror}. Check the path.") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArgumentError(
            f'--costs {path}: it must be JSON, {{"circuits": {{NAME: {{"published": '
            '{"PDK45_PWR": ..., "PDK45_AREA": ..., "PDK45_DELAY": ...}}}}.'
        ) from error


def with_cost(
    multiplier: Multiplier, published: dict[str, Any]
) -> tuple[Multiplier, tuple[str, ...]]:
    """The multiplier with its published cost, if the table is that of the publication."""
    from opgraft.multipliers._multiplier import costs_of

    known = published.get(multiplier.name)
    if known is None:
        return multiplier, ()
    if known.get("sha256", multiplier.sha256) != multiplier.sha256:
        return multiplier, ("it is not the circuit whose cost is published under this name",)
    try:
        return multiplier.with_cost(costs_of(known["published"], "PDK45")), ()
    except (KeyError, TypeError, ValueError):
        return multiplier, ("its cost is not among the published figures",)


# ---- the table -----------------------------------------------------------------------------


class _Column(NamedTuple):
    title: str
    of: Callable[[dict[str, Any]], Any]


def _metric(key: str, title: str = "") -> _Column:
    return _Column(title or key, lambda facts: facts["metrics"][key])


def _cost(key: str, unit: str) -> _Column:
    return _Column(f"{key}/{unit}", lambda facts: (facts["cost"] or {}).get(key))


GROUPS = (
    (
        _Column("type", lambda facts: _type(facts)),
        _metric("MAE"), _metric("WCE"), _metric("MSE"), _metric("mean_error", "mean error"),
        _Column("rank", lambda facts: facts["rank"]),
    ),
    (_metric("MAE%"), _metric("WCE%"), _metric("WCRE%"), _metric("EP%"), _metric("MRE%")),
    (_cost("power", "mW"), _cost("area", "µm²"), _cost("delay", "ns")),
)  # fmt: skip


def _type(facts: dict[str, Any]) -> str:
    kind = {True: "signed", False: "unsigned", None: "numbers"}[facts["signed"]]
    return f"{kind} {'x'.join(map(str, facts['widths']))}"


def _tables(facts: list[dict[str, Any]], width: int) -> Iterator[Table]:
    """One table, or one below the other where the terminal is too narrow for one."""
    titles = [each["name"] or "(no name)" for each in facts]
    taken = own = min(max(map(len, ["name", *titles])), NAME_WIDTH)
    waiting: list[tuple[str, list[str]]] = []
    for group in GROUPS:
        columns = [(c.title, [_shown(c.of(each)) for each in facts]) for c in group]
        if not any(any(cells) for _, cells in columns):  # no cost is known
            continue
        more = sum(2 + max(map(len, [title, *cells])) for title, cells in columns)
        if waiting and taken + more > width:
            yield _table(titles, own, waiting)
            waiting, taken = [], own
        waiting += columns
        taken += more
    yield _table(titles, own, waiting)


def _table(titles: list[str], width: int, columns: list[tuple[str, list[str]]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("name", max_width=width, overflow="fold")
    for title, _ in columns:
        table.add_column(title, justify="left" if title == "type" else "right", no_wrap=True)
    for at, name in enumerate(titles):
        table.add_row(Text(name), *(Text(cells[at]) for _, cells in columns))
    return table


def _shown(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"


def _tell(people: Console, facts: list[dict[str, Any]], alone: bool) -> None:
    """The surprises; of many tables, whose type was found out is told in one sentence."""
    from opgraft.multipliers.codes import TAKEN

    found_out = 0
    for each in facts:
        told = [s for s in each["surprises"] if alone or not s.startswith(TAKEN)]
        found_out += len(told) < len(each["surprises"])
        if told:
            people.print()
            people.print(Text(each["name"] or "(no name)", style="bold"))
        for sentence in told:
            lines = Table.grid(padding=(0, 1, 0, 0))
            lines.add_row("  -", Text(sentence))
            people.print(lines)
    people.print()
    if found_out:
        people.print(
            f"Whether numbers are signed was found out for {found_out} of {len(facts)}; --signed "
            "or --unsigned says it for all."
        )


# ---- files ---------------------------------------------------------------------------------


def _picture_kind(path: Path | None) -> str:
    """As matplotlib names it; an error must not wait until the work is done."""
    kind = path.suffix[1:].lower() if path is not None else "png"
    if kind not in ("png", "pdf", "svg"):
        raise ArgumentError(f"--picture {path}: the name must end in .png, .pdf or .svg.")
    return kind


def _write(
    facts: list[dict[str, Any]], found: list[Multiplier], json_file: Path | None,
    picture: Path | None, kind: str,
) -> None:  # fmt: skip
    from opgraft import report

    text = json.dumps(report.plain({"multipliers": facts}), indent=2)
    if json_file == STDOUT:
        print(text)
    elif json_file is not None:
        json_file.write_text(text + "\n", encoding="utf-8")
    if picture is not None:
        from opgraft.multipliers import picture as drawing

        drawing.draw(picture, found, kind)
