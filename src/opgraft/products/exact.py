"""The framework's own operation."""

import dataclasses
from typing import ClassVar

from opgraft.products._base import Product


@dataclasses.dataclass(frozen=True)
class Exact(Product):
    """a · b summed as the framework does it; the reference of all others."""

    type_name: ClassVar[str] = "exact"
    supports_jit: ClassVar[bool] = True
