"""Our op types, loaded into TensorFlow."""

import functools
import os

import tensorflow as tf

from opgraft import environment
from opgraft.errors import LibraryError
from opgraft.native import core


@functools.cache
def ops():
    """The module of generated op functions.

    Raises:
        LibraryError: the adapter is missing or this TensorFlow does not take it.
    """
    core.core()  # first: the adapter is linked against it
    if not core.TENSORFLOW_PATH.exists():
        raise LibraryError(
            f"the TensorFlow adapter '{core.TENSORFLOW_PATH}' is missing: opgraft was built "
            "without "
            "it. Reinstall: `pip install --force-reinstall .`"
        )
    try:
        return tf.load_op_library(os.fspath(core.TENSORFLOW_PATH))
    except (tf.errors.OpError, RuntimeError) as error:
        raise LibraryError(
            f"TensorFlow {tf.__version__} does not load the adapter '{core.TENSORFLOW_PATH}': "
            f"{error}. "
            "Opgraft supports TensorFlow 2.16 to 2.21"
        ) from None


def follow_intra_op_setting() -> int:
    """Unless OPGRAFT_NUM_THREADS says otherwise, use TensorFlow's intra-op setting."""
    threads = environment.num_threads() or tf.config.threading.get_intra_op_parallelism_threads()
    core.set_threads(threads)
    return core.core().og_threads()


@functools.cache
def follow_once() -> None:
    """At the first operation: TensorFlow takes no other setting after that."""
    follow_intra_op_setting()


ops()
