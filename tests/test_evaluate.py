"""The commands `opgraft evaluate` and `opgraft retrain`, and the noise that they measure."""

import json
import math

import keras
import numpy as np
import pytest
from matplotlib import image
from typer.testing import CliRunner

import opgraft as og
from opgraft import approximation, approximation_report, cli, data, report
from opgraft.approximation import Swap, noises, stand
from opgraft.errors import ArgumentError
from opgraft.training import Plan
from opgraft_command import INTERRUPTED

TABLE = "evoapprox8_tables.npz:mul8s_"


def opgraft(*arguments):
    """Run the command line here, and give its exit code and all that it printed."""
    result = CliRunner().invoke(cli.app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def done(*arguments):
    code, output = opgraft(*arguments)
    assert code == 0, output
    return " ".join(output.split())


def refused(*arguments):
    code, output = opgraft(*arguments)
    assert code == 2, output
    assert "Traceback" not in output
    return " ".join(output.split())


def figures(folder):
    return json.loads((folder / "results.json").read_text())


def stripes(rng, count):
    """Images of three classes: the pitch of their stripes; bytes."""
    labels = np.arange(count) % 3
    columns = np.arange(9)
    seen = rng.integers(0, 50, (count, 10, 9, 1))
    for each, label in zip(seen, labels, strict=True):
        each += 200 * (((columns + rng.integers(6)) // (label + 1)) % 2)[None, :, None]
    return seen.astype(np.uint8), labels


@pytest.fixture(scope="module")
def striped(tmp_path_factory):
    """The path of a .npz file."""
    rng = np.random.default_rng(1)
    x_train, y_train = stripes(rng, 240)
    x_test, y_test = stripes(rng, 90)
    path = tmp_path_factory.mktemp("data") / "stripes.npz"
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


@pytest.fixture(scope="module")
def network(striped, tmp_path_factory):
    """The path of a small network that takes bytes, and gives probabilities."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((10, 9, 1)),
        layers.Rescaling(1 / 255),
        layers.Conv2D(6, (2, 3), activation="relu", name="first"),
        layers.Conv2D(5, (3, 2), strides=2, use_bias=False, name="second"),
        layers.BatchNormalization(momentum=0.8),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(3, activation="softmax", name="answer"),
    ], name="striped")  # fmt: skip
    held = data.load(str(striped), raw=True)
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    model.fit(held.x_train, held.y_train, batch_size=24, epochs=12, verbose=0)
    path = tmp_path_factory.mktemp("network") / "striped.keras"
    model.save(path)
    return path


@pytest.fixture
def loaded(network):
    """The network itself, anew."""
    return keras.models.load_model(network, compile=False)


@pytest.fixture
def undrawn(monkeypatch):
    """No picture, which takes longer than all the rest."""
    monkeypatch.setattr(approximation_report, "draw", lambda path, outcome: None)


@pytest.fixture(scope="module")
def held(striped):
    return data.load(str(striped), raw=True)


# A multiplier with a mean error so large that the small network fails.
BIASED = ("--multiplier", "truncated:columns=10", "--signed")
TRAINING = ("--epochs", 8, "--batch-size", 16, "--learning-rate", 0.01, "--seed", 5)


@pytest.fixture(scope="module")
def evaluated(network, striped, tmp_path_factory):
    """What `opgraft evaluate` prints, and its folder."""
    folder = tmp_path_factory.mktemp("evaluated")
    return done("evaluate", network, *BIASED, "--data", striped, "--out", folder), folder


@pytest.fixture(scope="module")
def retrained(network, striped, tmp_path_factory):
    folder = tmp_path_factory.mktemp("retrained")
    out = done("retrain", network, *BIASED, "--data", striped, *TRAINING, "--out", folder)
    return out, folder


# ---- evaluate ------------------------------------------------------------------------------


def test_evaluate_measures_what_a_user_would(evaluated, loaded, held):
    """The same by hand: swap, calibrate, predict."""
    told = figures(evaluated[1])["results"]
    assert list(told) == ["float", "exact", "approximate"]
    for title, multiplier in (
        ("float", None),
        ("exact", og.multipliers.exact(signed=True)),
        ("approximate", og.multipliers.truncated(columns=10, signed=True)),
    ):
        if multiplier is not None:
            og.swap(loaded, og.approximate(multiplier))
            og.calibrate(loaded, held.x_train)
        answers = loaded.predict(held.x_test, verbose=0)
        right = np.sum(answers.argmax(1) == held.y_test)
        loss = keras.losses.sparse_categorical_crossentropy(held.y_test, answers)
        assert told[title]["accuracy"] == pytest.approx(right / 90)
        assert told[title]["wrong"] == 90 - right
        assert told[title]["loss"] == pytest.approx(float(np.mean(loss)), rel=1e-4)
    assert told["float"]["accuracy"] > 0.95
    assert told["approximate"]["accuracy"] < told["exact"]["accuracy"] - 0.2


def test_evaluate_prints_and_saves_all_of_it(evaluated):
    out, folder = evaluated
    told = figures(folder)
    for title, name in (("float", "float"), ("exact", "exact products of 8x8 bits"),
                        ("approximate", "truncated 8x8, 0 bits, 10 columns")):  # fmt: skip
        assert f"{name} {told['results'][title]['accuracy']:.2%}" in out
    assert "striped.keras takes bytes from 0 to 255, as trying has shown" in out
    assert told["range"] == "0 to 255"
    assert [each["layer"] for each in told["layers"]] == ["first", "second", "answer"]
    assert [each["class"] for each in told["layers"]] == ["Conv2D", "Conv2D", "Dense"]
    for each in told["layers"]:
        ratio = f"{each['layer']} {each['class']} {each['snr_exact_db']:.1f}"
        assert ratio in out
    error = og.multipliers.truncated(columns=10, signed=True).metrics()["mean_error"]
    assert told["multiplier"]["metrics"]["mean_error"] == error
    assert f"mean error {error:.5g}, MAE" in out
    assert f"Saved {folder / 'results.json'}" in out
    assert (folder / "results.png").read_bytes().startswith(b"\x89PNG")


def test_the_exact_multiplier_adds_no_noise(network, striped, tmp_path, undrawn):
    out = done("evaluate", network, "--multiplier", "exact", "--signed", "--data", striped,
               "--out", tmp_path)  # fmt: skip
    told = figures(tmp_path)
    assert told["results"]["exact"] == told["results"]["approximate"]
    assert [each["snr_exact_db"] for each in told["layers"]] == [None] * 3
    assert min(each["snr_float_db"] for each in told["layers"]) > 25
    assert "first Conv2D ∞" in out


def test_only_the_layers_that_are_named(network, striped, tmp_path, undrawn):
    named = ("--layers", "answer, *econd")
    done("evaluate", network, *BIASED, "--data", striped, *named, "--out", tmp_path)
    assert [each["layer"] for each in figures(tmp_path)["layers"]] == ["second", "answer"]


def test_layers_by_their_class(loaded, held):
    multiplier = og.multipliers.exact(4, signed=True)
    for named, due in (("Conv2D",), ["first", "second"]), (("Dense",), ["answer"]):
        og.restore(og.swap(loaded, og.exact))
        Swap(named, calibration=9).into(loaded, multiplier, held.x_train)
        assert [each.name for each in approximation.approximate_layers(loaded)] == due


def test_the_options_reach_the_arithmetic(network, striped, tmp_path, monkeypatch, undrawn):
    made = []
    approximate = approximation.approximate
    monkeypatch.setattr(
        approximation, "approximate", lambda *m, **k: made.append((*m, k)) or approximate(*m, **k)
    )
    done(
        *("evaluate", network, "--multiplier", "broken_array:0,0,5,widths=8x6", "--signed"),
        *("--data", striped, "--exchanged", "--per-channel", "--calibration", 20),
        *("--images", 31, "--out", tmp_path),
    )
    multiplier, options = made[-1]
    assert multiplier.widths == (8, 6)
    assert options == {"exchanged": True, "kernel": og.quantizers.Symmetric(8, per_channel=True)}
    told = figures(tmp_path)
    assert told["images"] == 31
    assert told["swap"]["calibration"] == 20
    assert round(31 * told["results"]["float"]["accuracy"], 6).is_integer()


def test_a_published_cost_is_shown(network, striped, tmp_path, undrawn):
    table = tmp_path / "mine.npy"
    np.save(table, og.multipliers.truncated(columns=10, signed=True).table)
    published = {"PDK45_PWR": "0.25", "PDK45_AREA": "300", "PDK45_DELAY": "1.2"}
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"circuits": {"mine": {"published": published}}}))
    out = done("evaluate", network, "--multiplier", table, "--signed", "--data", striped,
               "--costs", costs, "--out", tmp_path)  # fmt: skip
    assert "power 0.25 mW, area 300 µm², delay 1.2 ns, energy (power times delay) 0.3 pJ" in out
    assert figures(tmp_path)["multiplier"]["cost"]["energy_pJ"] == pytest.approx(0.3)


# ---- retrain -------------------------------------------------------------------------------


def test_retraining_brings_the_accuracy_back(retrained):
    out, folder = retrained
    told = figures(folder)
    results = told["results"]
    assert list(results) == ["float", "exact", "approximate", "retrained"]
    assert results["retrained"]["accuracy"] > results["approximate"]["accuracy"] + 0.15
    assert len(told["epochs"]) == 8
    assert told["epochs"][-1]["test_accuracy"] == pytest.approx(results["retrained"]["accuracy"])
    assert told["training"] == {"epochs": 8, "batch_size": 16, "seed": 5, "learning_rate": 0.01,
                                "stopped": False}  # fmt: skip
    assert f"the same, retrained {results['retrained']['accuracy']:.2%}" in out
    assert all("snr_exact_retrained_db" in each for each in told["layers"])
    assert "retrain epoch 8/8" in out


def test_the_retrained_model_is_saved_with_its_multiplier_and_ranges(retrained, striped):
    folder = retrained[1]
    told = figures(folder)["results"]
    model = keras.models.load_model(folder / "retrained.keras", compile=False)
    layers = approximation.approximate_layers(model)
    assert [each.name for each in layers] == ["first", "second", "answer"]
    due = og.multipliers.truncated(columns=10, signed=True)
    for each in layers:
        assert each.arithmetic.product.multiplier == due
        assert each.arithmetic.input.limit is not None
    out = done("evaluate", folder / "retrained.keras", "--data", striped, "--raw")
    assert f"test accuracy {told['retrained']['accuracy']:.2%}" in out


def test_a_retrained_model_can_be_evaluated_under_another_multiplier(
    retrained, striped, tmp_path, undrawn
):
    model = retrained[1] / "retrained.keras"
    out = done("evaluate", model, "--multiplier", "mitchell", "--signed", "--data", striped,
               "--raw", "--out", tmp_path)  # fmt: skip
    assert "retrained.keras has arithmetics of its own, which are taken out first" in out
    plain = og.restore(keras.models.load_model(model, compile=False))
    held = data.load(str(striped), raw=True)
    due = stand(plain, held.x_test, held.y_test, 32)
    assert figures(tmp_path)["results"]["float"]["accuracy"] == due.accuracy


def test_the_same_seed_gives_the_same_network(retrained, network, striped, tmp_path, undrawn):
    done("retrain", network, *BIASED, "--data", striped, *TRAINING, "--out", tmp_path)
    assert figures(tmp_path)["epochs"] == figures(retrained[1])["epochs"]
    first, second = (
        keras.models.load_model(folder / "retrained.keras", compile=False).get_weights()
        for folder in (tmp_path, retrained[1])
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_ctrl_c_saves_what_was_retrained(network, striped, tmp_path, monkeypatch, undrawn):
    def stop(self, batch, logs=None):
        if batch == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(report.Bar, "on_train_batch_end", stop)
    code, output = opgraft("retrain", network, *BIASED, "--data", striped, "--out", tmp_path)
    assert code == INTERRUPTED
    assert "Testing what was trained so far" in output
    assert figures(tmp_path)["training"]["stopped"] is True
    assert figures(tmp_path)["epochs"] == []
    assert keras.models.load_model(tmp_path / "retrained.keras", compile=False).name == "striped"


def test_the_rate_falls_to_zero_over_all_steps():
    rate = approximation.optimizer(0.5, Plan(3, 32, 0), 70).learning_rate
    del rate  # of the first step
    schedule = approximation.optimizer(0.5, Plan(3, 32, 0), 70)._learning_rate
    assert float(schedule(0)) == pytest.approx(0.5)
    assert 0 < float(schedule(8)) < 0.05
    assert float(schedule(9)) == pytest.approx(0, abs=1e-8)


# ---- the noise of a layer ------------------------------------------------------------------


def test_the_noise_is_that_of_the_table_read_by_numpy():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(33, 7)).astype("f")
    model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(5, activation="relu")])
    kernel = rng.normal(size=(7, 5)).astype("f")
    bias = rng.normal(size=5).astype("f")
    model.layers[0].set_weights([kernel, bias])
    multiplier = og.multipliers.broken_array(1, 0, 6, signed=True)
    og.swap(model, og.approximate(multiplier))
    og.calibrate(model, x)
    (found,) = noises(model, x)
    a = model.layers[0].arithmetic.input.encode(x)
    b = og.quantizers.Symmetric(8).encode(kernel)
    scale = a.scale.item() * b.scale.item()
    ours = scale * multiplier(a.codes[:, :, None], b.codes[None]).sum(1) + bias
    due = a.values.astype(float) @ b.values + bias
    native = x.astype(float) @ kernel + bias
    noise = ours - due
    for got, reference in ((found.exact, due), (found.native, native)):
        expected = 10 * np.log10(np.mean(reference**2) / np.mean((ours - reference) ** 2))
        assert got == pytest.approx(expected, abs=0.01)
    share = np.mean(noise.mean(0) ** 2) / np.mean(noise**2)
    assert found.constant == pytest.approx(share, abs=1e-3)
    assert (found.layer, found.kind) == (model.layers[0].name, "Dense")


def test_a_measurement_leaves_the_model_as_it_was(loaded, held):
    Swap().into(loaded, og.multipliers.broken_array(0, 0, 6, signed=True), held.x_train)
    before = loaded.predict(held.x_test, verbose=0)
    configs = [layer.get_config() for layer in loaded.layers]
    assert len(noises(loaded, held.x_test[:7])) == 3
    assert [layer.get_config() for layer in loaded.layers] == configs
    assert not any("call" in vars(layer) for layer in loaded.layers)
    np.testing.assert_array_equal(loaded.predict(held.x_test, verbose=0), before)


def test_layers_inside_shared_and_separable():
    rng = np.random.default_rng(9)
    shared = keras.layers.Dense(6, name="shared")
    inner = keras.Sequential([keras.Input((5, 4, 3)), keras.layers.SeparableConv2D(4, 2)])
    inputs = keras.Input((5, 4, 3))
    flat = keras.layers.Dense(6)(keras.layers.Flatten()(inner(inputs)))
    model = keras.Model(inputs, shared(shared(flat)))
    images = rng.normal(size=(11, 5, 4, 3)).astype("f")
    multiplier = og.multipliers.truncated(columns=5, signed=True)
    Swap().into(model, multiplier, images)
    found = {each.layer: each for each in noises(model, images)}
    assert {each.kind for each in found.values()} == {"SeparableConv2D", "Dense"}
    assert len(found) == 3
    assert all(0 < each.exact < 60 and 0 <= each.constant <= 1 for each in found.values())
    assert all(abs(each.exact - each.native) < 20 for each in found.values())


def test_ratios_at_their_limits():
    some = np.array([[3.0, -4.0]])
    assert approximation.decibels(some, some) == math.inf
    assert approximation.decibels(0 * some, some) == -math.inf
    assert approximation.decibels(10 * some, 9 * some) == pytest.approx(20)
    assert [approximation_report.decibels(each) for each in (math.inf, -math.inf, 7.25)] == [
        "∞", "-∞", "7.2",
    ]  # fmt: skip


# ---- what a network takes and gives --------------------------------------------------------


def test_probabilities_and_logits_have_one_loss():
    rng = np.random.default_rng(10)
    logits = rng.normal(size=(40, 4)).astype("f")
    labels = rng.integers(0, 4, 40)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Activation("linear")])
    soft = keras.Sequential([keras.Input((4,)), keras.layers.Softmax()])
    ours, theirs = stand(model, logits, labels, 7), stand(soft, logits, labels, 40)
    due = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    assert ours.loss == pytest.approx(float(np.mean(due)), rel=1e-5)
    assert theirs.loss == pytest.approx(ours.loss, rel=1e-5)
    assert ours.accuracy == theirs.accuracy == np.mean(logits.argmax(1) == labels)


def test_whether_a_network_takes_bytes_is_found_out(loaded, held):
    assert approximation.as_taken(loaded, held, 60, 32).white == 255
    scaled = keras.Sequential([keras.Input((10, 9, 1)), keras.layers.Rescaling(255), loaded])
    assert approximation.as_taken(scaled, held, 60, 32).white == 1
    # Either way the same: scaled, as in `opgraft train`.
    flat = keras.Sequential([keras.Input((10, 9, 1)), keras.layers.Flatten()])
    assert approximation.as_taken(flat, held, 60, 32).white == 1
    assert approximation.as_taken(loaded, held.scaled(), 60, 32).white == 1


def test_scaled_is_obeyed(network, striped, tmp_path, undrawn):
    done("evaluate", network, *BIASED, "--data", striped, "--scaled", "--out", tmp_path)
    told = figures(tmp_path)
    assert told["range"] == "0 to 1"
    assert told["results"]["float"]["accuracy"] < 0.6


# ---- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--multiplier", "gone.npy"), "--multiplier there is no file gone.npy"),
        (("--multiplier", "fast"), "--multiplier there is neither a file nor a family fast"),
        (("--multiplier", "mitchell", "--per-channel"), "is not signed, and kernels of unsigned"),
        ((*BIASED, "--layers", "conv9"), "the rule 'conv9' matches no layer that can be swapped"),
        ((*BIASED, "--layers", "first,"), "--layers 'first,': write classes, names or globs"),
        ((*BIASED, "--data", "gone.npz"), "There is no data file at gone.npz"),
        ((*BIASED, "--images", 0), "--images"),
        ((*BIASED, "--calibration", 0), "--calibration"),
        ((*BIASED, "--costs", "gone.json"), "--costs gone.json: No such file"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "retrain"])
def test_bad_options_are_refused(
    command, options, message, network, striped, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    given = ("--data", striped, *options)
    assert message in refused(command, network, *given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--epochs", 0), "--epochs"),
        (("--learning-rate", 0), "--learning-rate 0: it must be a number above 0."),
        (("--learning-rate", "nan"), "--learning-rate nan: it must be a number above 0."),
        (("--seed", -1), "--seed"),
    ],
)
def test_bad_training_is_refused(options, message, network, striped):
    assert message in refused("retrain", network, *BIASED, "--data", striped, *options)


def test_retrain_needs_a_multiplier(network):
    assert "Name a multiplier: opgraft retrain MODEL --multiplier" in refused("retrain", network)


@pytest.mark.parametrize(
    "option", ["--signed", "--per-channel", "--exchanged", ("--layers", "Conv2D"), ("--out", "x"),
               ("--calibration", 3), ("--costs", "c.json")],
)  # fmt: skip
def test_options_of_a_multiplier_need_one(option, network):
    option = (option,) if isinstance(option, str) else option
    message = refused("evaluate", network, *option)
    assert f"error: {option[0]}" in message
    assert "needs --multiplier FILE|FAMILY" in message


def test_several_tables_are_refused(network, tmp_path):
    path = tmp_path / "two.npz"
    table = og.multipliers.exact(4).table
    np.savez(path, one=table, other=table)
    message = refused("evaluate", network, "--multiplier", path)
    assert f"{path} holds 2 multipliers; name one: {path}:" in message


def test_a_table_of_fractions_is_refused(network, tmp_path):
    np.save(tmp_path / "halves.npy", og.multipliers.exact(4).table + 0.5)
    message = refused("evaluate", network, "--multiplier", tmp_path / "halves.npy")
    assert "gives numbers that are no integers for operands that are; scale its" in message


def saved(tmp_path, model):
    model.save(tmp_path / "other.keras")
    return tmp_path / "other.keras"


def test_models_that_do_not_fit_are_refused(striped, tmp_path):
    layers = keras.layers
    given = (*BIASED, "--data", striped)
    inputs = keras.Input((10, 9, 1))
    flat = layers.Flatten()(inputs)
    for outputs, message in (
        (layers.Dense(2)(flat), "gives outputs of the shape (2,), but"),
        (layers.ReLU()(flat), "has no layer that can be swapped; those that can: Dense"),
        ([layers.Dense(3)(flat), layers.Dense(3)(flat)], "has several inputs or outputs"),
    ):
        path = saved(tmp_path, keras.Model(inputs, outputs))
        assert message in refused("evaluate", path, *given)
        assert message in refused("retrain", path, *given)
    assert "There is no model at gone.keras" in refused("evaluate", "gone.keras", *given)


def test_data_without_the_keys_is_refused(network, tmp_path):
    np.savez(tmp_path / "other.npz", images=np.zeros((3, 10, 9)))
    message = refused("evaluate", network, *BIASED, "--data", tmp_path / "other.npz")
    assert "holds the keys images; needed are x_train, y_train, x_test, y_test" in message


def test_a_swap_that_cannot_be_says_why(loaded, held):
    with pytest.raises(ArgumentError, match="Make it signed, by sign-magnitude for one"):
        Swap(per_channel=True).into(loaded, og.multipliers.mitchell(), held.x_train)


# ---- the picture ---------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["evaluated", "retrained"])
def test_the_picture_is_drawn(which, request):
    pixels = image.imread(request.getfixturevalue(which)[1] / "results.png")[100:, :, :3]
    for third in np.array_split(pixels, 3, axis=1):
        assert 0.005 < np.mean(third.min(-1) < 0.9) < 0.9


# ---- real networks -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("circuit", "accuracy"), [("1KVA", 0.875), ("1KR8", 0.858), ("1L2H", 0.662), ("1KX2", 0.565)]
)
def test_resnet8_under_four_circuits(circuit, accuracy, shared_data, tmp_path):
    done(
        *("evaluate", shared_data / "resnet8_cifar10.h5", "--layers", "Conv2D"),
        *("--multiplier", f"{shared_data / TABLE}{circuit}", "--out", tmp_path),
        *("--data", shared_data / "cifar10_lossless_5000.npz"),
    )
    results = figures(tmp_path)["results"]
    due = {"float": 0.881, "exact": 0.876, "approximate": accuracy}
    assert {title: each["accuracy"] for title, each in results.items()} == pytest.approx(
        due, abs=0.015
    )


@pytest.mark.slow
def test_resnet8_learns_to_live_with_a_mean_error(shared_data, tmp_path):
    done(
        *("retrain", shared_data / "resnet8_cifar10.h5", "--layers", "Conv2D"),
        *("--multiplier", f"{shared_data / TABLE}1KX2", "--out", tmp_path),
        *("--data", shared_data / "cifar10_lossless_5000.npz"),
    )
    told = figures(tmp_path)
    assert told["results"]["approximate"]["accuracy"] == pytest.approx(0.565, abs=0.015)
    assert len(told["epochs"]) <= 10
    assert told["results"]["retrained"]["accuracy"] >= 0.80
