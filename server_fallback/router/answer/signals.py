"""Near signals: how likely the prompt is to the near model, and how sure the model is of the first tokens of its own
answer (`web/src/shared/decision/near_signals.ts`).

The tokens are not wasted: if near answers, it continues from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.compiler.shared.script import SharedScript

from ...schema.common import TokenLogprob
from ..decision.situation import NearSignals
from .answer_machine import finite

SIGNAL_TOKENS = 4


def near_signals(tokens: Sequence[TokenLogprob], prompt_logprobs: Sequence[float] = ()) -> NearSignals:
    """The signals of an answer that begins with ``tokens``, of which the first 4 count, and of a prompt whose last
    tokens have ``prompt_logprobs``.

    Unknown values are None: the signals of the answer if it has no token, and that of the prompt if the engine does not
    report its log-probabilities.
    """
    first = [
        {"logprob": finite(token.logprob), "alternatives": [finite(top.logprob) for top in token.top_logprobs]}
        for token in tokens[:SIGNAL_TOKENS]
    ]
    signals: NearSignals = SharedScript.of_thread().ask("nearSignals", first, [*map(finite, prompt_logprobs)])
    return signals
