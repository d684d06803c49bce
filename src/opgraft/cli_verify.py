"""The command `opgraft verify`: reads what was named, and shows what the verifier reports."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from opgraft.cli_support import EXAMPLES, complaints, console, load_kernel, writable_file
from opgraft.errors import ArgumentError

if TYPE_CHECKING:
    from opgraft.verification.findings import Report

SHIPPED = ("matmul", "conv2d")
MEGABYTE = 2**20
STDOUT = Path("-")


def verify(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE[:SYMBOL]",
            help="Your C function, in a .c source or a .so library; or matmul or conv2d, the "
            "examples shipped with opgraft.",
            show_default=False,
        ),
    ] = None,
    prototype: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Its C prototype, where there is no source.")
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=ROLE", help="What a parameter with another name means."),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(metavar="X", help="The forward error to accept, for an approximate product."),
    ] = None,
    flags: Annotated[
        str, typer.Option(metavar="TEXT", help="Compiler flags for a .c source.")
    ] = "-O3",
    large: Annotated[
        bool, typer.Option("--large", help="Also try more than 2^31 elements.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds that one call may take.")
    ] = None,
    memory_limit: Annotated[
        float | None,
        typer.Option(metavar="MB", help="Megabytes of memory that the function may take."),
    ] = None,
    not_thread_safe: Annotated[
        bool, typer.Option("--not-thread-safe", help="Two calls must never run at once.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Write the report here; - for standard output."
        ),
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with error maps.")
    ] = None,
) -> None:
    """Say whether a C function and its gradient are right: exit code 0 if all passes, else 1."""
    if file is None:
        raise ArgumentError(
            "Name what to verify: opgraft verify FILE[:SYMBOL]. FILE is a .c source or a .so "
            f"library, or one of the examples shipped with opgraft: {', '.join(SHIPPED)}."
        )
    if limit is not None and not limit >= 0:
        raise ArgumentError(f"--limit {limit:g}: it must be 0 or more.")
    memory = _positive("--memory-limit", memory_limit)
    limits = {
        "limit": limit,
        "time_limit": _positive("--time-limit", time_limit),
        "memory_limit": None if memory is None else int(memory * MEGABYTE),
    }
    for option, path in (("--json", json_file), ("--html", html_file)):
        if path is not None and (option, path) != ("--json", STDOUT):
            writable_file(option, path)
    kernel = load_kernel(
        _shipped_or(file), prototype, "--prototype", _words(flags), roles=_roles(role or []),
        thread_safe=not not_thread_safe,
    )  # fmt: skip
    given = {name: value for name, value in limits.items() if value is not None}
    with _waiting(Path(kernel.file).name), _standard_output_to_standard_error():
        report = _verify(kernel.arithmetic, large=large, **given)
    _show(report, json_file, html_file)
    raise typer.Exit(0 if report.passed else 1)


def _verify(arithmetic: Any, **options: Any) -> Report:
    from opgraft.verification import verify

    return verify(arithmetic, **options)


def _positive(option: str, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ArgumentError(f"{option} {value:g}: it must be a number above 0.")
    return value


def _shipped_or(file: str) -> str:
    return str(EXAMPLES / f"{file}.c") if file in SHIPPED and not Path(file).exists() else file


def _words(flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise ArgumentError(f"--flags {flags}: {error}. Write them as for a shell.") from error


def _roles(given: list[str]) -> dict[str, str] | None:
    """What `--role NAME=ROLE` says, or None where it says nothing."""
    roles: dict[str, str] = {}
    for text in given:
        name, equals, role = text.partition("=")
        if not (name and equals and role):
            raise ArgumentError(f"--role {text}: write NAME=ROLE, such as --role weights=kernel.")
        if name in roles:
            raise ArgumentError(f"--role {text}: {name} has the role {roles[name]} already.")
        roles[name] = role
    return roles or None


@contextlib.contextmanager
def _waiting(name: str) -> Iterator[None]:
    """A line that shows the time while it runs, on a terminal only."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    hidden = not complaints.is_terminal
    with Progress(*columns, console=complaints, transient=True, disable=hidden) as display:
        display.add_task(f"Verifying {name}", total=None)
        yield


@contextlib.contextmanager
def _standard_output_to_standard_error() -> Iterator[None]:
    """Whatever a C function prints goes there: standard output is for the report alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _show(report: Report, json_file: Path | None, html_file: Path | None) -> None:
    people: Console = complaints if json_file == STDOUT else console
    written: list[Path] = []
    try:  # files first: they must be there even if nobody reads the table to its end
        written += _write(report, json_file, html_file)
    finally:
        people.print(report)
    for path in written:
        people.print(f"Saved {path}", soft_wrap=True)


def _write(report: Report, json_file: Path | None, html_file: Path | None) -> Iterator[Path]:
    """Write what was asked for, and give the path of each file that is there."""
    if json_file == STDOUT:
        print(report.to_json())
    for path, text in ((json_file, report.to_json), (html_file, report.to_html)):
        if path is not None and path != STDOUT:
            try:
                # A path that is no valid Unicode may stand in the text.
                path.write_text(text() + "\n", encoding="utf-8", errors="replace")
            except OSError as error:
                raise ArgumentError(f"{path} cannot be written: {error.strerror}.") from error
            yield path
