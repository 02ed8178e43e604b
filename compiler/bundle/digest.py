"""Hashes of values and texts. Kernels and lists of variants are named by theirs: equal content has equal names."""

from __future__ import annotations

import json
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
