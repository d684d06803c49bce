"""Looking at a function of tensors from outside: its values and its gradients.

Arrays go in and come out. Nothing is caught: what a function raises is the caller's to judge.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from opgraft.backends.tensorflow.graft import differentiable
from opgraft.calls import Bound

Function = Callable[..., Any]
Arrays = list[np.ndarray]


def outputs(function: Function, inputs: Arrays) -> Arrays:
    """The flat outputs."""
    return [np.asarray(y) for y in tf.nest.flatten(function(*map(tf.constant, inputs)))]


def gradients(function: Function, inputs: Arrays, upstreams: Arrays) -> list[np.ndarray | None]:
    """The vector-Jacobian product for each input; None where there is none."""
    return [_array(g) for g in _tape_gradient(function, *_tensors(inputs, upstreams))]


def graph_gradients(
    function: Function, inputs: Arrays, upstreams: Arrays
) -> list[np.ndarray | None]:
    """As `gradients`, in a graph that knows the sizes of the last input alone, the kernel."""
    *others, kernel = inputs
    specs = [*_of_any_size(others), tf.TensorSpec(kernel.shape, kernel.dtype)]
    specs += _of_any_size(upstreams)

    def run(*tensors):
        found = _tape_gradient(function, list(tensors[: len(inputs)]), list(tensors[len(inputs) :]))
        return [g for g in found if g is not None], [g is not None for g in found]

    graph = tf.function(run, autograph=False).get_concrete_function(*specs)
    present, is_present = graph(*map(tf.constant, (*inputs, *upstreams)))
    rest = iter(present)
    return [_array(next(rest)) if bool(there) else None for there in is_present]


def _of_any_size(arrays: Arrays) -> list[tf.TensorSpec]:
    return [tf.TensorSpec([None] * np.ndim(x), np.asarray(x).dtype) for x in arrays]


def second_order(
    function: Function, inputs: Arrays, upstreams: Arrays, directions: Arrays
) -> list[np.ndarray | None]:
    """Gradients of Σ <gradient for input i, direction i>, for each input and each upstream."""
    tensors, weights = _tensors(inputs, upstreams)
    watched = [t for t in (*tensors, *weights) if differentiable(t)]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watched)
        first = _tape_gradient(function, tensors, weights)
        pairs = zip(first, directions, strict=True)
        total = tf.add_n([tf.reduce_sum(g * tf.constant(d, g.dtype)) for g, d in pairs
                          if g is not None])  # fmt: skip
    found = tape.gradient(total, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [_array(g) for g in found]


def _tensors(inputs: Arrays, upstreams: Arrays):
    return [tf.constant(x) for x in inputs], [tf.constant(u) for u in upstreams]


def _tape_gradient(function: Function, inputs: list, upstreams: list) -> list:
    floats = [x for x in inputs if differentiable(x)]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(floats)
        ys = [y for y in tf.nest.flatten(function(*inputs)) if differentiable(y)]
    found = iter(tape.gradient(ys, floats, upstreams))
    return [next(found) if differentiable(x) else None for x in inputs]


def _array(tensor) -> np.ndarray | None:
    return None if tensor is None else np.asarray(tf.convert_to_tensor(tensor))


def raw_gradients(bound: Bound, inputs: Arrays, upstreams: Arrays) -> list:
    """What the vjp of a custom op returns, unchecked: an entry is an array or None."""
    tensors, weights = _tensors(inputs, upstreams)
    result = bound.run(tensors)
    rest = iter(weights)
    upstream = tf.nest.map_structure(
        lambda y: next(rest) if differentiable(tf.convert_to_tensor(y)) else None, result
    )
    returned = bound.gradients(tensors, result, upstream)
    listed = list(returned) if isinstance(returned, list | tuple) else [returned]
    return [_array(entry) for entry in listed]


def trace(function: Function, inputs: Arrays) -> bool:
    """Trace a graph of the function; nothing is computed.

    Returns:
        Whether an operation of ours is in it, in a function that it calls included.
    """
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in map(np.asarray, inputs)]
    traced = tf.function(lambda *tensors: function(*tensors), autograph=False)
    graph = traced.get_concrete_function(*specs).graph.as_graph_def()
    nodes = (graph.node, *(f.node_def for f in graph.library.function))
    return any(node.op.startswith("Opgraft") for part in nodes for node in part)


def python_function(function: Function) -> Function:
    """What a tf.function was made of; other functions as they are."""
    return getattr(function, "python_function", function)


def of_any_size(function: Function, inputs: Arrays, only_batch: bool = False) -> Function:
    """The function as a graph that does not know the sizes of its inputs, or only the first."""
    specs = _of_any_size(inputs)
    if only_batch:
        specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in inputs]
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def save(function: Function, inputs: Arrays, folder: str) -> None:
    """Export the function as a SavedModel."""
    specs = [tf.TensorSpec(np.shape(x), np.asarray(x).dtype) for x in inputs]
    module = tf.Module()
    module.run = tf.function(
        lambda *tensors: tf.nest.flatten(function(*tensors)), autograph=False,
        input_signature=specs,
    )  # fmt: skip
    tf.saved_model.save(module, folder)


def load(folder: str) -> Function:
    """The function that `save` exported."""
    module = tf.saved_model.load(folder)
    return lambda *inputs: module.run(*map(tf.constant, inputs))


def weight_gradients(function: Function, inputs: Arrays, weights: list) -> list[np.ndarray | None]:
    """The gradient of a weighted sum of the outputs for each variable."""
    with tf.GradientTape() as tape:
        ys = [y for y in tf.nest.flatten(function(*map(tf.constant, inputs))) if differentiable(y)]
        draw = np.random.default_rng(0)
        total = tf.add_n([
            tf.reduce_sum(tf.cast(y, tf.float32) * draw.standard_normal(y.shape).astype("f4"))
            for y in ys
        ])  # fmt: skip
    return [_array(g) for g in tape.gradient(total, [getattr(w, "value", w) for w in weights])]
