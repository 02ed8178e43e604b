"""Scores: the order in which a router or a baseline sends logged prompts far, the highest score first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from nearfar.compiler.runtime.errors import RequestError

from ..decision.policy import Policy
from ..decision.predictor import Predictor, text_inputs
from .pairs import Array, Pair, rights


def all_scores(pairs: Sequence[Pair], policy: Policy) -> Mapping[str, Array]:
    """Score pairs, (n,) by name, with a policy's predictor and with baselines.

    "auto", the gain that the predictor expects, comes first; then "random"; "length", the characters of the prompt;
    "rule", a rule by hand; "confidence", how unsure the near model is of the first tokens of its own answer; "task",
    the mean gain of the prompt's task in these pairs, which knows the task but not the prompt; and "oracle", which
    knows who was right. "task" is left out unless every pair has one. Raises RequestError for a policy without a
    predictor.
    """
    predictor = policy.quality.predictor
    if policy.mode != "auto" or predictor is None:
        raise RequestError(
            "the policy decides nothing by quality; use one from 'nearfar router fit', with mode auto and a predictor"
        )
    near_right, far_right = rights(pairs)
    logprobs = np.array(
        [None if pair.near.signals is None else pair.near.signals.get("first_mean_logprob") for pair in pairs],
        np.float64,
    )
    known = logprobs[~np.isnan(logprobs)]
    scores = {
        "auto": gains(predictor, pairs),
        "random": np.zeros(len(pairs)),
        "length": np.array([len(pair.prompt) for pair in pairs], np.float64),
        "rule": np.array([hand_rule(pair.prompt) for pair in pairs], np.float64),
        # An unknown value counts as the mean, as in the predictor.
        "confidence": -np.where(np.isnan(logprobs), known.mean() if len(known) else 0.0, logprobs),
        "task": gains_of_tasks(pairs, far_right - near_right),
        "oracle": far_right - near_right,
    }
    return {name: score for name, score in scores.items() if score is not None}


def gains(predictor: Predictor, prompts: Sequence[Pair]) -> Array:
    """The gain (n,) in right answers that a predictor expects of the far side."""
    chances = predictor.rights(*((pair.prompt, pair.near.signals, pair.embedding) for pair in prompts))
    return np.array([chance.far - chance.near for chance in chances])


def hand_rule(text: str) -> int:
    """The heuristic that a developer would write in a line without any logs: numbers, sentences, "and", "then" and a
    long number are signs of a hard prompt.
    """
    _, words = text_inputs(text)
    numbers = [len(word) for word in words if set(word) == {"#"}]
    sentences = sum(text.count(end) for end in (". ", "! ", "? ")) + text.endswith((".", "!", "?"))
    return len(numbers) + sentences + words.count("and") + words.count("then") + (max(numbers, default=0) >= 4)


def gains_of_tasks(pairs: Sequence[Pair], gain: Array) -> Array | None:
    """The mean gain (n,) of each pair's task; None if a pair has no task."""
    members = defaultdict[str, list[float]](list)
    for pair, value in zip(pairs, gain, strict=True):
        if pair.task is None:
            return None
        members[pair.task].append(float(value))
    return np.array([np.mean(members[pair.task]) for pair in pairs if pair.task is not None])
