"""The hash by which kernels and lists of variants are named: equal content, equal name."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

# Hexadecimal digits of a hash in a name: enough that a bundle's few hundred kernels never share one.
HASH_DIGITS = 10


def digest(value: Any) -> str:
    """Of a value as JSON has it."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:HASH_DIGITS]
