"""A C function, and a geometry, as the attributes of an operation."""

import functools
import os

from opgraft.products import CSymbol
from opgraft.spec import Conv2D


@functools.lru_cache(maxsize=4096)
def attributes(symbol: CSymbol) -> dict:
    """What an operation must carry to find and call the function; not to be changed."""
    return {
        "library": os.fsencode(symbol.library),
        "library_hash": symbol.hash,
        "binary": symbol.binary,
        "symbol": symbol.symbol,
        "plan": symbol.plan,
        "prototype": symbol.prototype,
        "address": symbol.address,
        "thread_safe": symbol.thread_safe,
    }


def geometry(c: Conv2D) -> dict:
    """The attributes of an operation that say how a convolution is laid out."""
    return {
        "strides": c.strides,
        "padding": c.padding if isinstance(c.padding, str) else "EXPLICIT",
        "explicit_paddings": [*c.explicit_padding[0], *c.explicit_padding[1]],
        "dilations": c.dilations,
        "groups": c.groups,
        "data_format": "NCHW" if c.channels_first else "NHWC",
        "pad_value": repr(c.pad_value),  # text: the attribute type float has only 32 bits
    }
