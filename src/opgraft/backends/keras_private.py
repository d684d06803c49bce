"""What Keras does not offer in public. Probed; absence gives a clear message."""

from collections.abc import Iterator

import keras

from opgraft.errors import UnsupportedError


def all_layers(model: keras.Layer) -> list[keras.Layer]:
    """Every layer inside a model, at any depth, each once.

    Raises:
        UnsupportedError: this Keras has no way to walk a model.
    """
    walk = getattr(model, "_flatten_layers", None)
    if walk is None:
        raise UnsupportedError(
            f"Keras {keras.__version__} offers no way to walk the layers of a model; opgraft "
            "supports Keras 3.3 and later"
        )
    return list(dict.fromkeys(walk(include_self=False)))


def sublayers(layer: keras.Layer) -> Iterator[keras.Layer]:
    """The layers that a layer is made of."""
    return iter(layer._flatten_layers(include_self=False))


def forget_functions(model: keras.Layer) -> None:
    """Make a model, and models inside it, trace their functions anew."""
    for layer in (model, *all_layers(model)):
        for name in ("train_function", "test_function", "predict_function"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, None)
