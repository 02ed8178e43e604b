"""WarmUp: far computes the prompt of an answer that near writes, so that a hand-over finds it in far's cache.

The request flows out as it is, but for what an answer is checked and measured with, and of the answer one token is asked for; nothing of it
is shown. What is wrong with far shows when it is asked in earnest, so no failure is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from nearfar.compiler.errors import NearfarError

from ...executors.executor import Call
from ...schema.chat import ChatCompletionRequest
from ...schema.common import Usage
from ...schema.completions import CompletionRequest
from ..decision.situation import Message
from ..sides.sides import Sides


class WarmUp:
    """Of one answer, whose request must not be private. ``conversation`` is what far then has computed."""

    def __init__(
        self,
        sides: Sides,
        request: ChatCompletionRequest | CompletionRequest,
        call: Call,
        conversation: Sequence[Message],
    ) -> None:
        self._sides, self._request, self._call, self._conversation = sides, prompt_alone(request), call, conversation
        self._usage: Usage | None = None
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Break it off where it still runs. What far has computed stays in its cache."""
        self._task.cancel()

    async def ended(self) -> None:
        """After `stop`: wait until nothing of it runs, and pay for it."""
        await asyncio.gather(self._task, return_exceptions=True)
        if self._usage is not None:
            await self._sides.pay(self._usage.prompt_tokens, self._usage.completion_tokens)

    async def _run(self) -> None:
        sides = self._sides
        assert sides.far is not None
        if sides.circuits["far"].state != "closed" or not await sides.take():
            return
        try:
            async with aclosing(sides.far.ask(self._request, self._call)) as answer:
                async for said in answer:
                    self._usage = said.usage or self._usage
        except NearfarError:
            return
        sides.answered("far", self._conversation, "")


# What says how an answer ends, and what it may be.
ENDS_AND_FORMS = (
    "stop",
    "min_tokens",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def prompt_alone(request: ChatCompletionRequest | CompletionRequest) -> ChatCompletionRequest | CompletionRequest:
    """The same prompt, and one token of an answer without a form."""
    if isinstance(request, CompletionRequest):
        return request.model_copy(update={**dict.fromkeys((*ENDS_AND_FORMS, "logprobs")), "max_tokens": 1})
    without = dict.fromkeys((*ENDS_AND_FORMS, "response_format", "logprobs", "top_logprobs", "max_completion_tokens"))
    # One token is no call, so none may be required; without tools it would be another prompt.
    choice = "none" if request.tool_choice == "none" else None
    return request.model_copy(update={**without, "max_tokens": 1, "tool_choice": choice})
