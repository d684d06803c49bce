"""The networks that `opgraft train` knows."""

import keras
import numpy as np
import pytest

from opgraft import models
from opgraft.errors import OpgraftError


def test_one_seed_gives_one_network():
    first, again, other = (models.lenet5(seed=seed) for seed in (3, 3, 4))
    for one, two in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first.get_weights()[0], other.get_weights()[0])


def test_the_weights_do_not_depend_on_what_was_drawn_before():
    before = models.lenet5(seed=1).get_weights()[0]
    keras.random.normal((5,))
    np.testing.assert_array_equal(before, models.lenet5(seed=1).get_weights()[0])


def test_lenet5_is_plain_keras_of_the_known_size():
    network = models.lenet5()
    assert network.count_params() == 61_706
    assert network.output_shape == (None, 10)
    assert all(type(layer).__module__.startswith("keras.") for layer in network.layers)


def test_lenet5_takes_other_images_and_classes():
    network = models.lenet5((12, 17, 3), classes=4)
    assert network(np.zeros((2, 12, 17, 3), "float32")).shape == (2, 4)


def test_images_too_small_are_refused_by_size():
    with pytest.raises(OpgraftError, match=r"images are 8x28; needed are at least 12x12"):
        models.lenet5((8, 28, 1))


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(OpgraftError, match=r"no network called 'lenet'. Known are: lenet5"):
        models.network("lenet")
