"""The verifier's power: how many planted mistakes it catches and names, and its false alarms.

    python benchmarks/verify_power.py [WORD ...] [--quick]

Verifies every kernel and gradient of tests/planted.py, or those whose name holds one
of the words; `--quick` leaves out the slow ones. Prints a table. The exit code is 0 only
if every mistake was caught and named rightly and nothing right raised an alarm.
"""

import argparse
import os
import pathlib
import sys
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import planting
import rich.table
from planted import CORRECT, PLANTED
from rich.console import Console
from rich.markup import escape
from rich.progress import track

COLUMNS = ("", "seconds", "verdict", "found")


def judged(entry) -> tuple[str, list[str], float]:
    """(problem, findings, seconds) of one entry."""
    start = time.perf_counter()
    try:
        report = planting.verify(entry)
    except Exception as error:  # a verification never raises for what it verifies
        return f"raised {type(error).__name__}: {error}", [], time.perf_counter() - start
    return entry.problem(report), list(report.findings), time.perf_counter() - start


def table_of(title: str, entries, console: Console) -> tuple[int, list[str]]:
    """Verify the entries and print a table; returns their number, and a problem or "" of each."""
    table = rich.table.Table(*COLUMNS, title=title, title_justify="left", expand=True)
    problems = []
    for entry in track(entries, f"{title} ...", console=console, transient=True):
        problem, findings, seconds = judged(entry)
        problems.append(problem)
        said = f"[red]{escape(problem)}[/]" if problem else escape("; ".join(findings)) or "-"
        table.add_row(escape(entry.name), f"{seconds:.1f}", "[red]x[/]" if problem else "ok", said)
    console.print(table)
    return len(problems), problems


def standard_output_of_ours() -> Console:
    """A console on standard output, which what the kernels print no longer reaches."""
    console = Console(file=os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    return console


def main(arguments: list[str] | None, console: Console) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the names to verify")
    parser.add_argument("--quick", action="store_true", help="leave out the slow ones")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message="the Python function")

    def chosen(entries):
        named = [e for e in entries if not options.words or any(w in e.name for w in options.words)]
        return [e for e in named if not (options.quick and e.slow)]

    planted_count, wrong = table_of("Planted", chosen(PLANTED), console)
    correct_count, alarms = table_of("Correct", chosen(CORRECT), console)
    caught = sum(not problem.startswith(("missed", "raised")) for problem in wrong)
    named = sum(not problem for problem in wrong)
    false = sum(map(bool, alarms))
    console.print(
        f"caught {caught} / {planted_count} planted, named rightly {named} / {planted_count}, "
        f"false alarms {false} / {correct_count} correct"
    )
    return int(named < planted_count or false > 0)


if __name__ == "__main__":
    sys.exit(main(None, standard_output_of_ours()))
