"""Hashes of values and texts, and values as JSON. Kernels and lists of variants are named by theirs: equal content has
equal names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

# Hexadecimal digits of a hash in a name: enough that a bundle's few hundred kernels never share one.
HASH_DIGITS = 10


def digest(value: Any) -> str:
    """The hash of a value's JSON form."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:HASH_DIGITS]


def text_sha256(text: str) -> str:
    """The SHA-256 of a text in UTF-8, in hexadecimal."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def plain(value: Any) -> Any:
    """A fact as a JSON value. Raises TypeError for a value that JSON cannot hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{value!r} cannot be a fact of a kernel")
