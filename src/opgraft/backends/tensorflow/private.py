"""What TensorFlow and Keras do not offer in public. Probed; each has a fallback that is said."""

import tensorflow as tf

try:
    from tensorflow.python.framework import ops as _ops
    from tensorflow.python.ops import control_flow_util as _control_flow

    _in_xla = _control_flow.GraphOrParentsInXlaContext
    _default_graph = _ops.get_default_graph
except (ImportError, AttributeError):  # then XLA itself refuses the op, in its own words
    _in_xla = _default_graph = None


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
