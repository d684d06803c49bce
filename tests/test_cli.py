"""The command line, on digits small enough to train in a second."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

from opgraft import cli, multipliers
from opgraft.config import describe

MNIST = Path(__file__).parents[2] / "shared" / "data" / "mnist.npz"
# Where the tests run in the background, a child would inherit that Ctrl-C is ignored.
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from opgraft.cli import main; main()"
)


def opgraft(*arguments):
    """Run the command line here, and give its exit code and all that it printed."""
    result = CliRunner().invoke(cli.app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def refused(*arguments):
    """Run a command that must be refused, and give its message as one line."""
    code, output = opgraft(*arguments)
    assert code == 2
    assert "Traceback" not in output
    return " ".join(output.split())


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A .npz file of four easy classes: which quarter of the image is bright."""
    rng = np.random.default_rng(0)

    def images(labels):
        seen = rng.integers(0, 60, (len(labels), 12, 12), np.uint8)
        for image, label in zip(seen, labels, strict=True):
            top, left = 6 * (label // 2), 6 * (label % 2)
            image[top : top + 6, left : left + 6] += 180
        return seen

    y_train, y_test = np.arange(100) % 4, np.arange(20) % 4
    path = tmp_path_factory.mktemp("data") / "quarters.npz"
    np.savez(path, x_train=images(y_train), y_train=y_train, x_test=images(y_test), y_test=y_test)
    return path


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """What `opgraft train` leaves behind: its folder, its output and its figures."""
    folder = tmp_path_factory.mktemp("trained")
    code, output = opgraft(
        *("train", "lenet5", "--data", digits, "--epochs", 3, "--batch-size", 8),
        *("--seed", 1, "--out", folder, "--json", folder / "figures" / "all.json"),
    )
    assert code == 0
    return folder, output, json.loads((folder / "figures" / "all.json").read_text())


def test_train_saves_a_model_a_picture_and_the_figures(trained):
    folder, _, figures = trained
    assert (folder / "lenet5.png").read_bytes().startswith(b"\x89PNG")
    assert keras.models.load_model(folder / "lenet5.keras").output_shape == (None, 4)
    assert figures["network"] == "lenet5"
    assert figures["seed"] == 1
    assert figures["stopped"] is False
    assert [run["steps"] for run in figures["runs"]] == [39, 39]
    assert [len(run["epochs"]) for run in figures["runs"]] == [3, 3]
    assert all(run["step_ms"]["median"] > 0 for run in figures["runs"])


def test_the_shipped_kernels_compute_what_tensorflow_computes(trained):
    _, _, figures = trained
    names = [each["layer"] for each in figures["deviations"]]
    assert names == ["conv1", "conv2", "dense1", "dense2", "logits"]
    for each in figures["deviations"]:
        assert 0 <= each["mean"] <= each["largest"] < 1e-4 * each["scale"]
    kernel, native = figures["runs"]
    assert kernel["epochs"][0]["loss"] == pytest.approx(native["epochs"][0]["loss"], rel=1e-3)
    assert kernel["test_accuracy"] == pytest.approx(native["test_accuracy"], abs=0.1)


def test_train_shows_every_epoch_and_one_table(trained):
    _, output, _ = trained
    for title in ("C kernels", "native   "):
        for epoch in (1, 2, 3):
            assert f"{title} epoch {epoch}/3: loss" in output
    for words in ("test accuracy", "time per step", "forward |kernel - native|", "conv1", "logits"):
        assert words in output


def test_evaluate_reloads_the_model(trained, digits):
    folder, _, figures = trained
    code, output = opgraft("evaluate", folder / "lenet5.keras", "--data", digits)
    assert code == 0
    accuracy = figures["runs"][0]["test_accuracy"]
    assert f"test accuracy {accuracy:.2%}: {round(20 * accuracy)} of 20 images" in output


@pytest.fixture(scope="module")
def own_kernel(digits, tmp_path_factory):
    """A matrix product of one's own (a quarter too large), and what training through it leaves."""
    folder = tmp_path_factory.mktemp("own")
    source = folder / "ours.c"
    text = (cli.EXAMPLES / "matmul.c").read_text()
    source.write_text(text.replace("+= a_row", "+= 1.25f * a_row").replace("custom_", "my_"))
    code, _ = opgraft(
        *("train", "lenet5", "--data", digits, "--epochs", 1, "--matmul", f"{source}:my_matmul"),
        *("--out", folder, "--json", folder / "all.json"),
    )
    assert code == 0
    return source, folder, json.loads((folder / "all.json").read_text())


def test_a_kernel_of_ones_own_is_what_computes(own_kernel):
    _, _, figures = own_kernel
    found = {each["layer"]: each["largest"] for each in figures["deviations"]}
    assert found["conv2"] < 1e-4 < 1e-2 < found["dense1"]
    assert "my_matmul" in next(k["prototype"] for k in figures["kernels"] if k["role"] == "matmul")


def test_a_multiplier_is_what_computes(digits, tmp_path):
    train = ("train", "lenet5", "--data", digits, "--epochs", 2, "--batch-size", 8)
    multiplier = ("--multiplier", "mitchell", "--signed", "--out", tmp_path)
    code, output = opgraft(*train, *multiplier, "--json", tmp_path / "all.json")
    assert code == 0
    assert "approximate epoch 2/2: loss" in output
    told = json.loads((tmp_path / "all.json").read_text())
    assert (told["multiplier"], told["kernels"]) == ("mitchell", [])
    assert [run["title"] for run in told["runs"]] == ["approximate", "native"]
    for each in told["deviations"]:
        assert each["largest"] > 1e-3 * each["scale"]
    model = keras.models.load_model(tmp_path / "lenet5.keras")
    due = multipliers.sign_magnitude(multipliers.mitchell())
    assert model.get_layer("dense1").arithmetic.product.multiplier == due
    for option in ("--matmul", "--conv2d-prototype"):
        message = refused(*train, *multiplier, option, "mine.c")
        role = option[2:].removesuffix("-prototype")
        assert f"--{role} and --multiplier both say how to multiply" in message
    assert "--multiplier there is neither a file" in refused(*train, "--multiplier", "quick")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler called cc")
def test_a_library_needs_its_prototype(digits, tmp_path):
    library = tmp_path / "matmul.so"
    build = ["cc", "-O2", "-shared", "-fPIC", "-o", library, cli.EXAMPLES / "matmul.c"]
    subprocess.run(build, check=True)
    train = ("train", "lenet5", "--data", digits, "--epochs", 1, "--out", tmp_path / "out")
    assert "--matmul-prototype 'void" in refused(*train, "--matmul", library)
    prototype = (
        "void custom_matmul(const float *a, const float *b, int batch_size, int in_size, "
        "int out_size, float *out)"
    )
    code, _ = opgraft(*train, "--matmul", library, "--matmul-prototype", prototype)
    assert code == 0


def test_ctrl_c_saves_what_was_trained(digits, tmp_path):
    arguments = ("--data", digits, "--epochs", 100_000, "--out", tmp_path)
    arguments += ("--json", tmp_path / "all.json")
    command = [sys.executable, "-u", "-c", COMMAND, "train", "lenet5", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        while "epoch 2/" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output = " ".join(process.stdout.read().split())
        assert process.wait(60) == 130
    assert "Traceback" not in output
    assert "stopped early" in output
    figures = json.loads((tmp_path / "all.json").read_text())
    assert figures["stopped"] is True
    assert len(figures["runs"]) == 1
    assert (tmp_path / "lenet5.png").exists()
    code, _ = opgraft("evaluate", tmp_path / "lenet5.keras", "--data", digits)
    assert code == 0


def test_config_says_what_was_found():
    code, output = opgraft("config")
    assert code == 0
    for name, value in describe().items():
        assert name in output
        assert "".join(value.split()) in "".join(output.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "mnits"), "error: There are no data called 'mnits'"),
        (("--matmul", "gone.c"), "error: --matmul gone.c: There is no file gone.c"),
        (("--conv2d", f"{cli.EXAMPLES / 'conv2d.c'}:custom_conv"), "custom_conv2d"),
        (("--epochs", 0), "--epochs"),
        (("--batch-size", 0), "--batch-size"),
    ],
)
def test_train_refuses_bad_options(options, message, tmp_path):
    assert message in refused("train", "lenet5", "--out", tmp_path / "out", *options)


def test_train_refuses_an_unknown_network():
    assert "no network called 'resnet'. Known are: lenet5." in refused("train", "resnet")


def test_train_refuses_a_folder_it_cannot_write(tmp_path):
    (tmp_path / "file").touch()
    message = refused("train", "lenet5", "--out", tmp_path / "file" / "out")
    assert "Cannot write into the folder" in message


def test_train_refuses_images_too_small(tmp_path):
    images, labels = np.zeros((4, 8, 8), np.uint8), np.arange(4)
    path = tmp_path / "small.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    message = refused("train", "lenet5", "--data", path, "--out", tmp_path / "out")
    assert "images are 8x8; needed are at least 12x12" in message


def test_evaluate_refuses_what_is_no_model(tmp_path, digits):
    assert "There is no model at" in refused("evaluate", tmp_path / "gone.keras")
    other = tmp_path / "other.keras"
    other.write_text("no model")
    message = refused("evaluate", other, "--data", digits)
    assert "other.keras cannot be loaded: " in message


def test_evaluate_says_which_library_is_gone(own_kernel, digits):
    source, folder, _ = own_kernel
    aside = source.rename(source.with_suffix(".aside"))
    # In a process of its own: here the library is loaded already.
    command = [sys.executable, "-c", COMMAND, "evaluate", folder / "lenet5.keras", "--data", digits]
    done = subprocess.run(command, capture_output=True, text=True)
    aside.rename(source)
    assert done.returncode == 2
    assert f"lenet5.keras cannot be loaded: the library '{source}'" in done.stderr
    assert "config=" not in done.stderr


def test_a_kernel_that_fails_is_named_and_nothing_is_lost(digits, tmp_path):
    source = (cli.EXAMPLES / "matmul.c").read_text()
    failing = tmp_path / "failing.c"
    failing.write_text(
        source.replace("void custom_matmul", "int custom_matmul").rstrip().removesuffix("}")
        + "    static int calls;\n    return ++calls > 20 ? 42 : 0;\n}\n"
    )
    message = refused(
        *("train", "lenet5", "--data", digits, "--matmul", failing, "--out", tmp_path / "out")
    )
    assert "error: custom_matmul returned 42" in message
    assert (tmp_path / "out" / "lenet5.keras").exists()


def test_evaluate_refuses_images_that_do_not_fit(trained, tmp_path):
    folder, _, _ = trained
    images, labels = np.zeros((4, 28, 28), np.uint8), np.arange(4)
    path = tmp_path / "large.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    message = refused("evaluate", folder / "lenet5.keras", "--data", path)
    assert "takes images of the shape (12, 12, 1), but those of" in message
    assert "are (28, 28, 1) (height, width, channels)" in message


@pytest.mark.slow
@pytest.mark.skipif(not MNIST.exists(), reason="../shared/data/mnist.npz is not there")
def test_lenet5_learns_mnist_as_well_as_natively(tmp_path):
    code, _ = opgraft(
        *("train", "lenet5", "--data", MNIST, "--epochs", 5),
        *("--out", tmp_path, "--json", tmp_path / "all.json"),
    )
    assert code == 0
    kernel, native = json.loads((tmp_path / "all.json").read_text())["runs"]
    assert kernel["test_accuracy"] >= 0.985
    assert abs(kernel["test_accuracy"] - native["test_accuracy"]) <= 0.005


@pytest.mark.slow
@pytest.mark.skipif(not MNIST.exists(), reason="../shared/data/mnist.npz is not there")
def test_lenet5_learns_mnist_under_mitchells_multiplier(tmp_path):
    code, _ = opgraft(
        *("train", "lenet5", "--data", MNIST, "--epochs", 3, "--multiplier", "mitchell"),
        *("--signed", "--out", tmp_path, "--json", tmp_path / "all.json"),
    )
    assert code == 0
    approximate, _ = json.loads((tmp_path / "all.json").read_text())["runs"]
    assert approximate["test_accuracy"] >= 0.98
