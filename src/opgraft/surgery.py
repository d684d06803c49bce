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

# Layers that multiply without a kernel of their own, or by several at once.
_WITHOUT_KERNEL = (
    keras.layers.AdditiveAttention,
    keras.layers.Attention,
    keras.layers.Dot,
    keras.layers.MultiHeadAttention,
)

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

    Only products with a kernel are swapped: not those inside attention, nor
    `keras.ops.matmul` in a Functional model. Without rules, a warning names the layers
    that multiply, have no counterpart in `og.layers` and so stay exact. The model's
    functions are traced anew; other models that share its layers must be compiled again.
    """
    _check_model(model)
    rules = _rules(arithmetic)
    candidates = _candidates(model)
    if not candidates:
        raise ArgumentError(
            f"model '{model.name}' has no layer that can be swapped; those that can: "
            f"{', '.join(twin.__name__ for twin in _CONTRACTIONS)}"
        )
    excluded = _exclusions(exclude)
    _check_matches("rule", rules, candidates)
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
        _warn_of_rest(model, candidates)
    return model


def restore(model: keras.Model) -> keras.Model:
    """Give every layer of `og.layers` in a model back to Keras, in place; weights are kept.

    Also for models that were built with `og.layers`: what remains is a plain Keras
    model that can be exported and read without opgraft.

    Returns:
        The same model.

    Raises:
        ArgumentError: the model has no such layer, or one of a class that was derived
            from a layer of `og.layers`.
    """
    _check_model(model)
    swapped = [v for v in _candidates(model) if isinstance(v, layers.ArithmeticLayer)]
    if not swapped:
        raise ArgumentError(f"model '{model.name}' has no layer with an arithmetic to take out")
    own = [_described(layer) for layer in swapped if type(layer) not in _CONTRACTIONS]
    if own:
        raise ArgumentError(
            f"there is no Keras class to give these layers back to: {', '.join(own)}. Their "
            "classes derive from og.layers; nothing was changed"
        )
    for layer in swapped:
        keras_private.set_sublayer(layer, "remembered", None)
        del layer.arithmetic
        keras_private.become(layer, layers.native_layer(type(layer)))
        layer.supports_jit = True
    keras_private.forget_functions(model)
    return model


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Layer):
        raise ArgumentError(
            f"model={model!r} is a {type(model).__name__}; it must be a Keras model. To swap in a "
            "saved one, load it first: keras.models.load_model(path)"
        )


def _rules(arithmetic: Any) -> dict[Rule, Arithmetic]:
    if not isinstance(arithmetic, Mapping):
        return {keras.Layer: standardize(arithmetic)}
    if not arithmetic:
        raise ArgumentError(
            "the rules are empty; map a layer's name, glob or class to an arithmetic"
        )
    return {_rule(rule): _value(rule, value) for rule, value in arithmetic.items()}


def _value(rule: Rule, value: Any) -> Arithmetic:
    try:
        return standardize(value)
    except ArgumentError as error:
        raise ArgumentError(f"rule {_shown(rule)}: {error}") from None


def _exclusions(exclude: Any) -> list[Rule]:
    if isinstance(exclude, str | type):
        exclude = [exclude]
    if not isinstance(exclude, Iterable):
        raise ArgumentError(f"exclude={exclude!r} must be a list of names, globs or layer classes")
    return [_rule(rule) for rule in exclude]


def _rule(rule: Any) -> Rule:
    """A rule as it is compared: a class of `og.layers` stands for its Keras class."""
    if rule in _CONTRACTIONS:
        return layers.native_layer(rule)
    if isinstance(rule, str) or (isinstance(rule, type) and issubclass(rule, keras.Layer)):
        return rule
    raise ArgumentError(f"the rule {rule!r} must be a layer's name, a glob over names or a class")


def _shown(rule: Any) -> str:
    return f"'{rule.__name__ if isinstance(rule, type) else rule}'"


def _described(layer: Any) -> str:
    return f"{layer.name} ({type(layer).__name__})"


def _candidates(model: keras.Layer) -> list[keras.Layer]:
    """Layers that can be swapped, or are already."""
    return [
        layer
        for layer in keras_private.all_layers(model)
        if type(layer) in _TWINS or isinstance(layer, layers.ArithmeticLayer)
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
        if not any(_matches(rule, layer) for layer in candidates):
            names = ", ".join(map(_described, candidates))
            raise ArgumentError(
                f"the {what} {_shown(rule)} matches no layer that can be swapped. Those of this "
                f"model: {names}"
            )


def _check_plan(plan: list[tuple[keras.Layer, Arithmetic]]) -> None:
    problems = []
    for layer, arithmetic in plan:
        try:
            layers.check_not_quantized(layer)
            arithmetic.check(_contraction(layer))
        except OpgraftError as error:
            problems.append(f"{_described(layer)}: {error}")
    if problems:
        raise ArgumentError(
            "the arithmetic cannot serve these layers; nothing was changed:\n  - "
            + "\n  - ".join(problems)
            + "\nGive rules that map layer classes to arithmetics, such as "
            "{keras.layers.Dense: ..., keras.layers.Conv2D: ...}, or exclude the layers"
        )


def _contraction(layer: keras.Layer):
    twin = _TWINS.get(type(layer), type(layer))
    kind = next(_CONTRACTIONS[base] for base in twin.__mro__ if base in _CONTRACTIONS)
    if isinstance(kind, Conv2D):
        rate = layer.dilation_rate
        return Conv2D(dilations=(1, rate[0]) if len(rate) == 1 else tuple(rate))
    return kind


def _graft(layer: keras.Layer, arithmetic: Arithmetic) -> None:
    twin = _TWINS.get(type(layer))
    if twin is not None:
        keras_private.become(layer, twin)
    layer.set_arithmetic(arithmetic)


def _warn_of_rest(model: keras.Layer, candidates: list[keras.Layer]) -> None:
    """Nothing stays exact unseen: name the layers that multiply and could not be swapped."""
    left = [
        _described(layer)
        for layer in keras_private.all_layers(model)
        if layer not in candidates and _multiplies(layer)
    ]
    if left:
        warnings.warn(
            f"these layers of '{model.name}' stay exact, og.layers has no counterpart: "
            f"{', '.join(left)}",
            stacklevel=3,
        )


def _multiplies(layer: keras.Layer) -> bool:
    if isinstance(layer, _WITHOUT_KERNEL):
        return True
    own = [weight for weight in layer.weights if "kernel" in weight.name]
    return bool(own) and not list(keras_private.sublayers(layer))
