"""Gradients by a tape: eagerly, and with the function or the whole tape in a graph or under XLA."""

import pytest
import tensorflow as tf

MODES = {
    "eager": (None, None),
    "graph": ("function", False),
    "xla": ("function", True),
    "tape in graph": ("tape", False),
    "tape in xla": ("tape", True),
}
every_mode = pytest.mark.parametrize("mode", list(MODES))
few_modes = pytest.mark.parametrize("mode", ["eager", "tape in graph", "tape in xla"])
without_xla = pytest.mark.parametrize("mode", [mode for mode in MODES if "xla" not in mode])


def gradients(function, inputs, mode="eager", upstream=None):
    """(what the function returns, dL/d(input) of each input), for L = sum(output · upstream)."""
    inside, jit = MODES[mode]
    if inside == "function":
        function = tf.function(function, jit_compile=jit)

    def by_tape(inputs, upstream):
        with tf.GradientTape() as tape:
            for x in inputs:
                if not isinstance(x, tf.Variable):  # which a tape watches by itself
                    tape.watch(x)
            outputs = function(*inputs)
        return outputs, tape.gradient(outputs, inputs, upstream)

    inputs = [x if isinstance(x, tf.Variable) else tf.convert_to_tensor(x) for x in inputs]
    run = tf.function(by_tape, jit_compile=jit) if inside == "tape" else by_tape
    return run(inputs, upstream)
