"""How large a runner's batches may be: the dims of the largest, and the check that a batch is no larger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..bundle.manifest import Description, Manifest
from ..errors import RequestError
from .batch import Limits


def whole_limits(manifest: Description, limits: Limits) -> Limits:
    """The limits with a number of pages, and without adapters if the bundle takes none."""
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
        # A sequence lists a page once, and no more pages than its context fills. Sequences that share a page list it each.
        "L": limits.sequences * min(pages, manifest.pages_for(manifest.context)),
        "P": pages,
        "N": limits.sequences,
        "M": limits.adapters,
        "G": limits.tokens if limits.adapters else 0,
        "A": limits.rows,
        "W": limits.rows,
    }


def require_within(dims: Mapping[str, int], most: Mapping[str, int]) -> None:
    """Raise RequestError for a batch that is larger than a runner was made for."""
    if dims["G"] and not most["G"]:
        raise RequestError(
            "the batch has LoRA adapters, the runner takes none; compile with --target cpu or cuda and --lora-rank"
        )
    for dim, value in dims.items():
        if value > most[dim]:
            raise RequestError(f"the batch has {dim} = {value}, the runner was made for at most {most[dim]}", dim=dim)
