"""Near signals: how sure the near model is of the first tokens of its own answer. Log-probabilities flow in, two numbers flow out.

The tokens are not wasted: a near answer goes on from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..schema.common import TokenLogprob
from .situation import NearSignals
from .watch import entropy

SIGNAL_TOKENS = 4


def near_signals(tokens: Sequence[TokenLogprob]) -> NearSignals:
    """The signals of an answer that begins with these tokens, of which the first 4 count. All are null for an answer without a token.

    ``prompt_mean_logprob`` is null: no engine of ours tells a prompt's log-probabilities.
    """
    first = tokens[:SIGNAL_TOKENS]
    if not first:
        return NearSignals(prompt_mean_logprob=None, first_entropy=None, first_mean_logprob=None)
    return NearSignals(
        prompt_mean_logprob=None,
        first_entropy=sum(entropy([top.logprob for top in token.top_logprobs]) for token in first) / len(first),
        first_mean_logprob=sum(token.logprob for token in first) / len(first),
    )
