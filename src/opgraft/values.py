"""Values that can be compared, hashed, printed and written down.

Arithmetics, quantizers, products, gradients and contractions are such values:
frozen dataclasses without variables. What is written down is plain JSON with
the class under the key "type"; a subclass is known by its `type_name`.
"""

import dataclasses
import functools
import json
from typing import Any, ClassVar

from opgraft.errors import ArgumentError

_TYPES: dict[str, type["Value"]] = {}


class Value:
    """Base of frozen dataclasses that survive `from_config(to_config(v)) == v`."""

    type_name: ClassVar[str] = ""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.__dict__.get("type_name"):
            _TYPES[cls.type_name] = cls

    def to_config(self) -> dict[str, Any]:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = {field.name: _write(getattr(self, field.name)) for field in fields}
        return {"type": self.type_name, **values}

    @classmethod
    def from_fields(cls, **fields: Any) -> "Value":
        """Make the value from what `to_config` wrote; a hook for checks."""
        return cls(**fields)


def _write(value: Any) -> Any:
    if isinstance(value, Value):
        return value.to_config()
    if isinstance(value, tuple | list):
        return [_write(entry) for entry in value]
    return value


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        return from_config(value)
    if isinstance(value, tuple | list):
        return tuple(_read(entry) for entry in value)
    return value


def from_config(config: dict[str, Any]) -> Any:
    """The value that `to_config` wrote.

    Raises:
        ArgumentError: the type is not known here.
    """
    name = config.get("type")
    if name not in _TYPES:
        raise ArgumentError(
            f"the saved value has the type {name!r}, which is not known. Known: "
            f"{', '.join(sorted(_TYPES))}. Import the module that defines it, or update opgraft"
        )
    fields = {key: _read(entry) for key, entry in config.items() if key != "type"}
    return _TYPES[name].from_fields(**fields)


class _This:
    """A value as itself: two that are equal may be written differently, such as by a name."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _This) and other.value is self.value


def to_json(value: Value) -> str:
    """What `from_json` reads."""
    return _json_of(_This(value))


@functools.lru_cache(maxsize=4096)
def _json_of(this: _This) -> str:
    return json.dumps(this.value.to_config(), sort_keys=True, separators=(",", ":"))


@functools.lru_cache(maxsize=4096)
def from_json(text: str) -> Any:
    return from_config(json.loads(text))
