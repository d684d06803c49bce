"""What TensorFlow and Keras do not offer in public. Probed; each has a fallback that is said."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from opgraft.errors import UnsupportedError

try:
    from tensorflow.python.framework import ops as _ops
    from tensorflow.python.ops import control_flow_util as _control_flow

    _in_xla = _control_flow.GraphOrParentsInXlaContext
    _default_graph = _ops.get_default_graph
except (ImportError, AttributeError):  # then XLA itself refuses the op, in its own words
    _in_xla = _default_graph = None

try:
    from tensorflow.python.eager import record as _record

    _record_operation, _stop_recording = _record.record_operation, _record.stop_recording
    _should_record = _record.should_record_backprop
except (ImportError, AttributeError):
    _record_operation = _stop_recording = _should_record = None

try:
    from tensorflow.python import pywrap_tfe as _tapes

    _is_stopped = _tapes.TFE_Py_TapeSetIsStopped
    _restart, _stop = _tapes.TFE_Py_TapeSetRestartOnThread, _tapes.TFE_Py_TapeSetStopOnThread
except (ImportError, AttributeError):  # then a vjp with a tape inside fails where it is stopped
    _is_stopped = None


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Tapes record inside, though a caller stopped it: tf.recompute_grad runs its forward so."""
    stopped = _is_stopped is not None and _is_stopped()
    if stopped:
        _restart()
    try:
        yield
    finally:
        if stopped:
            _stop()


def inside_xla() -> bool:
    """Whether the code that runs now is being traced for XLA."""
    if _in_xla is None or tf.executing_eagerly():
        return False
    return bool(_in_xla(_default_graph()))


def unneeded_inputs(op) -> frozenset[int]:
    """Inputs of a recorded eager op whose gradients nobody asks for.

    In a graph nothing is said, and nothing is lost: what is not used is pruned.
    """
    return frozenset(getattr(op, "skip_input_indices", None) or ())


def identity_n(tensors, gradient: str, backward):
    """`tf.identity_n` with another gradient, for graphs that XLA compiles.

    Args:
        gradient: the registered name under which a graph finds it.
        backward: the same, as a tape calls it: one upstream per tensor -> one gradient each.

    Raises:
        UnsupportedError: this TensorFlow has no such hook.
    """
    if _record_operation is None:
        raise UnsupportedError(
            f"TensorFlow {tf.__version__} offers no way to give a custom op a gradient under XLA. "
            "Ask for jit_compile=False: in model.compile(...), or in the tf.function around it"
        )
    if "loop_body" in tf.get_current_name_scope().split("/"):  # where pfor traces
        raise UnsupportedError(
            "a custom op inside tf.vectorized_map, or in a Jacobian by it, would lose its gradient "
            "under XLA. Ask for jit_compile=False, or use tf.map_fn, or "
            "tape.jacobian(..., experimental_use_pfor=False)"
        )
    graph = tf.compat.v1.get_default_graph()
    with _stop_recording(), graph.gradient_override_map({"IdentityN": gradient}):
        outputs = tf.identity_n(tensors)
    _record_operation(gradient, outputs, tensors, backward)
    return outputs


def is_recorded(tensors) -> bool:
    """Whether some tape could differentiate one of these tensors; False where that is not known."""
    return _should_record is not None and bool(_should_record(list(tensors)))
