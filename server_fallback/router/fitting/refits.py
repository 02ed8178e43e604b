"""Refits: how much a policy's scores depend on the pairs that it was fitted on.

Each refit fits the policy's predictor again, to pairs drawn with replacement from its own. The scores that these
predictors give to other prompts differ by the uncertainty of the fit (Efron 1979).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearfar.compiler.errors import RequestError

from ..decision.features import SIGNALS
from ..decision.predictor import Predictor
from .design import make_design, make_folds
from .fit import make_predictor
from .logistic import fit_cross_validated, fit_logistic
from .pairs import Array, Pair, rights
from .scores import gains

SEED = 2025


def scores_of_refits(pairs: Sequence[Pair], predictor: Predictor, prompts: Sequence[Pair], count: int) -> Array:
    """The gains (count, n) that refits to ``pairs`` expect of ``prompts`` (n).

    The penalties are those of a fit to all pairs, and the calibration is the predictor's. A refit chooses its terms
    again. Raises RequestError if the predictor was fitted on another number of pairs.
    """
    if predictor.fitted is not None and predictor.fitted.pairs != len(pairs):
        raise RequestError(
            f"the policy was fitted on {predictor.fitted.pairs:,} pairs, but these are {len(pairs):,}; give the pairs "
            "that it was fitted on"
        )
    embedding = predictor.embedding
    read = {"signals": not set(SIGNALS).isdisjoint(predictor.features), "embedding": embedding is not None}
    design, folds = make_design(pairs, **read), make_folds(pairs, **read)
    rows = design.rows(pairs)
    chosen = [fit_cross_validated(rows, right, folds) for right in rights(pairs)]
    rng = np.random.default_rng(SEED)
    scores = np.zeros((count, len(prompts)))
    for refit in range(count):
        drawn = [pairs[index] for index in rng.integers(len(pairs), size=len(pairs))]
        drawn_design = make_design(drawn, **read)
        drawn_rows = drawn_design.rows(drawn)
        near, far = (
            fit_logistic(drawn_rows, right, side.ridge) for right, side in zip(rights(drawn), chosen, strict=True)
        )
        encoder = None if embedding is None else embedding.model
        drawn_predictor = make_predictor(drawn_design, near, far, predictor.calibration, encoder=encoder)
        scores[refit] = gains(drawn_predictor, prompts)
    return scores
