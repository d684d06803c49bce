"""What Keras does not offer in public. Probed; absence gives a clear message."""

from collections.abc import Iterator
from typing import Any

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


def set_sublayer(layer: keras.Layer, name: str, sublayer: keras.Layer | None) -> None:
    """Give a layer, built or not, a sublayer under a name, in the place of the one it has; or none.

    Raises:
        UnsupportedError: this Keras has no way to change a layer that is built.
    """
    tracker: Any = getattr(layer, "_tracker", None)
    if not all(hasattr(tracker, each) for each in ("locked", "lock", "unlock", "untrack")):
        raise UnsupportedError(
            f"Keras {keras.__version__} offers no way to change the weights of a layer that is "
            "built; opgraft supports Keras 3.3 and later"
        )
    was_locked = tracker.locked
    tracker.unlock()
    try:
        if name in vars(layer):
            tracker.untrack(getattr(layer, name))
            delattr(layer, name)
        if sublayer is not None:
            setattr(layer, name, sublayer)
    finally:
        if was_locked:
            tracker.lock()


def become(layer: keras.Layer, kind: type[keras.Layer]) -> None:
    """Make a layer one of another class, in place.

    Keras looks at the parameters of `call` when a layer is made, to fill in `training`.
    """
    layer.__class__ = kind
    made: Any = keras.Layer.__new__(kind)
    keras.Layer.__init__(made)
    for name, value in vars(made).items():
        if name.startswith(("_call_has_", "_call_signature", "call_signature_parameters")):
            setattr(layer, name, value)


def forget_functions(model: keras.Layer) -> None:
    """Make a model, and models inside it, trace their functions anew."""
    for layer in (model, *all_layers(model)):
        for name in ("train_function", "test_function", "predict_function"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, None)
