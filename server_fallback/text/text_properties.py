"""Finds the properties of a schema that are strings, because some formats of tool calls write strings without
quotes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text_properties(schema: Any) -> frozenset[str]:
    """The properties whose own schemas allow only strings."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return frozenset()
    return frozenset(name for name, value in properties.items() if is_text(value))


def is_text(schema: Any) -> bool:
    """Whether every value of a schema is a string: by its type, or by its constants if it has no type."""
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema:
        return schema["type"] in ("string", ["string"])
    values = schema["enum"] if "enum" in schema else [schema.get("const")]
    return isinstance(values, list) and len(values) > 0 and all(isinstance(value, str) for value in values)
