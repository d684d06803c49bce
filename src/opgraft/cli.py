"""The command `opgraft`. Each command is one function here; what it does lives elsewhere.

Heavy imports (Keras, matplotlib) wait inside the functions, so that `--help` need not pay for them.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from opgraft import cli_approximate, cli_inspect, cli_verify
from opgraft.cli_support import (
    EXAMPLES,
    Data,
    Kernel,
    complaints,
    console,
    fit,
    load_kernel,
    show_notes,
    writable_file,
    writable_folder,
)
from opgraft.errors import ArgumentError, OpgraftError
from opgraft_command import INTERRUPTED

if TYPE_CHECKING:
    from opgraft.data import Dataset
    from opgraft.report import Results
    from opgraft.training import Run

DEVIATION_IMAGES = 256


class Commands(TyperGroup):
    """Ends a command that fails with a message, as a person expects, rather than a traceback."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except OpgraftError as error:
            complaints.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            complaints.print("Stopped.")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    help="Train Keras networks through your own C kernels, with TensorFlow's native gradient.",
)


def main() -> None:
    """Run the command line."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # not every path can be shown everywhere
        sys.stdout.reconfigure(errors="backslashreplace")
    app()


BatchSize = Annotated[int, typer.Option(min=1, help="Images per step.")]
KernelFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE[:SYMBOL]",
        help="Your C function, in a .c source or a .so library.",
        show_default="the example shipped with opgraft",
    ),
]
Prototype = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Its C prototype, where there is no source.")
]


@app.command()
def train(
    network: Annotated[str, typer.Argument(help="The network to train: lenet5.")],
    matmul: KernelFile = None,
    conv2d: KernelFile = None,
    matmul_prototype: Prototype = None,
    conv2d_prototype: Prototype = None,
    multiplier: cli_approximate.Named = None,
    signed: cli_approximate.Signed = None,
    data: Data = "mnist",
    epochs: Annotated[int, typer.Option(min=1, help="How often to see every image.")] = 5,
    batch_size: BatchSize = 128,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Decides the first weights and the order.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where to save the model and the picture.",
            show_default="opgraft-NETWORK",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures here.")
    ] = None,
) -> None:
    """Train a network through your C functions, and the same network natively beside it.

    With --multiplier instead through products by a table, of operands with 8-bit codes.
    """
    import keras

    from opgraft import data as sources
    from opgraft import models, surgery
    from opgraft.training import Plan, Run

    build = models.network(network)
    given = {"conv2d": (conv2d, conv2d_prototype), "matmul": (matmul, matmul_prototype)}
    if multiplier is None:
        kernels = {role: _kernel(role, *named) for role, named in given.items()}
        by_role = {role: kernel.arithmetic for role, kernel in kernels.items()}
    else:
        kernels = {}
        by_role = dict.fromkeys(given, _approximate(multiplier, signed, given))
    folder = writable_folder(out or Path(f"opgraft-{network}"))
    if json_file is not None:
        writable_file("--json", json_file)
    dataset = sources.load(data)
    show_notes(dataset)

    runs = [
        Run(title, build(dataset.input_shape, dataset.classes, seed))
        for title in ("C kernels" if kernels else "approximate", "native")
    ]
    kinds = {keras.layers.Conv2D: "conv2d", keras.layers.Dense: "matmul"}
    surgery.swap(runs[0].model, {kind: by_role[role] for kind, role in kinds.items()})
    plan = Plan(epochs, batch_size, seed)
    ended = fit(runs, dataset, plan)
    if runs[0].steps:
        options = {"network": network, **asdict(plan), "stopped": ended is not None}
        options["multiplier"] = multiplier
        named = [
            {"role": role, "file": kernel.file, "prototype": kernel.prototype}
            for role, kernel in kernels.items()
        ]
        _finish(folder, json_file, options | {"kernels": named}, runs, dataset, tuple(kinds))
    if ended is not None:
        raise ended


app.command()(cli_approximate.evaluate)

app.command()(cli_approximate.retrain)

app.command()(cli_verify.verify)

app.command()(cli_inspect.inspect)


@app.command()
def config() -> None:
    """Show what opgraft found on this machine and what it chose."""
    from opgraft.config import describe

    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")  # a path is of use only when it is whole
    for name, value in describe().items():
        table.add_row(Text(name), Text(value))
    console.print(table)


def _kernel(role: str, named: str | None, prototype: str | None) -> Kernel:
    """The C function of the option `--role`, or the example shipped with the package."""
    try:
        return load_kernel(named or str(EXAMPLES / f"{role}.c"), prototype, f"--{role}-prototype")
    except ArgumentError as error:
        raise ArgumentError(f"--{role} {error}") from error


def _approximate(multiplier: str, signed: bool | None, given: dict[str, tuple]) -> Any:
    """The arithmetic of `--multiplier`, with ranges found at each call: none are known yet."""
    from opgraft.approximation import Swap

    for role, named in given.items():
        if any(named):
            raise ArgumentError(
                f"--{role} and --multiplier both say how to multiply; give one of them."
            )
    return Swap().arithmetic(cli_approximate.one_multiplier(multiplier, signed, Swap()))


def _finish(
    folder: Path,
    json_file: Path | None,
    told: dict[str, Any],
    runs: list[Run],
    dataset: Dataset,
    kinds: tuple[type, ...],
) -> None:
    """Save the model of the first run, then measure, tell and draw how all have done."""
    from opgraft import interrupts, picture, report

    with interrupts.ignored():
        saved = folder / f"{told['network']}.keras"
        runs[0].model.save(saved)
    console.print(f"Saved {saved}", soft_wrap=True)
    if told["stopped"]:
        console.print("Testing what was trained so far; Ctrl-C skips this.")
    results = _measure(runs, dataset, told["batch_size"], kinds)
    told |= {"data": dataset.name, "notes": dataset.notes} | report.figures(results)
    title = f"{told['network']} on {Path(dataset.name).name}" + ", stopped early" * told["stopped"]
    console.print(report.table(told, title))
    with interrupts.ignored():
        image = folder / f"{told['network']}.png"
        picture.draw(image, title, results)
        if json_file is not None:
            json_file.write_text(json.dumps(report.plain(told), indent=2) + "\n")
    console.print(f"Saved {image}", soft_wrap=True)


def _measure(
    runs: list[Run], dataset: Dataset, batch_size: int, kinds: tuple[type, ...]
) -> Results:
    from opgraft.report import Results
    from opgraft.training import deviations, score

    kernel, native = (run.model for run in runs)
    trained = [run for run in runs if run.steps]
    return Results(
        dataset,
        trained,
        [score(run.model, dataset, batch_size) for run in trained],
        deviations(kernel, native, dataset.x_test[:DEVIATION_IMAGES], kinds),
    )
