"""A C function as the attributes of an operation."""

import functools
import os

from opgraft.products import CSymbol


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
