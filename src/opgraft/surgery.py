"""Put an arithmetic into a finished model, and take it out again.

A layer is changed where it stands: it becomes the layer of `opgraft.layers`
that is a thin subclass of its own class, so weights, names, connections and
sharing stay what they are, in Sequential, Functional, nested and subclassed
models alike.
"""

import fnmatch
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from opgraft import layers
from opgraft.arithmetic import Arithmetic, standardize
from opgraft.backends import keras_private
from opgraft.errors import ArgumentError, OpgraftError
from opgraft.spec import Contraction, Conv2D, MatMul

Rule = str | type

# Every layer that can be swapped, and the contraction it asks for.
_CONTRACTIONS: dict[type, Contraction] = {
    layers.Dense: MatMul(),
    layers.EinsumDense: MatMul(),
    layers.Conv1D: Conv2D(),
    layers.Conv2D: Conv2D(),
    layers.DepthwiseConv2D: Conv2D(),
    layers.SeparableConv2D: Conv2D(),
}
_TWINS: dict[type, Any] = {layers.native_layer(twin): twin for twin in _CONTRACTIONS}


def swap(model: keras.Model, arithmetic: Any, *, exclude: Iterable[Rule] = ()) -> keras.Model:
    """Put an arithmetic into a model, in place; weights are kept.

    Everything is checked first; if anything is wrong, nothing is changed.

    Args:
        model: any built or unbuilt Keras model.
        arithmetic: one for all layers that have one, or rules: a mapping from a
            layer's name, a glob over names, or a layer class to an arithmetic. A
            name goes before a glob, a glob before a class; among equals the first
            one counts. Layers that no rule matches stay as they are.
        exclude: names, globs or classes of layers to leave alone.

    Returns:
        The same model.

    Raises:
        ArgumentError: no layer can be swapped, a rule or an exclusion matches
            nothing, or an arithmetic cannot serve a layer (all of them are listed).

    A warning names the layers with weights to multiply that have no counterpart in
    `og.layers` and were left exact. The model's functions are traced anew; other
    models that share its layers must be compiled again.
    """
    rules = _rules(arithmetic)
    candidates = _candidates(model)
    if not candidates:
        raise ArgumentError(
            f"model '{model.name}' has no layer that can be swapped; those that can: "
            f"{', '.join(twin.__name__ for twin in _CONTRACTIONS)}"
        )
    _check_matches("rule", rules, candidates)
    excluded = list(exclude) if not isinstance(exclude, str | type) else [exclude]
    _check_matches("exclusion", excluded, candidates)
    plan = []
    for layer in candidates:
        chosen = None if _matches_any(excluded, layer) else _choose(rules, layer)
        if chosen is not None:
            plan.append((layer, chosen))
    if not plan:
        raise ArgumentError(
            f"nothing is left to swap in model '{model.name}': every matching layer is excluded"
        )
    _check_plan(plan)
    for layer, chosen in plan:
        _graft(layer, chosen)
    keras_private.forget_functions(model)
    if not isinstance(arithmetic, Mapping):
        _warn_of_rest(model)
    return model


def restore(model: keras.Model) -> keras.Model:
    """Give every layer of `og.layers` in a model back to Keras, in place; weights are kept.

    Also for models that were built with `og.layers`: what remains is a plain Keras
    model that can be exported and read without opgraft.

    Returns:
        The same model.

    Raises:
        ArgumentError: the model has no such layer.
    """
    swapped = [layer for layer in keras_private.all_layers(model) if type(layer) in _CONTRACTIONS]
    if not swapped:
        raise ArgumentError(f"model '{model.name}' has no layer with an arithmetic to take out")
    for layer in swapped:
        del layer.arithmetic
        layer.__class__ = layers.native_layer(type(layer))
        layer.supports_jit = True
    keras_private.forget_functions(model)
    return model


def _rules(arithmetic: Any) -> dict[Rule, Arithmetic]:
    if not isinstance(arithmetic, Mapping):
        return {keras.Layer: standardize(arithmetic)}
    if not arithmetic:
        raise ArgumentError(
            "the rules are empty; map a layer's name, glob or class to an arithmetic"
        )
    for rule in arithmetic:
        _check_rule(rule)
    return {rule: standardize(value) for rule, value in arithmetic.items()}


def _check_rule(rule: Any) -> None:
    if not isinstance(rule, str) and not (isinstance(rule, type) and issubclass(rule, keras.Layer)):
        raise ArgumentError(
            f"the rule {rule!r} must be a layer's name, a glob over names or a class"
        )


def _candidates(model: keras.Model) -> list[keras.Layer]:
    """Layers that can be swapped, or are already."""
    return [
        layer
        for layer in keras_private.all_layers(model)
        if type(layer) in _TWINS or type(layer) in _CONTRACTIONS
    ]


def _matches(rule: Rule, layer: keras.Layer) -> bool:
    if isinstance(rule, str):
        return fnmatch.fnmatchcase(layer.name, rule) or layer.name == rule
    return isinstance(layer, rule)


def _matches_any(rules: Iterable[Rule], layer: keras.Layer) -> bool:
    return any(_matches(rule, layer) for rule in rules)


def _rank(rule: Rule, layer: keras.Layer) -> int:
    if isinstance(rule, str):
        return 0 if rule == layer.name else 1
    return 2


def _choose(rules: Mapping[Rule, Arithmetic], layer: keras.Layer) -> Arithmetic | None:
    matching = [rule for rule in rules if _matches(rule, layer)]
    return rules[min(matching, key=lambda rule: _rank(rule, layer))] if matching else None


def _check_matches(what: str, rules: Iterable[Rule], candidates: list[keras.Layer]) -> None:
    for rule in rules:
        _check_rule(rule)
        if not any(_matches(rule, layer) for layer in candidates):
            shown = rule if isinstance(rule, str) else rule.__name__
            names = ", ".join(f"{layer.name} ({type(layer).__name__})" for layer in candidates)
            raise ArgumentError(
                f"the {what} '{shown}' matches no layer that can be swapped. Those of this "
                f"model: {names}"
            )


def _check_plan(plan: list[tuple[keras.Layer, Arithmetic]]) -> None:
    problems = []
    for layer, arithmetic in plan:
        try:
            layers.check_not_quantized(layer)
            arithmetic.check(_contraction(layer))
        except OpgraftError as error:
            problems.append(f"{layer.name} ({type(layer).__name__}): {error}")
    if problems:
        raise ArgumentError(
            "the arithmetic cannot serve these layers; nothing was changed:\n  - "
            + "\n  - ".join(problems)
            + "\nGive rules that map layer classes to arithmetics, such as "
            "{keras.layers.Dense: ..., keras.layers.Conv2D: ...}, or exclude the layers"
        )


def _contraction(layer: keras.Layer):
    twin = _TWINS.get(type(layer), type(layer))
    kind = _CONTRACTIONS[twin]
    if isinstance(kind, Conv2D):
        rate = layer.dilation_rate
        return Conv2D(dilations=(1, rate[0]) if len(rate) == 1 else tuple(rate))
    return kind


def _graft(layer: keras.Layer, arithmetic: Arithmetic) -> None:
    twin = _TWINS.get(type(layer))
    if twin is not None:
        layer.__class__ = twin
    layer.set_arithmetic(arithmetic)


def _warn_of_rest(model: keras.Model) -> None:
    """Nothing stays exact unseen: name the layers that multiply and were not swapped."""
    multiplying = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Conv1D.__mro__[1])
    left = [
        f"{layer.name} ({type(layer).__name__})"
        for layer in keras_private.all_layers(model)
        if type(layer) not in _CONTRACTIONS and _multiplies(layer, multiplying)
    ]
    if left:
        warnings.warn(
            f"these layers of '{model.name}' stay exact, og.layers has no counterpart: "
            f"{', '.join(left)}",
            stacklevel=3,
        )


def _multiplies(layer: keras.Layer, known: tuple[type, ...]) -> bool:
    if isinstance(layer, known):
        return True
    own = [weight for weight in layer.weights if "kernel" in weight.name]
    return bool(own) and not list(keras_private.sublayers(layer))
