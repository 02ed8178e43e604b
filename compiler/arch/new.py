"""The model_type that GTE's own code writes; see `gte.py`."""

from __future__ import annotations

from .gte import OTHER_HEADS, PREFIX, encode, read_config

__all__ = ["OTHER_HEADS", "PREFIX", "encode", "read_config"]
