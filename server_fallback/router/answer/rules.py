"""The rules of one answer: what the policy and the far server allow. `AnswerMachine` reads them."""

from __future__ import annotations

from ...schema.chat import ChatCompletionRequest
from ...schema.completions import CompletionRequest
from ...schema.route import Side
from ..sides.continued import structured
from ..sides.sides import Sides
from .answer_machine import Rules


def rules_of(sides: Sides, request: ChatCompletionRequest | CompletionRequest, *, private: bool) -> Rules:
    policy = sides.policy
    timeouts, fallback = policy.timeouts, policy.fallback
    alone = policy.mode in ("near-only", "far-only")
    return Rules(
        then=policy.escalation.then,
        # A server of the dialect openai does not report a cache.
        warm="never" if sides.far is None or sides.far.far.dialect == "openai" else policy.escalation.warm,
        near_continues=fallback.near_continues and not alone,
        far_takes_over=fallback.far_takes_over and not alone,
        near_first_token_ms=timeouts.near_first_token_ms,
        far_first_token_ms=timeouts.far_first_token_ms,
        between_tokens_ms=timeouts.between_tokens_ms,
        hedge_after_ms=timeouts.hedge_after_ms,
        retries=policy.retries,
        private=private,
        resumes=resuming(sides, request),
    )


def resuming(sides: Sides, request: ChatCompletionRequest | CompletionRequest) -> tuple[Side, ...]:
    """The sides that can continue an answer."""
    if isinstance(request, CompletionRequest):
        # A prompt of near's token ids would be another text for far.
        return ("near", "far") if isinstance(request.prompt, str) else ()
    # A grammar would start over in the middle of the text.
    if structured(request):
        return ()
    return ("near",) if sides.far is None or sides.far.far.dialect == "openai" else ("near", "far")
