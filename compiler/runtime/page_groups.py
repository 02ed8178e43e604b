"""Page groups: the layers that share page tables, and the pools of their pages.

Layers with a window need only the pages within the largest of their windows. Pages behind it can be given back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..bundle.entries import ITEM_BYTES, BufferEntry
from ..bundle.manifest import GENERATE, Description, Manifest
from ..ir.expr import evaluate
from ..ir.pages import PAGE_DIMS, STATES, WINDOW_PAGES
from ..ir.plan import Buffer


class PageGroup(NamedTuple):
    """A pool of ``pages``. ``window``: the number of tokens that a token sees in these layers, itself included; None
    for all tokens.
    """

    pages: int
    window: int | None = None


def group_windows(manifest: Description) -> tuple[int | None, ...]:
    """The window of each page group. Nothing is given back while vectors and scores are computed, so their bundles have
    no window.
    """
    context = manifest.context
    if not isinstance(manifest, Manifest) or not manifest.paged or GENERATE not in manifest.plans:
        return (None,)
    has_two = any(state.shape[0] == WINDOW_PAGES for state in manifest.states.values())
    return windows_of_groups(manifest.spec.windows, context, has_two=has_two)


def windows_of_groups(
    windows_of_layers: Sequence[int | None], context: int, *, has_two: bool
) -> tuple[int | None, ...]:
    """The window of each page group of a model that generates text."""
    windows = [window for window in windows_of_layers if window is not None and window < context]
    is_full = has_two or not windows or len(windows) < len(windows_of_layers)
    first = None if is_full else max(windows)
    return (first, max(windows)) if has_two else (first,)


def pages_of_sequence(window: int | None, context: int, page_size: int, max_tokens: int) -> int:
    """The most pages that one sequence holds in a group: those of a full context, or those of the window, of the new
    tokens of a step, and of the partly filled pages at both ends.
    """
    full = -(-context // page_size)
    return full if window is None else min(full, -(-window // page_size) - (-max_tokens // page_size) + 2)


def dead_pages(window: int | None, position: int, page_size: int) -> int:
    """The number of pages at the start of a sequence that neither this position nor later ones read."""
    return 0 if window is None else max(0, (position - window + 1) // page_size)


def live_pages(windows: Sequence[int | None], tokens: int, page_size: int) -> list[range]:
    """The pages of each page group that tokens after the first ``tokens`` read, which fill pages."""
    return [range(dead_pages(window, tokens, page_size), tokens // page_size) for window in windows]


def pages_bytes(states: Mapping[str, BufferEntry | Buffer], pages: Sequence[range], activation: str) -> int:
    """The bytes of these pages of each page group, and of one slot of recurrent states."""
    counts = {**dict(zip(PAGE_DIMS, map(len, pages), strict=False)), STATES: 1}
    return sum(
        math.prod(evaluate(size, counts) for size in state.shape)
        * ITEM_BYTES[activation if state.dtype == "activation" else state.dtype]
        for state in states.values()
        if state.shape[0] in counts
    )


def longest_sequence(groups: Sequence[PageGroup], context: int, page_size: int, max_tokens: int) -> int:
    """The most tokens that one sequence may have, at most ``context``: fewer if the pools do not hold them."""
    enough = all(group.pages >= pages_of_sequence(group.window, context, page_size, max_tokens) for group in groups)
    return context if enough else min(context, *(group.pages * page_size for group in groups))


def rings(groups: Sequence[PageGroup], count: int) -> list[list[int]]:
    """The first ``count`` entries of each page table of the only sequence on a device. Pages that lie behind the window
    are used again.
    """
    return [[index % group.pages for index in range(count)] for group in groups]
