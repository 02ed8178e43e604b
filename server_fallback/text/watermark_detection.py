"""Find a watermark in a text's tokens: how many are green, and how probable that is without the watermark.

A pair of tokens counts once, as in Fernandez et al. 2023, "Three Bricks to Consolidate Watermarks for Large Language
Models": a text that repeats itself would otherwise look marked, because a pair is green at all of its places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nearfar.compiler.ir.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Detection:
    """``scored`` pairs of tokens count, of which ``green`` have a second token in the first one's list. ``p_value`` is
    the probability of at least that many without the watermark: exact, if lists of different tokens are independent.
    """

    scored: int
    green: int
    share: float

    @property
    def green_share(self) -> float:
        return self.green / self.scored if self.scored else 0.0

    @property
    def z_score(self) -> float:
        """The standard deviations by which there are more green tokens than expected; 0 without a scored token."""
        deviation = math.sqrt(self.scored * self.share * (1 - self.share))
        return (self.green - self.scored * self.share) / deviation if self.scored else 0.0

    @property
    def p_value(self) -> float:
        return binomial_tail(self.green, self.scored, self.share)


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens from ``start`` to ``stop``, without the last. ``p_value`` allows for the number of all windows."""

    start: int
    stop: int
    found: Detection
    p_value: float


def detect(watermark: Watermark, token_ids: Sequence[int]) -> Detection:
    """``token_ids`` are those of the text by the tokenizer of the model that may have written it."""
    pairs = np.array(list(dict.fromkeys(itertools.pairwise(token_ids))), np.int64).reshape(-1, 2)
    green = watermark.are_green(pairs[:, 0], pairs[:, 1])
    return Detection(len(pairs), int(green.sum()), watermark.share)


def windows(watermark: Watermark, token_ids: Sequence[int], size: int) -> Iterator[Window]:
    """Windows of ``size`` tokens, each half a window after the last one, to find a marked part of a longer text. The
    last ends with the text.
    """
    last = max(len(token_ids) - size, 0)
    starts = sorted({*range(0, last, max(size // 2, 1)), last})
    for start in starts:
        found = detect(watermark, token_ids[start : start + size])
        # Bonferroni's correction.
        yield Window(start, min(start + size, len(token_ids)), found, min(1.0, found.p_value * len(starts)))


def binomial_tail(least: int, count: int, share: float) -> float:
    """The probability that at least ``least`` of ``count`` independent events happen, each with probability
    ``share``.
    """
    logs = [
        math.lgamma(count + 1)
        - math.lgamma(number + 1)
        - math.lgamma(count - number + 1)
        + number * math.log(share)
        + (count - number) * math.log1p(-share)
        for number in range(least, count + 1)
    ]
    largest = max(logs)
    return min(1.0, math.exp(largest) * math.fsum(math.exp(each - largest) for each in logs))
