"""Evaluates a router on logged pairs: the quality that each policy reaches with a share of the requests sent far.

Scores determine which prompts are sent far first. The far share then runs from 0 to 1, and the quality from the near
side's to the far side's. The figures are those of RouteLLM (Ong et al. 2024, section 3):

    PGR(c) = (quality with the share c on the far side - near quality) / (far quality - near quality)
             the performance gap recovered
    APGR   = the mean of PGR over all shares from 0 to 1
    CPT(p) = the smallest share at which PGR reaches p

A random router has PGR(c) = c, so an APGR of 0.5. Prompts with equal scores are sent far together in a random order:
between the ends of such a group the quality is on a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from nearfar.compiler.runtime.errors import RequestError

from .pairs import Array

Interval = tuple[float, float]
Counts = npt.NDArray[np.uint16]

RESAMPLES = 1000
BLOCK = 50
SEED = 2024
CPT_LEVELS = (0.5, 0.8)


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a policy's quality by far share, both rising from share 0 to 1; straight lines between them."""

    shares: Array
    qualities: Array

    def quality_at(self, share: float) -> float:
        return float(np.interp(share, self.shares, self.qualities))


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """The figures of one policy, each with its 95 % bootstrap interval, over prompts and the first policy's refits.

    ``ahead``: the first policy's APGR minus this one's. ``quality``: the quality at the far share that the first
    policy's threshold gives.
    """

    curve: Curve
    apgr: float
    apgr_95: Interval
    cpt50: float
    cpt50_95: Interval
    cpt80: float
    cpt80_95: Interval
    quality: float
    ahead: float
    ahead_95: Interval


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``far_share`` is the share that the threshold sends to the far side; ``quality`` is the share of right answers
    then. ``refits``: the number of refits of the first policy in the intervals; 0 if they are over prompts only.
    """

    policies: Mapping[str, PolicyFigures]
    near_quality: float
    far_quality: float
    far_share: float
    quality: float
    prompts: int
    refits: int

    def to_json(self) -> dict[str, object]:
        """All figures without the curves, which are for the plot."""
        figures = asdict(self)
        for worth in figures["policies"].values():
            del worth["curve"]
        return figures


def evaluate(
    near_right: Array,
    far_right: Array,
    scores: Mapping[str, Array],
    threshold: float,
    refits: Array | None = None,
    groups: npt.NDArray[np.int64] | None = None,
) -> Evaluation:
    """near_right, far_right (n,) are 0 or 1; scores (n,) by policy: prompts with higher scores are sent far first.
    ``threshold`` is the first policy's, and ``refits`` (r, n) are the scores of its refits. With ``groups`` (n,), from
    0 up, resamples draw complete groups, so the intervals say what other groups would change.

    Raises RequestError if the far side is not better than the near side.
    """
    near_quality, far_quality = float(near_right.mean()), float(far_right.mean())
    if far_quality <= near_quality:
        raise RequestError(
            f"the far side is right on {far_quality:.1%} of the prompts and the near side on {near_quality:.1%}: "
            "there is no gap to recover, so a router has no use here; use a better far model, or harder prompts"
        )
    gains = far_right - near_right
    leader = next(iter(scores))
    sent = scores[leader] > threshold
    share, count = float(sent.mean()), len(gains)
    weights = resamples(count if groups is None else int(groups.max()) + 1)
    if groups is not None:
        weights = weights[:, groups]
    # A resample without a gap has nothing to recover.
    weights = weights[weights @ gains > 0]
    curves = {name: make_curve(near_quality, gains, score) for name, score in scores.items()}
    resampled = {name: measure(gains, score, weights) for name, score in scores.items()}
    if refits is not None:
        # Each refit is measured on an equal part of the resampled prompts.
        parts = zip(refits, np.array_split(weights, len(refits)), strict=True)
        resampled[leader] = np.hstack([measure(gains, refit, part) for refit, part in parts])
    exact = {name: measure(gains, score, np.ones((1, count)))[:, 0] for name, score in scores.items()}
    policies = {}
    for name in scores:
        apgr, cpt50, cpt80 = (float(value) for value in exact[name])
        apgr_95, cpt50_95, cpt80_95 = (interval(values) for values in resampled[name])
        policies[name] = PolicyFigures(
            curve=curves[name],
            apgr=apgr,
            apgr_95=apgr_95,
            cpt50=cpt50,
            cpt50_95=cpt50_95,
            cpt80=cpt80,
            cpt80_95=cpt80_95,
            quality=curves[name].quality_at(share),
            ahead=float(exact[leader][0]) - apgr,
            ahead_95=interval(resampled[leader][0] - resampled[name][0]),
        )
    return Evaluation(
        policies,
        near_quality,
        far_quality,
        share,
        float(np.where(sent, far_right, near_right).mean()),
        count,
        0 if refits is None else len(refits),
    )


def make_curve(near_quality: float, gains: Array, scores: Array) -> Curve:
    order, ends = far_first(scores)
    count = len(gains)
    shares = np.concatenate([[0.0], ends / count])
    return Curve(shares, near_quality + np.concatenate([[0.0], np.cumsum(gains[order])[ends - 1] / count]))


def resamples(count: int) -> Counts:
    """(RESAMPLES, count): how often each resample draws each of ``count`` prompts or groups."""
    rng, equal = np.random.default_rng(SEED), np.full(count, 1 / count)
    drawn = np.empty((RESAMPLES, count), np.uint16)
    for row in drawn:
        row[:] = rng.multinomial(count, equal)
    return drawn


def measure(gains: Array, scores: Array, weights: Counts | Array) -> Array:
    """APGR, CPT(50 %) and CPT(80 %), (3, b), for b weightings of the prompts. gains, scores (n,), weights (b, n)."""
    order, ends = far_first(scores)
    # A block of weightings at a time, because each is needed as several tables of floats.
    blocks = [weights[start : start + BLOCK] for start in range(0, len(weights), BLOCK)]
    return np.hstack([measure_block(gains[order], block[:, order].astype(np.float64), ends) for block in blocks])


def measure_block(gains: Array, weights: Array, ends: npt.NDArray[np.int64]) -> Array:
    """As `measure`, of gains and weights in the order in which prompts are sent far, in groups with these ends."""
    totals = weights.sum(axis=1, keepdims=True)
    start = np.zeros((len(weights), 1))
    shares = np.hstack([start, np.cumsum(weights, axis=1)[:, ends - 1] / totals])
    recovered = np.cumsum(weights * gains, axis=1)[:, ends - 1]
    recovered = np.hstack([start, recovered / recovered[:, -1:]])
    areas = np.sum(np.diff(shares, axis=1) * (recovered[:, 1:] + recovered[:, :-1]) / 2, axis=1)
    return np.stack([areas, *(first_reaching(shares, recovered, level) for level in CPT_LEVELS)])


def first_reaching(shares: Array, recovered: Array, level: float) -> Array:
    """The smallest share at which each row's line reaches a level that its end has reached; shares, recovered (b, k) ->
    (b,).
    """
    rows = np.arange(len(shares))
    right = np.maximum(np.argmax(recovered >= level - 1e-12, axis=1), 1)
    below, above = recovered[rows, right - 1], recovered[rows, right]
    part = np.clip((level - below) / np.where(above > below, above - below, 1.0), 0.0, 1.0)
    least: Array = shares[rows, right - 1] + part * (shares[rows, right] - shares[rows, right - 1])
    return least


def far_first(scores: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The order (n,) from the highest score down, and the number of prompts up to the end of each group of equal
    scores.
    """
    order = np.argsort(-scores, kind="stable").astype(np.int64)
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True)) + 1
    return order, ends.astype(np.int64)


def interval(values: Sequence[float] | Array) -> Interval:
    """The middle 95 % of resampled values."""
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)
