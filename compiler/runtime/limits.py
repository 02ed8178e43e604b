"""The size limits of a runner's batches: the dims of the largest batch, and the check of a batch against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..bundle.manifest import Description, Manifest
from ..errors import RequestError
from .batch import Limits


def whole_limits(manifest: Description, limits: Limits) -> Limits:
    """The limits with a number of pages, and without adapters if the bundle does not support them."""
    takes_adapters = isinstance(manifest, Manifest) and manifest.lora is not None
    pages = limits.pages or manifest.pages_for(manifest.context)
    return replace(limits, pages=pages, adapters=limits.adapters if takes_adapters else 0)


def largest_dims(manifest: Description, limits: Limits) -> dict[str, int]:
    """The dims of a runner's largest batch."""
    pages = limits.pages or manifest.pages_for(manifest.context)
    return {
        "S": limits.tokens,
        "B": limits.sequences,
        "R": limits.rows,
        "T": manifest.context,
        # A sequence lists each page once, and at most the pages of its context. Each sequence that shares a page lists
        # it.
        "L": limits.sequences * min(pages, manifest.pages_for(manifest.context)),
        "P": pages,
        "N": limits.sequences,
        "M": limits.adapters,
        "G": limits.tokens if limits.adapters else 0,
        "A": limits.rows,
        "W": limits.rows,
    }


def require_within(dims: Mapping[str, int], most: Mapping[str, int]) -> None:
    """Raise RequestError for a batch that exceeds the runner's largest batch."""
    if dims["G"] and not most["G"]:
        raise RequestError(
            "the batch has LoRA adapters, the runner takes none; compile with --target cpu or cuda and --lora-rank"
        )
    for dim, value in dims.items():
        if value > most[dim]:
            raise RequestError(f"the batch has {dim} = {value}, the runner was made for at most {most[dim]}", dim=dim)
