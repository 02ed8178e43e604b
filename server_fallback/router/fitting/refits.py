"""Refits: how much a policy's scores depend on the pairs that it was fitted on.

Each refit fits the policy's predictor again, to pairs drawn with replacement from its own. The scores that these
predictors give to other prompts differ by the uncertainty of the fit (Efron 1979).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nearfar.compiler.runtime.errors import RequestError

from ..decision.predictor import Predictor, feature_names
from .design import make_design, make_folds
from .fit import calibrated
from .pairs import Array, Pair, rights
from .penalties import STEPS, choose_penalties
from .table import read_table

SEED = 2025


def steps(count: int) -> int:
    """How often `scores_of_refits` calls ``advance``."""
    return STEPS + count


def scores_of_refits(
    pairs: Sequence[Pair],
    predictor: Predictor,
    prompts: Sequence[Pair],
    count: int,
    advance: Callable[[], None] = lambda: None,
) -> Array:
    """The gains (count, n) that refits to ``pairs`` expect of ``prompts`` (n).

    The penalties are those of a fit to all pairs, and the calibration is the predictor's. A refit chooses its terms
    again; a pair that is drawn several times is still one group. Raises RequestError if the predictor was fitted on
    another number of pairs.
    """
    if predictor.fitted is not None and predictor.fitted.pairs != len(pairs):
        raise RequestError(
            f"the policy was fitted on {predictor.fitted.pairs:,} pairs, but these are {len(pairs):,}; give the pairs "
            "that it was fitted on"
        )
    read = {
        "signals": not set(feature_names()["signals"]).isdisjoint(predictor.features),
        "embedding": predictor.embedding is not None,
    }
    table, asked = read_table(pairs, **read), read_table(prompts, **read)
    both = rights(pairs)
    penalties = choose_penalties(make_folds(table), both, table.groups, advance).penalties
    calibration = (predictor.calibration.near, predictor.calibration.far)
    rng = np.random.default_rng(SEED)
    scores = np.zeros((count, len(prompts)))
    for refit in range(count):
        drawn = rng.integers(len(pairs), size=len(pairs))
        drawn_table = table.take(drawn)
        drawn_design = make_design(drawn_table)
        sides = penalties.fit(drawn_design.rows(drawn_table), [right[drawn] for right in both])
        asked_rows = penalties.read(drawn_design.rows(asked))
        near, far = (calibrated(side.logits(asked_rows), platt) for side, platt in zip(sides, calibration, strict=True))
        scores[refit] = far - near
        advance()
    return scores
