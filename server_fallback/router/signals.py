"""Near's signals: what its own first tokens tell of a prompt. What it says flows in, numbers for the predictor flow out."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from .decision import Decision
from .features import SIGNALS
from .policy import Policy
from .said import Said
from .situation import NearSignals
from .watch import entropy

SIGNAL_TOKENS = 4
# Alternatives of a token, whose log-probabilities make its entropy.
TOP = 20


def wants_signals(policy: Policy, decision: Decision) -> bool:
    """Whether near's view of the prompt could change the decision: a predictor looks at it, and no other rule has decided."""
    predictor = policy.quality.predictor
    return predictor is not None and decision.reason in ("quality", "cost") and not set(SIGNALS).isdisjoint(predictor.features)


def signals_of(news: Iterable[Said | Exception | None]) -> NearSignals | None:
    """None where no token came with log-probabilities."""
    tokens = [token for said in news if isinstance(said, Said) for token in said.tokens][:SIGNAL_TOKENS]
    if not tokens:
        return None
    return NearSignals(
        first_entropy=fmean([entropy([top.logprob for top in token.top_logprobs]) for token in tokens]),
        first_mean_logprob=fmean([token.logprob for token in tokens]),
    )
