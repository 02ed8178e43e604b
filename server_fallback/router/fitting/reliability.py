"""Reliability: compares probabilities with what came true, in figures for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .pairs import Array

BINS = 10
TOP = 8


@dataclass(frozen=True, slots=True)
class SideReport:
    """The quality of one side's probabilities, out of fold. ``right`` is the share of pairs in which the side was
    right.

    ``auc`` is None if all were right or all wrong. ``brier`` is the mean squared error, ``calibration_error`` the
    expected calibration error in 10 bins of equal width (Naeini et al. 2015). ``top`` are the largest weights with the
    names of their features.
    """

    right: float
    auc: float | None
    brier: float
    calibration_error: float
    top: tuple[tuple[str, float], ...]


def report(weights: Mapping[str, float], chances: Array, right: Array) -> SideReport:
    """``weights`` by the names of their features; chances, right (n,)."""
    return SideReport(
        right=float(right.mean()),
        auc=area_under_curve(chances, right),
        brier=float(np.mean((chances - right) ** 2)),
        calibration_error=calibration_error(chances, right),
        top=tuple(sorted(weights.items(), key=lambda weight: -abs(weight[1]))[:TOP]),
    )


def area_under_curve(scores: Array, right: Array) -> float | None:
    """The probability that a right answer has a higher score than a wrong one; equal scores count half (Hanley & McNeil
    1982).
    """
    rights_count = float(right.sum())
    wrongs_count = len(right) - rights_count
    if rights_count == 0 or wrongs_count == 0:
        return None
    values, inverse = np.unique(scores, return_inverse=True)
    hits = np.bincount(inverse, weights=right, minlength=len(values))
    misses = np.bincount(inverse, weights=1 - right, minlength=len(values))
    below = np.cumsum(misses) - misses
    return float(np.sum(hits * (below + misses / 2)) / (rights_count * wrongs_count))


def calibration_error(chances: Array, right: Array) -> float:
    bins = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, weights=chances - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(right))
