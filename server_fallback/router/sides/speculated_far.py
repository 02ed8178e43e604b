"""SpeculatedFar: far's answers, with several tokens at a time guessed by near. The answer is the one that far alone
would give.

Near's own chat pipeline runs over `WireSpeculation` in place of near's engine, so an answer has the usual form. If a
request cannot be guessed or checked, far answers it as usual.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from nearfar.compiler.runtime.errors import RequestError

from ...executors.executor import Call, Drafts
from ...schema.chat import ChatCompletionRequest
from ...schema.completions import CompletionRequest
from ...text.output import streamed
from .answer_piece import AnswerPiece, piece_of
from .continued import continues_as_tokens
from .far import FarSide
from .near import NearSide
from .wire_speculation import FarModel, WireCounts, WireSpeculation

# Refusals that apply to every request to this far side.
NEVER_CHECKED = ("verify_unavailable", "verify_version", "tokenizer_differs")


class SpeculatedFar:
    """``same_tokens``: whether both sides make the same token ids from the same chat.

    ``is_private``: whether a text may not leave the device; near's guesses that complete such a text are not sent. None
    if all texts may leave. ``counts`` are totals of all answers that near guessed for.
    """

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

    async def answer(
        self, request: ChatCompletionRequest | CompletionRequest, call: Call
    ) -> AsyncGenerator[AnswerPiece, None]:
        """As `FarSide.answer`.

        A refusal before the first token is not an error: far is asked for the complete answer.
        """
        drafts = self._near.executor
        if (
            isinstance(drafts, Drafts)
            and isinstance(request, ChatCompletionRequest)
            and await self._may_guess(request, call)
        ):
            started = False
            try:
                async with aclosing(self._guessed(drafts, request, call)) as guessed:
                    async for piece in guessed:
                        started = True
                        yield piece
                return
            except RequestError as error:
                if started:
                    raise
                self._refused = self._refused or error.details.get("code") in NEVER_CHECKED
        async with aclosing(self._far.answer(request, call)) as answer:
            async for piece in answer:
                yield piece

    async def _may_guess(self, request: ChatCompletionRequest, call: Call) -> bool:
        if self._refused or not continues_as_tokens(request) or changes_sampling(request) or not self._near.available:
            return False
        return (await self._far.reach(call)).verify and await self._same_tokens(call)

    async def _guessed(
        self, drafts: Drafts, request: ChatCompletionRequest, call: Call
    ) -> AsyncGenerator[AnswerPiece, None]:
        far, model = self._far.far, await self._far.reach(call)
        assert model.tokenizer_sha256 is not None
        far_model = FarModel(far.base_url, model.id, model.tokenizer_sha256, far.api_key, far.ca)
        source = WireSpeculation(
            drafts.drafter,
            far_model,
            self._draft_tokens,
            self.counts,
            None if self._is_private is None else self._may_send,
        )
        # These are not near's tokens, and they do not wait in near's queue.
        unobserved = replace(call, observe_queue=None, observe_token=None, observe_prompt_logprobs=None)
        async with aclosing(streamed(partial(drafts.answer_from, source, request, unobserved))) as chunks:
            async for chunk in chunks:
                piece = piece_of(chunk)
                if piece.usage is not None:
                    piece = replace(piece, usage=piece.usage.model_copy(update={"queue_ms": None}))
                if piece.has_content or piece.finish_reason is not None or piece.usage is not None:
                    yield piece

    async def _may_send(self, token_ids: Sequence[int]) -> bool:
        assert self._is_private is not None
        return not await self._is_private(await self._near.text_of(token_ids))


def changes_sampling(request: ChatCompletionRequest) -> bool:
    """Whether earlier tokens, the client or a watermark change the probabilities of tokens, or which tokens end the
    answer.

    Drafts of such requests cannot be checked.
    """
    penalties = (request.frequency_penalty or 0) != 0 or (request.presence_penalty or 0) != 0
    ends = bool(request.stop_token_ids or request.min_tokens or request.ignore_eos)
    changes = penalties or bool(request.watermark)
    return changes or (request.repetition_penalty or 1) != 1 or bool(request.logit_bias) or ends
