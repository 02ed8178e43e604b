"""Fitting: makes a predictor with a threshold, and a report of its quality, from logged pairs.

Each side has one logistic regression of "was it right" on the design of `design`. Cross-validation, which holds out
groups of prompts, chooses the penalty. Platt's calibration and the threshold are chosen on scores of pairs that the
regression was not fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from nearfar.compiler.runtime.errors import RequestError

from ..decision.predictor import Calibration, Components, Fitted, Predictor, Wanted, Weights
from .design import FOLDS, Design, make_design, make_folds
from .evaluation import far_first
from .logistic import Array, CrossValidated, Logistic, fit_cross_validated, fit_platt, sigmoid
from .pairs import Pair, rights
from .reliability import SideReport, report
from .table import read_table

MIN_PAIRS = 20
# One for each fold of each side.
STEPS = 2 * FOLDS
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


def fit(
    pairs: Sequence[Pair],
    *,
    wanted: Wanted | None = None,
    signals: bool = False,
    encoder: str | None = None,
    advance: Callable[[], None] = lambda: None,
) -> FitResult:
    """``wanted``: the quality to reach with as few far requests as possible, or the share of requests that may be sent
    far. None: far answers whenever it is likelier to be right. ``signals``: near's signals are features too, so near
    begins every answer that the predictor decides. ``encoder`` is the name of the model that made the pairs' vectors,
    whose principal components are then features too. ``advance`` is called `STEPS` times.

    Raises RequestError for too few pairs, for a quality that the two sides cannot reach together, and for signals if no
    pair has any.
    """
    if len(pairs) < MIN_PAIRS:
        raise RequestError(f"{len(pairs)} pairs are too few to fit on; log at least {MIN_PAIRS}, better 1,000")
    if signals and all(pair.near.signals is None for pair in pairs):
        raise RequestError("no pair has near's signals; fit without them, or log a near side that reports them")
    table = read_table(pairs, signals=signals, embedding=encoder is not None)
    design, folds = make_design(table), make_folds(table)
    rows = design.rows(table)
    near_right, far_right = rights(pairs)
    near, far = (fit_cross_validated(rows, right, folds, advance=advance) for right in (near_right, far_right))
    near_platt, far_platt = fit_platt(near.out_of_fold, near_right), fit_platt(far.out_of_fold, far_right)
    near_chance, far_chance = calibrated(near.out_of_fold, near_platt), calibrated(far.out_of_fold, far_platt)
    gains = far_chance - near_chance
    threshold = choose_threshold(gains, near_right, far_right, wanted)
    sent = gains > threshold
    predictor = make_predictor(
        design,
        near.regression,
        far.regression,
        Calibration(near=short(near_platt), far=short(far_platt)),
        Fitted(pairs=len(pairs), date=datetime.now(UTC).date().isoformat(), wanted=wanted),
        encoder,
    )
    return FitResult(
        predictor=predictor,
        threshold=threshold,
        near=side_report(near, near_chance, near_right, design),
        far=side_report(far, far_chance, far_right, design),
        quality=float(np.where(sent, far_right, near_right).mean()),
        far_share=float(sent.mean()),
    )


def make_predictor(
    design: Design,
    near: Logistic,
    far: Logistic,
    calibration: Calibration,
    fitted: Fitted | None = None,
    encoder: str | None = None,
) -> Predictor:
    """``encoder`` is the name of the model whose vectors the design reads, if it reads any."""
    embedding = None
    if design.components is not None:
        assert encoder is not None
        rows = tuple(short(row) for row in design.components.rows)
        embedding = Components(model=encoder, mean=short(design.components.mean), components=rows)
    return Predictor(
        version=2,
        features=design.features,
        terms=design.terms,
        mean=short(design.mean),
        scale=short(design.scale),
        near=weights_of(near),
        far=weights_of(far),
        calibration=calibration,
        embedding=embedding,
        fitted=fitted,
    )


def side_report(chosen: CrossValidated, chances: Array, right: Array, design: Design) -> SideReport:
    return report(chosen, chances, right, design.names)


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


def calibrated(logits: Array, platt: Sequence[float]) -> Array:
    return sigmoid(platt[0] * logits + platt[1])


def weights_of(regression: Logistic) -> Weights:
    return Weights(weights=short(regression.weights), bias=short([regression.bias])[0])


def short(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
