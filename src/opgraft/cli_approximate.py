"""The commands `opgraft evaluate` and `opgraft retrain`: networks under approximate multipliers."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from opgraft.cli_inspect import published_costs, with_cost
from opgraft.cli_support import (
    Data,
    check_fit,
    console,
    fit,
    load_model,
    show_notes,
    writable_folder,
)
from opgraft.errors import ArgumentError, OpgraftError

if TYPE_CHECKING:
    import keras

    from opgraft.approximation import Swap
    from opgraft.approximation_report import Outcome
    from opgraft.data import Dataset
    from opgraft.multipliers import Multiplier

NOISE_IMAGES = 64
TRIED = 200  # images that show in which range a network takes them
LEARNING_RATE = 1e-3

Model = Annotated[Path, typer.Argument(help="A .keras or .h5 file.", show_default=False)]
Named = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|FAMILY",
        help="A table (.npy, .npz:KEY, .bin, .h, .txt, .csv), a C function (.c), a Verilog module "
        "(.v), or a family: mitchell, drum:4, truncated:columns=4.",
        show_default=False,
    ),
]
Signed = Annotated[
    bool | None,
    typer.Option(
        "--signed/--unsigned",
        help="Whether its numbers are two's complement.",
        show_default="found out; families are unsigned",
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="What multiplies approximately: classes, names or globs of layers, with commas.",
        show_default="all that can",
    ),
]
Calibration = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Training images that decide the ranges.", show_default="500"
    ),
]
PerChannel = Annotated[
    bool, typer.Option("--per-channel", help="A scale for each output channel of a kernel.")
]
Exchanged = Annotated[
    bool, typer.Option("--exchanged", help="The kernel is the multiplier's first operand.")
]
Costs = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A JSON file of published power, area and delay."),
]
Raw = Annotated[
    bool | None,
    typer.Option(
        "--raw/--scaled",
        help="Whether the network takes bytes from 0 to 255, or numbers from 0 to 1.",
        show_default="found out",
    ),
]
Images = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Test images to use.", show_default="all"),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where to save the picture and all figures.",
        show_default="opgraft-COMMAND-MODEL",
    ),
]


def evaluate(
    model: Model,
    multiplier: Named = None,
    signed: Signed = None,
    layers: Layers = None,
    per_channel: PerChannel = False,
    exchanged: Exchanged = False,
    calibration: Calibration = None,
    costs: Costs = None,
    data: Data = "mnist",
    raw: Raw = None,
    images: Images = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 128,
    out: Out = None,
) -> None:
    """Print a model's accuracy; with a multiplier, also what it does to it, layer by layer."""
    if multiplier is None:
        _refuse_without_multiplier(
            signed=signed, layers=layers, per_channel=per_channel or None, costs=costs, out=out,
            exchanged=exchanged or None, calibration=calibration,
        )  # fmt: skip
        return _evaluate_as_it_is(model, data, raw, images, batch_size)
    from opgraft.approximation_report import Outcome

    swap = _swap(layers, per_channel, exchanged, calibration, batch_size)
    found = _multiplier(multiplier, signed, costs, swap)
    network = _network(model, swap, found)
    dataset = _data(model, network, data, raw, images)
    folder = writable_folder(out or Path(f"opgraft-evaluate-{model.stem}"))
    outcome = _measured(network, Outcome(str(model), dataset, found, swap))
    _save(folder, outcome, {"command": "evaluate"})
    return None


def retrain(
    model: Model,
    multiplier: Named = None,
    signed: Signed = None,
    layers: Layers = None,
    per_channel: PerChannel = False,
    exchanged: Exchanged = False,
    calibration: Calibration = None,
    costs: Costs = None,
    data: Data = "mnist",
    raw: Raw = None,
    images: Images = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often to see every image.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step.")] = 32,
    learning_rate: Annotated[
        float, typer.Option(metavar="X", help="Of Adam at the start; it falls to 0.")
    ] = LEARNING_RATE,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Decides the order of the images.")
    ] = 0,
    out: Out = None,
) -> None:
    """Train a finished model on, under an approximate multiplier, and tell what that brings."""
    if multiplier is None:
        raise ArgumentError(
            "Name a multiplier: opgraft retrain MODEL --multiplier FILE|FAMILY. "
            "`opgraft inspect --help` lists what it may be."
        )
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise ArgumentError(f"--learning-rate {learning_rate:g}: it must be a number above 0.")
    from opgraft.approximation import noises, stand
    from opgraft.approximation_report import Outcome
    from opgraft.training import Plan, Run

    swap = _swap(layers, per_channel, exchanged, calibration, batch_size)
    found = _multiplier(multiplier, signed, costs, swap)
    network = _network(model, swap, found)
    dataset = _data(model, network, data, raw, images)
    folder = writable_folder(out or Path(f"opgraft-retrain-{model.stem}"))
    outcome = _measured(network, Outcome(str(model), dataset, found, swap))
    plan, run = Plan(epochs, batch_size, seed), Run("retrain", network)
    ended = _fit(run, outcome, plan, learning_rate)
    if run.steps:
        outcome.epochs = run.epochs
        _save_model(network, folder / "retrained.keras")
        if ended is not None:
            console.print("Testing what was trained so far; Ctrl-C skips this.")
        standing = stand(network, dataset.x_test, dataset.y_test, batch_size)
        outcome.standings["retrained"] = standing
        outcome.noises_after = noises(network, dataset.x_test[:NOISE_IMAGES])
        options = asdict(plan) | {"learning_rate": learning_rate, "stopped": ended is not None}
        _save(folder, outcome, {"command": "retrain", "training": options})
    if ended is not None:
        raise ended


# ---- what both do ----------------------------------------------------------------------------


def _evaluate_as_it_is(
    path: Path, source: str, raw: bool | None, images: int | None, batch_size: int
) -> None:
    from opgraft.approximation import stand

    network = load_model(path)
    dataset = _data(path, network, source, raw, images)
    found = stand(network, dataset.x_test, dataset.y_test, batch_size)
    total = len(dataset.y_test)
    console.print(
        f"test accuracy {found.accuracy:.2%}: {total - found.wrong:,} of {total:,} images of "
        f"{dataset.name}",
        soft_wrap=True,
    )


def _refuse_without_multiplier(**given: Any) -> None:
    for option, value in given.items():
        if value is not None:
            name = "signed or --unsigned" if option == "signed" else option.replace("_", "-")
            raise ArgumentError(
                f"--{name} needs --multiplier FILE|FAMILY: without one the model is evaluated as "
                "it is, and nothing is saved."
            )


def _swap(
    layers: str | None, per_channel: bool, exchanged: bool, calibration: int | None, batch_size: int
) -> Swap:
    from opgraft.approximation import Swap

    names = tuple(name.strip() for name in (layers or "").split(","))
    if layers is not None and not all(names):
        raise ArgumentError(
            f"--layers {layers!r}: write classes, names or globs of layers, such as Conv2D,dense*."
        )
    return Swap(
        names if layers is not None else (), per_channel, exchanged, calibration or 500, batch_size
    )


def one_multiplier(named: str, signed: bool | None, swap: Swap) -> Multiplier:
    """The one that is named; refused if the layers could not use it."""
    from opgraft.multipliers import names

    try:
        found = names.read(named, signed)
        if len(found) != 1:
            raise ArgumentError(
                f"{named} holds {len(found)} multipliers; name one: {named}:{found[0].name}"
            )
        swap.arithmetic(found[0])
    except OpgraftError as error:
        raise ArgumentError(f"--multiplier {error}") from error
    return found[0]


def _multiplier(named: str, signed: bool | None, costs: Path | None, swap: Swap) -> Multiplier:
    """The one that is named, with its published cost."""
    one, notes = with_cost(one_multiplier(named, signed, swap), published_costs(costs))
    for note in notes:
        console.print(f"{one.name}: {note}", soft_wrap=True)
    return one


def _data(
    path: Path, network: keras.Model, source: str, raw: bool | None, images: int | None
) -> Dataset:
    """Images as the network takes them, and no more for the test than were asked for."""
    import dataclasses

    from opgraft import data as sources
    from opgraft.approximation import as_taken

    dataset = sources.load(source, raw=raw is not False)
    show_notes(dataset)
    check_fit(path, network, dataset)
    if raw is None:
        dataset = as_taken(network, dataset, TRIED, 100)
        if dataset.white == 255:
            console.print(
                f"{path.name} takes bytes from 0 to 255, as trying has shown; --raw says so.",
                soft_wrap=True,
            )
    return dataclasses.replace(
        dataset, x_test=dataset.x_test[:images], y_test=dataset.y_test[:images]
    )


def _network(path: Path, swap: Swap, found: Multiplier) -> keras.Model:
    """The network in plain Keras; refused if its layers cannot use the multiplier."""
    from opgraft import surgery
    from opgraft.approximation import approximate_layers

    network = load_model(path)
    if approximate_layers(network):
        surgery.restore(network)
        console.print(f"{path.name} has arithmetics of its own, which are taken out first.")
    try:
        swap.check(network, found)
    except OpgraftError as error:
        raise ArgumentError(f"{path}: {error}") from error
    return network


def _measured(network: keras.Model, outcome: Outcome) -> Outcome:
    """A network as it is, with exact products of codes, and with approximate ones."""
    from opgraft.approximation import exact_like, noises, stand

    data, swap, multiplier = outcome.data, outcome.swap, outcome.multiplier

    def measure(title: str) -> None:
        standing = stand(network, data.x_test, data.y_test, swap.batch_size)
        outcome.standings[title] = standing

    measure("float")
    outcome.notes = swap.into(network, exact_like(multiplier), data.x_train)
    measure("exact")
    swap.into(network, multiplier, data.x_train)
    measure("approximate")
    outcome.noises = noises(network, data.x_test[:NOISE_IMAGES])
    return outcome


def _fit(run: Any, outcome: Outcome, plan: Any, learning_rate: float) -> BaseException | None:
    from opgraft.approximation import are_probabilities, optimizer

    data = outcome.data
    answers = run.model.predict(data.x_test[:NOISE_IMAGES], verbose=0)
    return fit(
        [run], data, plan, optimizer=optimizer(learning_rate, plan, len(data.x_train)),
        from_logits=not are_probabilities(answers),
    )  # fmt: skip


def _save_model(network: keras.Model, path: Path) -> None:
    from opgraft import interrupts

    with interrupts.ignored():
        network.save(path)
    console.print(f"Saved {path}", soft_wrap=True)


def _save(folder: Path, outcome: Outcome, more: dict[str, Any]) -> None:
    """Tell, and save what is told: files first, so that they are there if nobody reads on."""
    from opgraft import approximation_report, interrupts, report

    told = more | approximation_report.figures(outcome)
    figures, image = folder / "results.json", folder / "results.png"
    with interrupts.ignored():
        figures.write_text(json.dumps(report.plain(told), indent=2) + "\n", encoding="utf-8")
        approximation_report.draw(image, outcome)
    for title, table in approximation_report.tables(outcome):
        console.print(Text(title, style="bold"), soft_wrap=True)
        console.print(table)
        console.print()
    for sentence in approximation_report.sentences(outcome):
        console.print(Text(sentence), soft_wrap=True)
    for path in (figures, image):
        console.print(f"Saved {path}", soft_wrap=True)
