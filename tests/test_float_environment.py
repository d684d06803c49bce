"""A C function finds the floating-point environment that C promises, wherever it runs."""

import numpy as np
import pytest
import tensorflow as tf

import opgraft as og
from opgraft.native import core

DENORMAL = np.float32(1e-40)


@pytest.fixture(params=[1, 3])
def threads(request):
    core.set_threads(request.param)
    yield request.param
    core.set_threads(0)


def in_graph(contract):
    return tf.function(contract)


def eagerly(contract):
    return contract


@pytest.mark.parametrize("mode", [eagerly, in_graph])
def test_denormal_numbers_survive(mode, threads, c_matmul):
    """A product of 1e-20 and 1e-20 is denormal; TensorFlow's own threads flush it to zero."""
    random = np.random.default_rng(threads)
    a = random.integers(1, 9, (5, 1)).astype(np.float32) * np.float32(1e-20)
    b = random.integers(1, 9, (1, 4)).astype(np.float32) * np.float32(1e-20)
    product = mode(lambda x, y: og.matmul(x, y, arithmetic=c_matmul))(a, b)
    assert np.all(a * b > 0)
    np.testing.assert_array_equal(product, a * b)


def test_denormal_numbers_survive_in_every_tile(threads, c_matmul):
    """Through im2col the rows are split among threads; all of them keep what C keeps."""
    random = np.random.default_rng(0)
    x = random.integers(1, 5, (4, 67, 61, 3)).astype(np.float32) * DENORMAL
    kernel = np.stack([np.eye(3), np.zeros((3, 3))])[:, None].astype(np.float32)
    convolve = tf.function(lambda x: og.conv2d(x, kernel, arithmetic=c_matmul))
    np.testing.assert_array_equal(convolve(x), x[:, :-1])
    assert np.all(x > 0)


def test_tensorflow_gets_its_own_environment_back(c_matmul):
    """After our operation, TensorFlow's thread still flushes what it flushed before."""
    tiny = tf.constant([[1e-20]])

    @tf.function
    def before_and_after(x):
        before = x * x
        ours = og.matmul(x, x, arithmetic=c_matmul)
        with tf.control_dependencies([ours]):
            return before, ours, x * tf.identity(x)

    before, ours, after = before_and_after(tiny)
    assert ours.numpy() > 0
    assert before.numpy() == after.numpy()
