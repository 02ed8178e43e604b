"""PlacedFeatures: features of a picture or a sound at their place in a prompt, and what a chunk of the prompt has of
them: its part, and the positions by which its tokens rotate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from .batch import FloatArray, IntArray, on_all_axes


class PlacedFeatures(NamedTuple):
    """The features (n, E) of a picture, of a tile of one, or of a sound, the position of the first token that they
    replace, and how many of them are side by side; 0 for a sound.
    """

    first: int
    features: FloatArray
    columns: int

    @property
    def is_sound(self) -> bool:
        return self.columns == 0

    @property
    def grid(self) -> tuple[int, int, int]:
        """As `rope_positions_between` reads it."""
        return self.first, len(self.features), self.columns


def features_between(
    placed: Iterable[tuple[int, FloatArray]], start: int, stop: int
) -> tuple[tuple[int, FloatArray], ...]:
    """The part of a prompt's features that a chunk of its tokens [start, stop) has, with their offsets in the chunk.
    ``placed``: the features of each picture, and the position of its first token.
    """
    found = []
    for position, features in placed:
        first, last = max(start, position), min(stop, position + len(features))
        if first < last:
            found.append((first - start, features[first - position : last - position]))
    return tuple(found)


def rope_positions_between(pictures: Iterable[tuple[int, int, int]], start: int, stop: int) -> IntArray:
    """The positions (stop - start, 3) in time, rows and columns by which tokens [start, stop) of a prompt rotate, in
    models with M-RoPE. ``pictures``: the position of the first token of each, in order, its tokens, and how many are
    side by side, 0 for all of them.

    A picture is at one time; its rows and columns count from there. What follows begins at one more than the largest
    position, so it is nearer than its place in the sequence. Bai et al. 2025 (Qwen3-VL). Adjacent pictures follow each
    other like others; transformers refuses them.
    """
    tokens, saved = np.arange(start, stop, dtype=np.int32), 0
    found = on_all_axes(tokens)
    for first, length, columns in pictures:
        if first >= stop:
            break
        end, columns = first + length, columns or length
        if end > start:
            inside = (tokens >= first) & (tokens < end)
            index = tokens[inside] - first
            found[inside] = first - saved + np.stack([np.zeros_like(index), index // columns, index % columns], -1)
        saved += length - max(length // columns, columns)
        # Those of further pictures are overwritten.
        found[max(end - start, 0) :] = (tokens[max(end - start, 0) :] - saved)[:, None]
    return found
