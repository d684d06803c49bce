"""What the commands share: where they print, and how they read what the user named."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from opgraft.errors import ArgumentError, OpgraftError

if TYPE_CHECKING:
    import keras

    from opgraft.data import Dataset
    from opgraft.training import Plan, Run

EXAMPLES = Path(__file__).parent / "kernels"

# Options that several commands have.
Data = Annotated[
    str, typer.Option(help="mnist, mnist5k, fashion-mnist, or the path of a .npz file.")
]

console = Console(markup=False, highlight=False)  # a path may hold [brackets]
complaints = Console(stderr=True, markup=False, highlight=False)


@dataclass(frozen=True)
class Kernel:
    """A C function that the command line named, ready to compute."""

    file: str
    prototype: str
    arithmetic: Any


def load_kernel(
    named: str, prototype: str | None, option: str, flags: Sequence[str] = ("-O3",), **settings: Any
) -> Kernel:
    """The C function at FILE[:SYMBOL].

    Args:
        named: the path of a source or a library, with the symbol behind a colon.
        prototype: its declaration; None to read it from the source.
        option: the option by which the user can give one.
        flags: compiler flags for a source.
        settings: further arguments of `og.c_function`.

    Raises:
        ArgumentError: it cannot be found, bound or compiled.
    """
    import opgraft as og

    path, symbol = _file_and_symbol(named)
    try:
        if not path.is_file():
            raise ArgumentError(f"There is no file {path}. Check the path.")
        text = prototype or _prototype(path, symbol, option, tuple(flags))
        if symbol and not re.search(rf"\b{symbol}\s*\(", text):
            raise ArgumentError(f"The prototype does not declare {symbol}: {text}")
        return Kernel(str(path), text, og.c_function(path, text, flags=flags, **settings))
    except OpgraftError as error:
        raise ArgumentError(f"{path}: {error}") from error


def _prototype(path: Path, symbol: str | None, option: str, flags: tuple[str, ...]) -> str:
    from opgraft.native.source import find_prototype

    if path.suffix != ".c":
        raise ArgumentError(
            "A library does not say what arguments its functions take. "
            f"Paste the prototype: {option} 'void f(const float *a, …)'."
        )
    try:
        return find_prototype(path, symbol, flags)
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def _file_and_symbol(named: str) -> tuple[Path, str | None]:
    file, colon, symbol = named.rpartition(":")
    if colon and symbol.isidentifier() and not Path(named).exists():
        return Path(file), symbol
    return Path(named), None


def writable_folder(path: Path) -> Path:
    """Make the folder now, and try it: an error must not wait until the work is done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        reason = f"Cannot write into the folder {path}: {error.strerror}. Choose another."
        raise ArgumentError(reason) from error
    return path


def writable_file(option: str, path: Path) -> Path:
    """Try the file of an option, and leave its content alone."""
    if path.is_dir():
        raise ArgumentError(f"{option} {path}: this is a folder. Give the path of a file.")
    if not path.exists():
        writable_folder(path.parent)
    elif path.is_file():  # a pipe would take the trial for all there is
        try:
            path.open("ab").close()
        except OSError as error:
            reason = f"{option} {path}: cannot be written: {error.strerror}. Choose another file."
            raise ArgumentError(reason) from error
    return path


def show_notes(dataset: Dataset) -> None:
    """What the reader ought to know about the data, in boxes."""
    for note in dataset.notes:
        console.print(Panel(Text(note), title="Note", border_style="bold yellow"))


def fit(runs: list[Run], dataset: Dataset, plan: Plan, **settings: Any) -> BaseException | None:
    """Train all runs. What ends this early is returned, so that the caller saves first."""
    from opgraft import interrupts, report, training

    width = max(len(run.title) for run in runs)
    try:
        with interrupts.between_steps() as stop, report.progress(console) as display:
            for run in runs:
                bar = report.Bar(display, run.title.ljust(width))
                training.fit(run, dataset, plan, bar, stop, **settings)
    except (KeyboardInterrupt, OpgraftError) as reason:
        return reason
    return None


def load_model(path: Path) -> keras.Model:
    """Raises `ArgumentError` if there is no model that can be loaded."""
    import keras

    if not path.is_file():
        raise ArgumentError(f"There is no model at {path}. Train one: opgraft train lenet5.")
    try:
        return keras.models.load_model(path, compile=False)
    except (OpgraftError, ValueError, TypeError, OSError) as error:
        raise ArgumentError(f"{path} cannot be loaded: {_innermost(error)}") from error


def _innermost(error: BaseException) -> str:
    """What went wrong at first: Keras wraps an error once per nested object, config and all."""
    first: BaseException | None = error
    while first is not None:
        if isinstance(first, OpgraftError):
            return str(first)
        first = first.__cause__ or first.__context__
    return str(error).rpartition("Exception encountered: ")[2]


def check_fit(path: Path, network: keras.Model, dataset: Dataset) -> None:
    """Raise `ArgumentError` if a network cannot take the images or give the labels of a dataset."""
    if not isinstance(getattr(network, "input_shape", None), tuple) or not isinstance(
        network.output_shape, tuple
    ):
        raise ArgumentError(
            f"{path} has several inputs or outputs, or none that is known; needed is a network "
            "that takes an image and gives one number for each class."
        )
    seen, shape = network.input_shape[1:], dataset.input_shape
    if len(seen) != len(shape) or any(a not in (None, b) for a, b in zip(seen, shape, strict=True)):
        raise ArgumentError(
            f"{path} takes images of the shape {seen}, but those of {dataset.name} are {shape} "
            "(height, width, channels). Give --data the data it was trained on."
        )
    outputs = network.output_shape
    if len(outputs) != 2 or outputs[1] < dataset.classes:
        raise ArgumentError(
            f"{path} gives outputs of the shape {outputs[1:]}, but {dataset.name} has "
            f"{dataset.classes} classes. Give --data the data it was trained on."
        )
