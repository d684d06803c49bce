"""Arrays as text, for what is saved."""

import base64
import zlib
from collections.abc import Sequence

import numpy as np


def packed(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()


def unpacked(text: str, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Raises ValueError or TypeError for what `packed` did not write."""
    try:
        data = zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return np.frombuffer(data, dtype).reshape(shape)
