"""Fitting: makes a predictor with a threshold, and a report of its quality, from logged pairs.

Each side has one logistic regression of "was it right" on the design of `design`. Cross-validation, which holds out
groups of prompts, chooses what they read and their penalties (`penalties`). Platt's calibration and the threshold are
chosen on scores of pairs that the regressions were not fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from nearfar.compiler.runtime.errors import RequestError

from ..decision.predictor import Calibration, Components, Fitted, Predictor, Wanted, Weights
from .design import Block, Design, make_design, make_folds
from .evaluation import far_first
from .logistic import Array, Logistic, fit_platt, sigmoid
from .pairs import Pair, rights
from .penalties import Penalties, choose_penalties
from .reliability import SideReport, report
from .table import read_table

MIN_PAIRS = 20
# Browsers load policies, so numbers are short: this many digits are enough.
DIGITS = 6


@dataclass(frozen=True, slots=True)
class FitResult:
    """``quality`` and ``far_share`` are what the threshold gives on the pairs, out of fold."""

    predictor: Predictor
    penalties: Penalties
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
    which are then inputs too. ``advance`` is called `penalties.STEPS` times.

    Raises RequestError for too few pairs, for a quality that the two sides cannot reach together, and for signals if no
    pair has any.
    """
    if len(pairs) < MIN_PAIRS:
        raise RequestError(f"{len(pairs)} pairs are too few to fit on; log at least {MIN_PAIRS}, better 1,000")
    if signals and all(pair.near.signals is None for pair in pairs):
        raise RequestError("no pair has near's signals; fit without them, or log a near side that reports them")
    table = read_table(pairs, signals=signals, embedding=encoder is not None)
    both = rights(pairs)
    found = choose_penalties(make_folds(table), both, table.groups, advance)
    design = make_design(table)
    sides = found.penalties.fit(design.rows(table), both)
    platts = [fit_platt(logits, right) for logits, right in zip(found.logits, both, strict=True)]
    chances = [calibrated(logits, platt) for logits, platt in zip(found.logits, platts, strict=True)]
    (near_right, far_right), (near_chance, far_chance) = both, chances
    gains = far_chance - near_chance
    threshold = choose_threshold(gains, near_right, far_right, wanted)
    sent = gains > threshold
    predictor = make_predictor(
        design,
        found.penalties,
        sides,
        Calibration(near=short(platts[0]), far=short(platts[1])),
        Fitted(pairs=len(pairs), date=datetime.now(UTC).date().isoformat(), wanted=wanted),
        encoder,
    )
    near, far = (
        report(weights_by_name(design, found.penalties, side), chance, right)
        for side, chance, right in zip(sides, chances, both, strict=True)
    )
    return FitResult(
        predictor=predictor,
        penalties=found.penalties,
        threshold=threshold,
        near=near,
        far=far,
        quality=float(np.where(sent, far_right, near_right).mean()),
        far_share=float(sent.mean()),
    )


def make_predictor(
    design: Design,
    penalties: Penalties,
    sides: Sequence[Logistic],
    calibration: Calibration,
    fitted: Fitted | None = None,
    encoder: str | None = None,
) -> Predictor:
    """``sides`` are the regressions of near and far on the blocks that have ``penalties``. ``encoder`` is the name of
    the model whose vectors the design reads, if it reads any.

    A policy contains no terms and no components that no weight reads. Each side's weights of the vector are one
    component of their own, which only this side reads.
    """
    weights = [weights_by_block(design, penalties, side) for side in sides]
    read = [block for block, _ in penalties.blocks()]
    embedding: Components | None = None
    own: tuple[tuple[float, ...], ...] = ((), ())
    if "vectors" in read:
        assert encoder is not None
        assert design.centre is not None
        rows = tuple(short(side.pop("vectors") / design.centre.scale) for side in weights)
        embedding = Components(model=encoder, mean=short(design.centre.mean), components=rows)
        own = ((1.0, 0.0), (0.0, 1.0))
    near, far = (
        Weights(weights=(*short(np.concatenate(list(blocks.values()))), *reads), bias=short([side.bias])[0])
        for blocks, reads, side in zip(weights, own, sides, strict=True)
    )
    return Predictor(
        version=2,
        features=design.features,
        terms=design.terms if "terms" in read else (),
        mean=short(design.mean),
        scale=short(design.scale),
        near=near,
        far=far,
        calibration=calibration,
        embedding=embedding,
        fitted=fitted,
    )


def weights_by_block(design: Design, penalties: Penalties, side: Logistic) -> dict[Block, Array]:
    sizes: dict[Block, int] = {"features": len(design.features), "terms": len(design.terms)}
    if design.centre is not None:
        sizes["vectors"] = len(design.centre.mean)
    read = [block for block, _ in penalties.blocks()]
    ends = np.cumsum([sizes[block] for block in read])
    return dict(zip(read, np.split(side.weights, ends[:-1]), strict=True))


def weights_by_name(design: Design, penalties: Penalties, side: Logistic) -> dict[str, float]:
    """For people. The length of the weights stands for those of a vector, whose numbers have no names."""
    named = dict[str, float]()
    for block, weights in weights_by_block(design, penalties, side).items():
        names = {"features": design.features, "terms": [f'"{term}"' for term in design.terms]}
        if block == "vectors":
            named["the vector"] = float(np.linalg.norm(weights))
        else:
            named |= dict(zip(names[block], weights.tolist(), strict=True))
    return named


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


def short(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
