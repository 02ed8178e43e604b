"""XLM-RoBERTa: RoBERTa for many languages. Conneau et al. 2019."""

from __future__ import annotations

from .roberta import OTHER_HEADS, PREFIX, encode, read_config

__all__ = ["OTHER_HEADS", "PREFIX", "encode", "read_config"]
