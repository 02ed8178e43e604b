"""Batching: which texts are computed together by a model of embeddings or scores."""

from __future__ import annotations

from typing import Annotated

from nearfar.compiler.options import Count, Flag, options

from ..option_types import Counts, Milliseconds


@options
class Batching:
    """As in Triton's dynamic batcher: a batch begins as soon as the device is free, if it is full or as many texts wait
    as one of the ``preferred_sizes``, and otherwise when the oldest text has waited for ``max_delay_seconds``.
    """

    max_delay_seconds: Annotated[Milliseconds, Flag(("--batch-delay-ms",))] = 0.0
    """how long a text waits for others to share its batch (default: until the device is free)"""
    preferred_sizes: Annotated[Counts, Flag(("--batch-sizes",))] = ()
    """begin a batch without delay once this many texts wait"""
    max_texts: Annotated[Count | None, Flag(("--batch-texts",))] = None
    """the most texts in a batch (default: 64)"""
    max_tokens: Annotated[Count | None, Flag(("--batch-tokens",))] = None
    """the most tokens in a batch (default: 4096)"""
