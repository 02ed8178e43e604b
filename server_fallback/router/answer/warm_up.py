"""WarmUp: far computes the prompt of an answer that near writes, so that the prompt is in far's cache at a hand-over.

The request is sent without the fields that check or measure an answer. It asks for one token, which is never shown. If
something is wrong with far, the next real request shows it, so failures are not reported here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from nearfar.compiler.runtime.errors import NearfarError

from ...executors.executor import Call
from ...schema.chat import ChatCompletionRequest
from ...schema.common import Usage
from ...schema.completions import CompletionRequest
from ..decision.situation import Message
from ..sides.sides import Sides


class WarmUp:
    """The warm-up of one answer, whose request must not be private.

    ``conversation`` is what far has computed afterwards.
    """

    def __init__(
        self,
        sides: Sides,
        request: ChatCompletionRequest | CompletionRequest,
        call: Call,
        conversation: Sequence[Message],
    ) -> None:
        self._sides, self._request, self._call, self._conversation = sides, prompt_only(request), call, conversation
        self._usage: Usage | None = None
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Cancel the warm-up if it still runs. The part that far has computed stays in its cache."""
        self._task.cancel()

    async def ended(self) -> None:
        """After `stop`: wait until it has ended, and pay for it."""
        await asyncio.gather(self._task, return_exceptions=True)
        if self._usage is not None:
            await self._sides.pay({"usage": self._usage.model_dump(), "tokens": 0, "refused": False})

    async def _run(self) -> None:
        sides = self._sides
        assert sides.far is not None
        if sides.circuits["far"].state != "closed" or not await sides.reserve_request():
            return
        try:
            async with aclosing(sides.far.answer(self._request, self._call)) as answer:
                async for piece in answer:
                    self._usage = piece.usage or self._usage
        except NearfarError:
            return
        sides.record_conversation("far", self._conversation, "")


# The fields that determine how an answer ends and which format it has.
END_AND_FORMAT_FIELDS = (
    "stop",
    "min_tokens",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def prompt_only(request: ChatCompletionRequest | CompletionRequest) -> ChatCompletionRequest | CompletionRequest:
    """The same prompt, with an answer of one token and without a format."""
    if isinstance(request, CompletionRequest):
        return request.model_copy(update={**dict.fromkeys((*END_AND_FORMAT_FIELDS, "logprobs")), "max_tokens": 1})
    without = dict.fromkeys(
        (*END_AND_FORMAT_FIELDS, "response_format", "logprobs", "top_logprobs", "max_completion_tokens")
    )
    # One token cannot be a tool call, so none may be required. Without the tools it would be another prompt.
    choice = "none" if request.tool_choice == "none" else None
    return request.model_copy(update={**without, "max_tokens": 1, "tool_choice": choice})
