"""SpeculatedFar: far's answers, whose tokens near guesses several at a time. A request flows in; what far would have said alone flows out.

Near's own chat pipeline runs over `WireSpeculation` in place of near's engine, so an answer has the form of any other. What cannot be
guessed or checked far is asked for as ever.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from nearfar.compiler.errors import RequestError

from ...executors.executor import Call, Drafts
from ...schema.chat import ChatCompletionRequest
from ...schema.completions import CompletionRequest
from .continued import plain
from .far import FarSide
from .near import NearSide
from .said import Said, said_in_chat
from .wire_speculation import FarModel, WireCounts, WireSpeculation

# Refusals that hold for every request to this far side.
NEVER_CHECKED = ("verify_unavailable", "verify_version", "tokenizer_differs")


class SpeculatedFar:
    """``same_tokens``: whether both sides make the same token ids of the same chat. ``is_private``: whether a text may not leave, in which
    case near's guesses that complete it do not; None if all may. ``counts`` are of all answers that near guessed for."""

    def __init__(
        self,
        near: NearSide,
        far: FarSide,
        same_tokens: Callable[[Call], Awaitable[bool]],
        is_private: Callable[[str], Awaitable[bool]] | None,
        draft_tokens: int,
    ) -> None:
        self._near, self._far, self._same_tokens, self._draft_tokens = near, far, same_tokens, draft_tokens
        self._is_private = is_private
        self._refused = False
        self.counts = WireCounts()

    async def ask(self, request: ChatCompletionRequest | CompletionRequest, call: Call) -> AsyncGenerator[Said, None]:
        """As `FarSide.ask`. A refusal before the first token is no error: far is asked for the whole answer."""
        drafts = self._near.executor
        if (
            isinstance(drafts, Drafts)
            and isinstance(request, ChatCompletionRequest)
            and await self._may_guess(request, call)
        ):
            spoke = False
            try:
                async with aclosing(self._guessed(drafts, request, call)) as guessed:
                    async for said in guessed:
                        spoke = True
                        yield said
                return
            except RequestError as error:
                if spoke:
                    raise
                self._refused = self._refused or error.details.get("code") in NEVER_CHECKED
        async with aclosing(self._far.ask(request, call)) as answer:
            async for said in answer:
                yield said

    async def _may_guess(self, request: ChatCompletionRequest, call: Call) -> bool:
        if self._refused or not plain(request) or weighted(request) or not self._near.available:
            return False
        return (await self._far.opened(call)).verify and await self._same_tokens(call)

    async def _guessed(self, drafts: Drafts, request: ChatCompletionRequest, call: Call) -> AsyncGenerator[Said, None]:
        far, known = self._far.far, await self._far.opened(call)
        assert known.tokenizer_sha256 is not None
        there = FarModel(far.base_url, known.id, known.tokenizer_sha256, far.api_key)
        source = WireSpeculation(
            drafts.drafter, there, self._draft_tokens, self.counts, None if self._is_private is None else self._may_send
        )
        # These are not near's tokens, and what they wait for is not near's queue.
        unobserved = replace(call, observe_queue=None, observe_token=None, observe_prompt_logprobs=None)
        async with aclosing(drafts.chat_from(source, request, unobserved)) as chunks:
            async for chunk in chunks:
                said = said_in_chat(chunk)
                if said.usage is not None:
                    said = replace(said, usage=said.usage.model_copy(update={"queue_ms": None}))
                if said.says_something or said.finish_reason is not None or said.usage is not None:
                    yield said

    async def _may_send(self, token_ids: Sequence[int]) -> bool:
        assert self._is_private is not None
        return not await self._is_private(await self._near.text_of(token_ids))


def weighted(request: ChatCompletionRequest) -> bool:
    """Whether what was said before, or the client, changes how likely tokens are or which end the answer: drafts are not checked so."""
    penalties = (request.frequency_penalty or 0) != 0 or (request.presence_penalty or 0) != 0
    ends = bool(request.stop_token_ids or request.min_tokens or request.ignore_eos)
    return penalties or (request.repetition_penalty or 1) != 1 or bool(request.logit_bias) or ends
