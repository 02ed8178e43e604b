"""Embeddings over two sides. Near embeds if its model does and the policy's hard rules allow it, otherwise far does.

The rules are those of chats, without the predictor, which was fitted to answers of chats: no rule reads a vector of the
input. Vectors of two models cannot be compared, so if both sides embed they must have the same model.
"""

from __future__ import annotations

from dataclasses import replace

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import Call
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from .decision.situation import Situation
from .sides.near import NearSide
from .sides.sides import Sides


async def embed(sides: Sides, request: EmbeddingRequest, situation: Situation, call: Call) -> EmbeddingResponse:
    """``request`` has no labels or pin any more; ``situation`` has what is known from the request alone.

    Raises RequestError (with the code "different_models" if the vectors would not fit those of near), Unavailable, and
    the errors of the side that embeds.
    """
    near, far = sides.near, sides.far
    situation = replace(situation, near=sides.near_state(None, embeds=True), far=await sides.far_state())
    if near is not None and (await sides.choose(situation, private=False, embeds=True)).decision.side == "near":
        # Private texts may stay here, so they need no search.
        return await near.executor.embed(request, call)
    decision = (await sides.choose(situation, private=await sides.is_private(situation), embeds=True)).decision
    if decision.side is None or far is None:
        raise sides.refusal(decision, situation, embeds=True)
    if near is not None and near.embeds and sides.policy.mode != "far-only":
        await require_one_model(sides, near, call)
    if not await sides.reserve_request():
        raise sides.refusal(replace(decision, side=None, reason="budget"), situation, embeds=True)
    answer = await far.embed(request, call)
    await sides.pay(answer.usage.prompt_tokens, 0)
    return answer


async def require_one_model(sides: Sides, near: NearSide, call: Call) -> None:
    """Raises RequestError unless the sides' models have one name and, as far as it is known, one tokenizer."""
    assert sides.far is not None
    model, ours = await sides.far.reach(call), near.abilities.tokenizer_sha256 if near.abilities else None
    fits = None in (ours, model.tokenizer_sha256) or ours == model.tokenizer_sha256
    if model.id == near.name and fits:
        return
    which = "with different tokenizers" if model.id == near.name else f"and the far side {model.id!r}"
    raise RequestError(
        f"this device has the embedding model {near.name!r} {which}, so their vectors cannot be compared; use the same "
        "model under the same name, or a policy with the mode near-only or far-only",
        code="different_models",
    )
