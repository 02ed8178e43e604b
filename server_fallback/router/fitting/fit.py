"""Fitting: makes a predictor with a threshold, and a report of its quality, from logged pairs.

Each side has one logistic regression of "was it right" on the features of `predictor`. Cross-validation chooses the
penalty. Platt's calibration and the threshold are chosen on scores of pairs that the regression was not fitted on.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import numpy as np

from nearfar.compiler.errors import RequestError

from ..decision.features import SIGNALS, TEXT_FEATURES, FeatureName, bucket_counts, text_features
from ..decision.predictor import Calibration, Fitted, Predictor, Wanted, Weights
from .evaluation import far_first
from .logistic import Array, CrossValidated, fit_cross_validated, fit_platt, sigmoid
from .pairs import Pair, rights
from .reliability import SideReport, report

# On 2,000 pairs of the demo models, out of fold, the AUC of "near is right" was 0.927 with 256, 0.935 with 512 and
# 0.943 with 1024.
BUCKETS = 1024
MIN_PAIRS = 20
MIN_SCALE = 1e-9
WORD = re.compile("[a-z]+")
# Browsers load policies, so numbers are short: this many digits are enough.
DIGITS = 6


@dataclass(frozen=True, slots=True)
class FitResult:
    """``quality`` and ``far_share`` are what the threshold gives on the pairs, out of fold."""

    predictor: Predictor
    threshold: float
    near: SideReport
    far: SideReport
    quality: float
    far_share: float


def fit(pairs: Sequence[Pair], *, wanted: Wanted | None = None, buckets: int = BUCKETS) -> FitResult:
    """``wanted``: the quality to reach with as few far requests as possible, or the share of requests that may be sent
    far. None: far answers whenever it is likelier to be right.

    Raises RequestError for too few pairs, or for a quality that the two sides cannot reach together.
    """
    if len(pairs) < MIN_PAIRS:
        raise RequestError(f"{len(pairs)} pairs are too few to fit on; log at least {MIN_PAIRS}, better 1,000")
    design = make_design(pairs, buckets)
    near_right, far_right = rights(pairs)
    near, far = fit_cross_validated(design.rows, near_right), fit_cross_validated(design.rows, far_right)
    near_platt, far_platt = fit_platt(near.out_of_fold, near_right), fit_platt(far.out_of_fold, far_right)
    near_chance, far_chance = calibrated(near.out_of_fold, near_platt), calibrated(far.out_of_fold, far_platt)
    gains = far_chance - near_chance
    threshold = choose_threshold(gains, near_right, far_right, wanted)
    sent = gains > threshold
    predictor = Predictor(
        version=1,
        features=design.names,
        buckets=buckets,
        mean=short(design.mean),
        scale=short(design.scale),
        near=weights_of(near),
        far=weights_of(far),
        calibration=Calibration(near=short(near_platt), far=short(far_platt)),
        fitted=Fitted(pairs=len(pairs), date=datetime.now(UTC).date().isoformat(), wanted=wanted),
    )
    labels = (*design.names, *bucket_labels(pairs, buckets))
    return FitResult(
        predictor=predictor,
        threshold=threshold,
        near=report(near, near_chance, near_right, labels),
        far=report(far, far_chance, far_right, labels),
        quality=float(np.where(sent, far_right, near_right).mean()),
        far_share=float(sent.mean()),
    )


@dataclass(frozen=True, slots=True)
class Design:
    """``rows`` (n, F + buckets): standardized features, then log1p of the buckets' counts. mean, scale (F,)."""

    rows: Array
    names: tuple[FeatureName, ...]
    mean: Array
    scale: Array


def make_design(pairs: Sequence[Pair], buckets: int) -> Design:
    """A signal that no pair has is not a feature; if some pairs have it, the others count as their mean."""
    signals = [None if pair.near.signals is None else asdict(pair.near.signals) for pair in pairs]
    used = [name for name in SIGNALS if any(each is not None and each[name] is not None for each in signals)]
    names: tuple[FeatureName, ...] = (*TEXT_FEATURES, *used)
    values = np.array(
        [
            [*text_features(pair.prompt).values(), *((each or {}).get(name) for name in used)]
            for pair, each in zip(pairs, signals, strict=True)
        ],
        np.float64,
    )
    mean, scale = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    # A value that is the same in all pairs shows nothing, so any scale will do.
    scale[scale < MIN_SCALE] = 1.0
    counts = np.zeros((len(pairs), buckets))
    for index, pair in enumerate(pairs):
        for bucket, count in bucket_counts(pair.prompt, buckets).items():
            counts[index, bucket] = math.log1p(count)
    return Design(np.hstack([np.nan_to_num((values - mean) / scale, nan=0.0), counts]), names, mean, scale)


def choose_threshold(gains: Array, near_right: Array, far_right: Array, wanted: Wanted | None) -> float:
    """Far answers if its gain is above this threshold; gains (n,) are out of fold."""
    if wanted is None:
        return 0.0
    order, ends = far_first(gains)
    ends = np.concatenate([[0], ends])
    if wanted.far_share is not None:
        chosen = int(ends[ends <= wanted.far_share * len(gains) + 1e-9][-1])
    else:
        assert wanted.quality is not None
        more = np.concatenate([[0.0], np.cumsum((far_right - near_right)[order])])[ends]
        qualities = near_right.mean() + more / len(gains)
        enough = ends[qualities >= wanted.quality - 1e-12]
        if len(enough) == 0:
            raise RequestError(
                f"both sides together reach a quality of at most {qualities.max():.3f} on these pairs, so "
                f"{wanted.quality} is out of reach; lower it, or use a better far model",
                param="min_quality",
            )
        chosen = int(enough[0])
    ranked = gains[order]
    if chosen == 0:
        return 1.0
    # Halfway between the last prompt that is sent far and the first that is not.
    return -1.0 if chosen == len(gains) else float(ranked[chosen - 1] + ranked[chosen]) / 2


def calibrated(logits: Array, platt: tuple[float, float]) -> Array:
    return sigmoid(platt[0] * logits + platt[1])


def bucket_labels(pairs: Sequence[Pair], buckets: int) -> list[str]:
    """Name each bucket, for people, by its most frequent word; other words share the bucket."""
    words = Counter(word for pair in pairs for word in WORD.findall(pair.prompt.lower()))
    labels: dict[int, str] = {}
    for word, _ in words.most_common():
        labels.setdefault(next(iter(bucket_counts(word, buckets)), -1), f'"{word}"')
    return [labels.get(bucket, f"bucket {bucket}") for bucket in range(buckets)]


def weights_of(chosen: CrossValidated) -> Weights:
    return Weights(weights=short(chosen.regression.weights), bias=short([chosen.regression.bias])[0])


def short(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
