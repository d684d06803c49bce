"""What the quantizers of a layer remember, as weights that the layer owns."""

from collections.abc import Sequence
from typing import Any

import keras

from opgraft.quantizers import Quantizer, State

States = tuple[tuple[Any, ...], tuple[Any, ...]]  # of the input's quantizer and of the kernel's


class Remembered(keras.layers.Layer):
    """The states that two quantizers declare, for each contraction of a layer.

    A sublayer, so that Keras saves, shows, freezes and distributes them with the layer. Its
    weights are named by contraction, operand and state, such as `pointwise_input_limit`.

    Args:
        quantizers: of the input and of the kernel.
        contractions: their names; "" for the only one.
    """

    def __init__(
        self, quantizers: tuple[Quantizer, Quantizer], contractions: Sequence[str], **keywords: Any
    ) -> None:
        super().__init__(**keywords)
        self.quantizers = quantizers
        self._owned = {
            contraction: tuple(
                tuple(self._own(state, contraction, operand) for state in q.states)
                for operand, q in zip(("input", "kernel"), quantizers, strict=True)
            )
            for contraction in contractions
        }
        self.built = True

    def _own(self, state: State, contraction: str, operand: str) -> Any:
        return self.add_weight(
            name="_".join(filter(None, (contraction, operand, state.name))),
            shape=state.shape,
            initializer=keras.initializers.Constant(state.initial),
            trainable=state.trainable,
            autocast=False,  # half the bits are no place for an average
            aggregation="mean",
        )

    def states(self, contraction: str) -> States:
        """Their values, as operations take them."""
        first, second = (
            tuple(map(keras.ops.convert_to_tensor, part)) for part in self._owned[contraction]
        )
        return first, second

    def see(self, contraction: str, *operands: Any) -> None:
        """Change what no optimizer trains, after operands of a step of training."""
        before, owned = self.states(contraction), self._owned[contraction]
        for i, quantizer in enumerate(self.quantizers):
            after = quantizer.next_states(before[i], operands[i])
            for state, weight, value in zip(quantizer.states, owned[i], after, strict=True):
                if not state.trainable:
                    weight.assign(value)
