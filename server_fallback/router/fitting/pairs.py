"""Pairs: what both sides answered to one prompt, and whether that was right; the router's training data, one JSON object a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nearfar.compiler.errors import RequestError

from ..decision.situation import NearSignals
from .prompts import JsonLine

Array = npt.NDArray[np.float64]


class FarAnswer(JsonLine):
    """``right`` is null until somebody judges it. ``seconds`` from asking to the end, beside whatever else was asked at once."""

    answer: str
    right: bool | None = None
    seconds: float


class NearAnswer(FarAnswer):
    signals: NearSignals | None = None


class Pair(JsonLine):
    """``task`` names a kind of prompt, for tables; null where it has none."""

    prompt: str
    task: str | None = None
    near: NearAnswer
    far: FarAnswer


def read_pairs(path: Path) -> list[Pair]:
    """Pairs that were judged. Raises RequestError for a line that cannot be read, no line, or one whose answers were not judged."""
    pairs = Pair.read(path)
    if not pairs:
        raise RequestError(f"{path}: has no pair; make some with 'nearfar router log'")
    for number, pair in enumerate(pairs, 1):
        for side, answer in (("near", pair.near), ("far", pair.far)):
            if answer.right is None:
                raise RequestError(
                    f"{path}: pair {number}: {side}.right is null; log prompts that have 'expected', or let a judge write true or false"
                )
    return pairs


def rights(pairs: Sequence[Pair]) -> tuple[Array, Array]:
    """Whether near and far were right, (n,) each of 0 and 1."""
    near, far = (np.array([getattr(pair, side).right for pair in pairs], np.float64) for side in ("near", "far"))
    return near, far
