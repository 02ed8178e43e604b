"""The size limits of a runner's batches: the dims of the largest batch, and the check of a batch against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..bundle.manifest import DRAFT, VISION, Description, Manifest
from ..ir.pages import DRAFT_PAGES, KEPT, KEPT_PAGES, SOURCE_PAGES
from .batch import NO_PATCHES
from .errors import RequestError
from .page_groups import PageGroup, group_windows, pages_of_sequence
from .runner import Limits


def complete_limits(manifest: Description, limits: Limits) -> Limits:
    """The limits with numbers of pages and of slots of states, and without adapters and pages of heads if the bundle
    has none. A batch holds at least `tokens_at_once`.
    """
    takes_adapters = isinstance(manifest, Manifest) and manifest.lora is not None
    tokens = max(limits.tokens, tokens_at_once(manifest))
    pages, windows = limits.pages or manifest.pages_for(manifest.context), group_windows(manifest)
    window_pages = 0
    if len(windows) > 1:
        one = pages_of_sequence(windows[1], manifest.context, manifest.page_size, tokens)
        # No sequence holds more pages of the second group than of the first one.
        window_pages = min(pages, limits.window_pages or limits.sequences * one)
    adapters = limits.adapters if takes_adapters else 0
    states = (limits.states or limits.sequences) if manifest.keeps_states else 0
    draft_pages = limits.draft_pages if DRAFT in manifest.plan_names else 0
    tile = 0 if manifest.spec.vision is None else manifest.spec.vision.tile_patches
    patches = tile if limits.patches is None else limits.patches and max(limits.patches, tile)
    return replace(
        limits,
        tokens=tokens,
        pages=pages,
        adapters=adapters,
        window_pages=window_pages,
        states=states,
        draft_pages=draft_pages,
        patches=patches if VISION in manifest.plan_names else 0,
    )


def tokens_at_once(manifest: Description) -> int:
    """The most tokens that a model computes in one batch: without pages, those of a text as long as the context; those
    of a window of sound, or of a sound whose tower reads it whole; and those of a picture that is seen both ways.
    """
    audio, hearing, vision = manifest.spec.audio, manifest.spec.hearing, manifest.spec.vision
    return max(
        0 if manifest.paged else manifest.context,
        0 if audio is None else audio.positions,
        0 if hearing is None or not hearing.whole else hearing.sound_rows,
        0 if vision is None or vision.both_ways == "none" else vision.tile_patches // vision.block**2,
    )


def page_groups(manifest: Description, limits: Limits) -> tuple[PageGroup, ...]:
    """The page groups of a runner."""
    limits = complete_limits(manifest, limits)
    pages = (limits.pages or 0, limits.window_pages or 0)
    return tuple(map(PageGroup, pages, group_windows(manifest)))


def largest_dims(manifest: Description, limits: Limits) -> dict[str, int]:
    """The dims of a runner's largest batch."""
    limits = complete_limits(manifest, limits)
    pages, context_pages = limits.pages or 0, manifest.pages_for(manifest.context)
    audio = manifest.spec.audio
    rows = 0 if audio is None else audio.positions
    # A window is two sequences if it has rows behind it.
    of_windows = 0 if audio is None else limits.windows * (2 if audio.rows_behind else 1)
    source_pages = manifest.pages_for(rows)
    gives_back = any(window is not None for window in group_windows(manifest))
    return {
        "S": limits.tokens,
        "B": max(limits.sequences, of_windows),
        "R": limits.rows,
        "T": max(manifest.context, rows),
        # A sequence lists each page once, and at most the pages of its context, including those that were given back.
        # Each sequence that shares a page lists it.
        "L": limits.sequences * (context_pages if gives_back else min(pages, context_pages)),
        "P": pages,
        "LW": limits.sequences * context_pages,
        "PW": limits.window_pages or 0,
        "N": limits.sequences,
        "M": limits.adapters,
        "Z": limits.states or 0,
        SOURCE_PAGES: limits.windows * source_pages,
        "LS": max(limits.sequences, of_windows) * source_pages,
        DRAFT_PAGES: limits.draft_pages,
        KEPT_PAGES: pages if limits.draft_pages else 0,
        KEPT: limits.tokens if limits.draft_pages else 0,
        "G": limits.tokens if limits.adapters else 0,
        "A": limits.rows,
        "W": limits.rows,
        "DR": limits.rows,
        **patch_dims(manifest, limits.patches or 0, limits.tokens),
    }


def patch_dims(manifest: Description, patches: int, tokens: int) -> Mapping[str, int]:
    """The dims of this many patches of pictures, and of the features that they become, or that take the places of all
    tokens.
    """
    vision = manifest.spec.vision
    if vision is None or not patches:
        return NO_PATCHES
    # Each tile has at least one block, which becomes one feature.
    features = patches // vision.block**2
    changes = patches if vision.frames > 1 else 0
    return {"V": patches, "I": features, "F": max(features, tokens), "C": changes}


def require_within(dims: Mapping[str, int], most: Mapping[str, int]) -> None:
    """Raise RequestError for a batch that exceeds the runner's largest batch."""
    if dims["G"] and not most["G"]:
        raise RequestError("the batch has LoRA adapters, which the runner does not support; compile with --lora-rank")
    for dim, value in dims.items():
        if value > most[dim]:
            raise RequestError(f"the batch has {dim} = {value}, the runner was made for at most {most[dim]}", dim=dim)
