"""Pairs: the answers of both sides to one prompt, and whether they were right.

They are the router's training data, one JSON object per line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator

from nearfar.compiler.runtime.errors import RequestError

from ..decision.predictor import feature_names
from ..decision.situation import NearSignals
from .prompts import JsonLine

Array = npt.NDArray[np.float64]


class FarAnswer(JsonLine):
    """``right`` is null until somebody judges the answer.

    ``seconds`` is from the request to the end of the answer, while other requests ran too.
    """

    answer: str
    right: bool | None = None
    seconds: float


def known_signals(signals: NearSignals) -> NearSignals:
    unknown = next((name for name in signals if name not in feature_names()["signals"]), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} is not a signal; the signals are {', '.join(feature_names()['signals'])}")
    return signals


class NearAnswer(FarAnswer):
    signals: Annotated[NearSignals, AfterValidator(known_signals)] | None = None


class Pair(JsonLine):
    """``task`` and ``group`` are those of the prompt; null if it has none. ``embedding`` is its vector, if a fit reads
    it; logs do not have it.
    """

    prompt: str
    task: str | None = None
    group: str | None = None
    near: NearAnswer
    far: FarAnswer
    embedding: tuple[float, ...] | None = None


def read_pairs(path: Path) -> list[Pair]:
    """Read judged pairs.

    Raises RequestError for a line that cannot be read, for a file without pairs, and for answers that were not judged.
    """
    pairs = Pair.read(path)
    if not pairs:
        raise RequestError(f"{path}: has no pairs; create some with 'nearfar router log'")
    for number, pair in enumerate(pairs, 1):
        for side, answer in (("near", pair.near), ("far", pair.far)):
            if answer.right is None:
                raise RequestError(
                    f"{path}: pair {number}: {side}.right is null; log prompts that have 'expected', or let a judge "
                    "write true or false"
                )
    return pairs


def rights(pairs: Sequence[Pair]) -> tuple[Array, Array]:
    """Whether near and far were right: (n,) each, 0 or 1."""
    near, far = (np.array([getattr(pair, side).right for pair in pairs], np.float64) for side in ("near", "far"))
    return near, far
