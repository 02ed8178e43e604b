"""Near signals: how likely the near model finds the prompt, and how sure it is of the first tokens of its own answer. Log-probabilities
flow in, three numbers flow out.

The tokens are not wasted: a near answer goes on from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...schema.common import TokenLogprob
from ..decision.situation import NearSignals
from .watch import entropy

SIGNAL_TOKENS = 4


def near_signals(tokens: Sequence[TokenLogprob], prompt_logprobs: Sequence[float] = ()) -> NearSignals:
    """The signals of an answer that begins with these tokens, of which the first 4 count, to a prompt whose last tokens were so likely.

    What is not known is null: the answer's signals where it has no token, the prompt's where an engine tells nothing of it.
    """
    first = tokens[:SIGNAL_TOKENS]
    return NearSignals(
        prompt_mean_logprob=mean(prompt_logprobs),
        first_entropy=mean([entropy([top.logprob for top in token.top_logprobs]) for token in first]),
        first_mean_logprob=mean([token.logprob for token in first]),
    )


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
