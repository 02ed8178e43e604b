"""The choice of a side for a request whose media near must turn into texts first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from nearfar.compiler.runtime.errors import DeadlineExceeded, NearfarError

from ...executors.executor import Call
from ...schema.chat import ChatCompletionRequest
from ...schema.completions import CompletionRequest
from ...schema.route import Description
from ..decision.decide import Choice, choose_described
from ..decision.situation import Media, Situation
from ..sides.describer import with_descriptions
from ..sides.sides import Sides
from ..sides.texts import with_texts_of


@dataclass(frozen=True, slots=True)
class Described:
    """The request that is answered: with texts in place of its media, or as it was."""

    request: ChatCompletionRequest | CompletionRequest
    situation: Situation
    choice: Choice
    descriptions: Sequence[Description] = ()


async def choose_with_descriptions(
    sides: Sides,
    request: ChatCompletionRequest | CompletionRequest,
    situation: Situation,
    media: Sequence[Media],
    is_private: Callable[[ChatCompletionRequest, Situation], Awaitable[bool]],
    call: Call,
) -> Described:
    """``situation`` is that of a choice that describes ``media``. ``is_private``: whether a request must stay here. If
    near cannot describe them, it answers itself, if the policy's `fallback.near_continues` allows it.

    Raises RequestError or Unavailable if near may not do that either, and the errors of `Sides.choose`.
    """
    assert isinstance(request, ChatCompletionRequest), "only chats have media that are described"
    assert sides.describer is not None
    try:
        descriptions = await sides.describer.describe(request, media, call)
    except DeadlineExceeded:
        raise
    except NearfarError:
        situation = replace(situation, near=replace(situation.near, describes=()))
        choice = await sides.choose(situation, private=await is_private(request, situation))
        if not sides.policy.fallback.near_continues or choice.decision.side is None:
            raise
        return Described(request, situation, choice)
    written = with_descriptions(request, descriptions)
    again = await sides.situation(await asyncio.to_thread(with_texts_of, situation, written), written)
    private = await is_private(written, again)
    choice, reads_media = choose_described(sides.policy, situation, again, private=private)
    if reads_media:
        return Described(request, situation, choice)
    return Described(written, again, choice, descriptions)
