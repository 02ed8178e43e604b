"""Near signals: how likely the prompt is to the near model, and how sure the model is of the first tokens of its own
answer.

The tokens are not wasted: if near answers, it continues from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...schema.common import TokenLogprob
from ..decision.situation import NearSignals

SIGNAL_TOKENS = 4


def near_signals(tokens: Sequence[TokenLogprob], prompt_logprobs: Sequence[float] = ()) -> NearSignals:
    """The signals of an answer that begins with ``tokens``, of which the first 4 count, and of a prompt whose last
    tokens have ``prompt_logprobs``.

    Unknown values are None: the signals of the answer if it has no token, and that of the prompt if the engine does not
    report its log-probabilities.
    """
    first = tokens[:SIGNAL_TOKENS]
    return NearSignals(
        prompt_mean_logprob=mean(prompt_logprobs),
        first_entropy=mean([entropy([top.logprob for top in token.top_logprobs]) for token in first]),
        first_mean_logprob=mean([token.logprob for token in first]),
    )


def entropy(logprobs: Sequence[float]) -> float:
    """The entropy in nats, from the most likely tokens. The remaining probability counts as one more token."""
    probabilities = [math.exp(logprob) for logprob in logprobs]
    rest = max(1.0 - sum(probabilities), 0.0)
    return -sum(each * math.log(each) for each in (*probabilities, rest) if each > 0)


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
