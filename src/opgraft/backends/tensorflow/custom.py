"""Custom ops on TensorFlow: the contract of a vector-Jacobian product, enforced.

Whatever a user's vjp returns is checked before TensorFlow sees it: by static
shapes while a graph is traced, else when it runs.
"""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from opgraft import functions
from opgraft.backends.tensorflow import graft, private
from opgraft.backends.tensorflow.graft import Rule, Tensors, differentiable
from opgraft.calls import Bound
from opgraft.errors import ArgumentError, DtypeError, OpgraftError, UnsupportedError


def custom_op(bound: Bound) -> Any:
    """Run one call of a custom op. Raises as `opgraft.custom_op` says."""
    op = bound.op
    refuse_captured_values(op.function)
    refuse_captured_values(op.vjp, defaults=True)
    inputs = [_input(op, name, value) for name, value in bound.tensors.items()]
    with Surroundings(str(op), [tf.stop_gradient(x) for x in inputs]) as surroundings:
        result = bound.run(surroundings.tensors)
        values = [_output(op, value) for value in tf.nest.flatten(result)]
        surroundings.refuse_captured(values)
    if not values:
        raise ArgumentError(f"{op} returned no tensor; it must return at least one")
    structure = tf.nest.map_structure(lambda _: 0, result)
    vjp = Vjp(bound.without_tensors(), structure)
    rule = Rule(str(op), vjp.backward, vjp.to_save(inputs, values))
    return tf.nest.pack_sequence_as(structure, graft.attach(rule, inputs, values))


def _input(op, name: str, value) -> tf.Tensor:
    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        raise ArgumentError(
            f"{op}: '{name}' is a {type(value).__name__}, whose gradient is no plain tensor. Make "
            "it dense first (tf.sparse.to_dense, .to_tensor())"
        )
    return tf.convert_to_tensor(value)


def _output(op, value) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{op} returned {value!r}, which is no tensor ({error}); it must return a tensor, or a "
            "list, tuple or dict of tensors"
        ) from None


# ---- the vector-Jacobian product ---------------------------------------------------------


class Vjp:
    """The user's vjp on flat lists of tensors, its contract enforced."""

    def __init__(self, bound: Bound, structure: Any) -> None:
        self.bound, self._structure = bound, structure  # of the outputs
        self.names = list(bound.tensors)

    def wanted(self, inputs: Tensors) -> list[int]:
        """Inputs that have a gradient."""
        return [i for i, x in enumerate(inputs)
                if differentiable(x) and self.bound.differentiable(self.names[i])]  # fmt: skip

    def backward(self, inputs: Tensors, outputs: Tensors, upstreams: list) -> list:
        wanted = self.wanted(inputs)
        if not wanted:
            return [None] * len(inputs)
        present = [u is not None for u in upstreams]
        arguments = graft.saved_arguments(inputs, outputs, upstreams)

        def first(*flat):
            return self._checked(*_split(flat, len(inputs), present), wanted)

        def second(i: int) -> Rule:
            return SecondOrder(self.bound.op, lambda *flat: [first(*flat)[i]]).rule

        gradients = dict(zip(wanted, graft.apply_apart(first, second, arguments), strict=True))
        return [gradients.get(i) for i in range(len(inputs))]

    def to_save(self, inputs: Tensors, values: Tensors) -> Any:
        """The vjp as a function for a SavedModel, or None where it cannot be one.

        Tracing it with the forward also finds what is wrong with it that early.
        """
        if tf.executing_eagerly():
            return None
        present = [differentiable(y) for y in values]
        upstreams = [y for y in values if differentiable(y)]
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in (*inputs, *values, *upstreams)]

        def run(*flat):
            x, y, dy = _split(flat, len(inputs), present)
            wanted = self.wanted(x)
            gradients = dict(zip(wanted, self._checked(x, y, dy, wanted), strict=True))
            return [gradients.get(i, tf.zeros_like(t)) for i, t in enumerate(x)
                    if differentiable(t)]  # fmt: skip

        try:
            with private.recording():
                concrete = tf.function(run, autograph=False).get_concrete_function(*specs)
        except OpgraftError:
            raise
        except Exception:  # it leaves TensorFlow, and fails, or not, where a gradient is asked for
            return None
        floats = any(differentiable(x) for x in inputs)
        python = leaves_tensorflow(concrete.graph, (*_OPAQUE, "EagerPyFunc"))
        whole = not concrete.captured_inputs and not python
        return concrete if floats and whole else None

    def _checked(self, inputs: Tensors, outputs: Tensors, upstreams: list, wanted) -> Tensors:
        """The gradients of the inputs in `wanted`."""
        op = self.bound.op
        present = [u is not None for u in upstreams]
        arguments = graft.saved_arguments(inputs, outputs, upstreams)
        with Surroundings(f"the vjp of {op}", map(tf.identity, arguments)) as surroundings:
            x, *rest = _split(surroundings.tensors, len(inputs), present)
            packed = [tf.nest.pack_sequence_as(self._structure, values) for values in rest]
            returned = self._listed(self.bound.gradients(x, *packed))
            given = [self._tensor(*entry) for entry in zip(self.names, returned, strict=True)]
            surroundings.refuse_captured([g for g in given if g is not None])
        checked = [
            check_gradient(op, name, own, gradient, i in wanted)
            for i, (name, own, gradient) in enumerate(zip(self.names, inputs, given, strict=True))
        ]
        return [gradient for gradient in checked if gradient is not None]

    def _tensor(self, name: str, gradient: Any) -> tf.Tensor | None:
        try:
            return None if gradient is None else tf.convert_to_tensor(gradient)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"the vjp of {self.bound.op} returned {gradient!r} for {name}, which is no tensor "
                f"({error})"
            ) from None

    def _listed(self, returned: Any) -> list:
        """What the vjp returned as one entry per input."""
        if not isinstance(returned, list | tuple):
            returned = [returned]
        if len(returned) != len(self.names) or isinstance(returned[0], dict):
            count = f"{len(returned)} gradient{'s' if len(returned) != 1 else ''}"
            if len(returned) == 1 and (returned[0] is None or isinstance(returned[0], dict)):
                count = "None" if returned[0] is None else "a dict"
            raise ArgumentError(
                f"the vjp of {self.bound.op} returned {count}; it must return one for each of the "
                f"{len(self.names)} inputs: {', '.join(self.names)}"
            )
        return list(returned)


def _split(flat, inputs: int, present: list[bool]):
    """(inputs, outputs, upstreams) of `graft.saved_arguments`."""
    outputs = flat[inputs : inputs + len(present)]
    rest = iter(flat[inputs + len(present) :])
    return list(flat[:inputs]), list(outputs), [next(rest) if p else None for p in present]


def check_gradient(op, name: str, x: tf.Tensor, gradient: Any, wanted: bool):
    """The gradient of input `name` as a tensor, or None where there must be none."""
    said = f"the vjp of {op} returned"
    if not wanted:
        if gradient is None:
            return None
        why = "has no gradient" if not differentiable(x) else "is declared non-differentiable"
        raise ArgumentError(
            f"{said} a gradient for {name}, which {why} ({x.dtype.name}). Return None for it"
        )
    if gradient is None:
        raise ArgumentError(
            f"{said} None for {name}, which would then never be trained. Return a gradient of the "
            f"shape {_shape(x)}, or declare it: non_differentiable=('{name}',)"
        )
    if gradient.dtype != x.dtype:
        raise DtypeError(
            f"{said} a gradient of dtype {gradient.dtype.name} for {name}, which is "
            f"{x.dtype.name}. Cast it"
        )
    gradient = _check_shape(said, name, x, gradient)
    return _check_finite(op, name, gradient) if op.check_finite else gradient


def _check_finite(op, name: str, gradient: tf.Tensor) -> tf.Tensor:
    if private.inside_xla():
        raise UnsupportedError(
            f"{op} has check_finite=True, and XLA leaves such checks out. Ask for "
            "jit_compile=False: in model.compile(...), or in the tf.function around it"
        )
    text = f"opgraft: the vjp of {op} returned a gradient for {name} that is not finite"
    checked = tf.debugging.check_numerics(tf.abs(gradient), text)  # abs: complex has no check
    with tf.control_dependencies([checked]):
        return tf.identity(gradient)


def _shape(tensor: tf.Tensor) -> str:
    return str(tuple(tensor.shape)) if tensor.shape.rank is not None else "of the input"


def _check_shape(said: str, name: str, x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    text = (
        f"{said} a gradient of another shape than {name}. It must have exactly that shape: one "
        "that broadcasts would be trained with, and be wrong"
    )
    if not gradient.shape.is_compatible_with(x.shape):
        raise ArgumentError(f"{text} ({_shape(gradient)} for {_shape(x)})")
    if gradient.shape.is_fully_defined() and x.shape.is_fully_defined():
        return gradient
    if private.inside_xla():  # it leaves assertions out; a sum of both must not broadcast
        with tf.name_scope("opgraft_the_gradient_has_another_shape_than_its_input"):
            return tf.add_n([gradient, tf.zeros_like(x)])
    same = tf.debugging.assert_equal(
        tf.shape(gradient), tf.shape(x), message=f"opgraft: {text}", summarize=8
    )
    with tf.control_dependencies([same]):
        gradient = tf.identity(gradient)
    gradient.set_shape(x.shape)
    return gradient


# ---- second order ------------------------------------------------------------------------

# Operations that leave TensorFlow: their gradient is None, in silence.
_OPAQUE = ("PyFunc", "PyFuncStateless")


def leaves_tensorflow(graph, through: tuple[str, ...] = _OPAQUE) -> str:
    """The type of an operation through which the graph's outputs leave TensorFlow, or ""."""
    inside = (n.op for f in graph.as_graph_def().library.function for n in f.node_def)
    kinds = (*(op.type for op in _ancestors(graph.outputs)), *inside)
    return next((kind for kind in kinds if kind in through), "")


class SecondOrder:
    """The gradient of a vjp: through its operations, or an error where there is none."""

    def __init__(self, op, function) -> None:
        self._op, self._function = op, function
        self.rule = Rule(f"the gradient of {op}", self.backward)

    def backward(self, inputs: Tensors, outputs: Tensors, upstreams: list) -> list:
        self._refuse_opaque(inputs)
        floats = [i for i, x in enumerate(inputs) if differentiable(x)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([inputs[i] for i in floats])
            gradients = self._function(*inputs)
        found = tape.gradient(
            gradients, [inputs[i] for i in floats], upstreams,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )  # fmt: skip
        by_index = dict(zip(floats, found, strict=True))
        return [by_index.get(i) for i in range(len(inputs))]

    def _refuse_opaque(self, inputs: Tensors) -> None:
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
        try:
            graph = tf.function(self._function, autograph=False).get_concrete_function(*specs).graph
        except OpgraftError:
            raise
        except Exception as error:
            raise UnsupportedError(self._refusal(f"it leaves TensorFlow ({error})")) from error
        if kind := leaves_tensorflow(graph):
            raise UnsupportedError(self._refusal(f"it goes through NumPy ({kind})"))

    def _refusal(self, why: str) -> str:
        return (
            f"a second derivative was asked for, and the vjp of {self._op} cannot be "
            f"differentiated: {why}. Write the vjp in TensorFlow or keras.ops operations"
        )


def _ancestors(tensors: Tensors) -> set:
    """The operations that these tensors of a graph depend on."""
    found: set = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
    return found


# ---- what a function may not capture ------------------------------------------------------


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable | keras.Variable)


def refuse_captured_values(function, *, defaults: bool = False) -> None:
    """Raise for tensors and trainable variables in closures and globals, and in defaults."""
    found = [*functions.captured(function, arguments=defaults),
             *(functions.defaults(function) if defaults else ())]  # fmt: skip
    for name, value in found:
        tensor = isinstance(value, tf.Tensor | keras.KerasTensor)
        if (tensor or (_is_variable(value) and value.trainable)) and _is_float(value):
            raise ArgumentError(_captures(functions.describe(function), f"'{name}'", value))


def _is_float(value: Any) -> bool:
    return keras.backend.standardize_dtype(value.dtype).startswith(("float", "bfloat", "complex"))


def _captures(who: str, name: str, value: Any) -> str:
    kind = "variable" if _is_variable(value) else "tensor"
    constant = "" if kind == "variable" else " A constant can be a NumPy array"
    return (
        f"{who} captures the {kind} {name} from its surroundings, through which no gradient would "
        f"flow. Make it an argument.{constant}"
    )


class Surroundings:
    """While it is open, a function runs that may use these tensors and no others.

    Closures and globals are looked at by name; this sees what comes another way, such
    as `self.kernel`: trainable variables that are read, and, in a graph, tensors of it.
    """

    def __init__(self, who: str, tensors: Iterable[tf.Tensor]) -> None:
        self._who = who
        self.tensors = list(tensors)
        self._allowed = {id(tensor) for tensor in self.tensors}
        self._tape = tf.GradientTape()
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._before = len(self._graph.get_operations()) if self._graph else 0
        self._differentiated = private.is_recorded(self.tensors)

    def __enter__(self):
        self._tape.__enter__()
        return self

    def __exit__(self, *error):
        self._tape.__exit__(*error)

    def refuse_captured(self, results: Tensors) -> None:
        """Raise if the results depend on anything else."""
        for variable in filter(_is_float, self._tape.watched_variables()):
            raise ArgumentError(_captures(self._who, f"'{variable.name}'", variable))
        if self._graph is None:
            if not self._differentiated and private.is_recorded(results):
                raise ArgumentError(_captures(self._who, "that a tape watches", results[0]))
            return
        new = set(self._graph.get_operations()[self._before :])
        reached, waiting = set(), [t for t in results if id(t) not in self._allowed]
        while waiting:
            tensor = waiting.pop()
            operation = tensor.op
            if operation in new and operation.type != "Placeholder":
                if operation not in reached:
                    reached.add(operation)
                    waiting += [t for t in operation.inputs if id(t) not in self._allowed]
            elif differentiable(tensor) and operation.type != "Const":
                raise ArgumentError(_captures(self._who, f"'{tensor.name}'", tensor))
