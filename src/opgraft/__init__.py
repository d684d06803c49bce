"""Opgraft: swap the forward, keep the gradient.

Train and evaluate Keras networks whose multiply-accumulate is yours, while the
gradient stays the framework's own.
"""

from opgraft import (
    backends,
    calibration,
    environment,
    errors,
    gradients,
    layers,
    multipliers,
    native,
    products,
    quantizers,
    testing,
)
from opgraft.approximating import approximate
from opgraft.arithmetic import Arithmetic, c_function, exact, python_function
from opgraft.calibration import calibrate
from opgraft.config import show_config, version
from opgraft.custom_op import custom_op
from opgraft.multipliers import FloatMultiplier, Multiplier
from opgraft.ops import conv1d, conv2d, depthwise_conv2d, einsum_dense, matmul
from opgraft.products import accumulators
from opgraft.surgery import restore, swap
from opgraft.verification import verify

environment.check()
# Load the op types now: a saved model that uses them can then be read by
# tf.saved_model.load and keras.models.load_model.
backends.backend()

__version__ = version()

__all__ = [
    "Arithmetic", "FloatMultiplier", "Multiplier", "accumulators", "approximate", "c_function",
    "calibrate", "calibration", "conv1d", "conv2d", "custom_op", "depthwise_conv2d",
    "einsum_dense", "errors", "exact", "gradients", "layers", "matmul", "multipliers", "native",
    "products", "python_function", "quantizers", "restore", "show_config", "swap", "testing",
    "verify", "version",
]  # fmt: skip
