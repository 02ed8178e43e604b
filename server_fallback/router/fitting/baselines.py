"""Baselines: what a policy's predictor is compared with. Pairs flow in, scores by each baseline flow out: a higher one goes far earlier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nearfar.compiler.errors import RequestError

from ..decision.policy import Policy
from .logistic import Array
from .pairs import Pair, rights


def all_scores(pairs: Sequence[Pair], policy: Policy) -> Mapping[str, Array]:
    """(n,) by name: "auto", the gain that the policy's predictor expects, first; "random"; "length", the prompt's characters; "confidence",
    how unsure the near model is of the first tokens of its own answer; and "oracle", which knows who was right.

    Raises RequestError for a policy without a predictor.
    """
    predictor = policy.quality.predictor
    if policy.mode != "auto" or predictor is None:
        raise RequestError("the policy decides nothing by quality; give one of 'nearfar router fit': mode auto, with a predictor")
    near_right, far_right = rights(pairs)
    chances = [predictor.rights(pair.prompt, pair.near.signals) for pair in pairs]
    logprobs = np.array([None if pair.near.signals is None else pair.near.signals.first_mean_logprob for pair in pairs], np.float64)
    known = logprobs[~np.isnan(logprobs)]
    return {
        "auto": np.array([chance.far - chance.near for chance in chances]),
        "random": np.zeros(len(pairs)),
        "length": np.array([len(pair.prompt) for pair in pairs], np.float64),
        # One that is not known counts as the mean, as in the predictor.
        "confidence": -np.where(np.isnan(logprobs), known.mean() if len(known) else 0.0, logprobs),
        "oracle": far_right - near_right,
    }
