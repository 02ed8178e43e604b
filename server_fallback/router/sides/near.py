"""The near side: a model on this machine. Requests flow in, what it says flows out, and what it thought of each token where that counts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from nearfar.compiler.errors import RequestError

from ...executors.executor import Abilities, Call, Executor, TellsAbilities
from ...schema.chat import ChatCompletionRequest
from ...schema.completions import CompletionRequest
from ...schema.tokenize import DetokenizeRequest, TokenizeRequest
from .said import Said, said_in_chat, said_in_completion

# What decoding a token may need of the tokens after it.
UNDECIDED_TOKENS = 8


class NearSide:
    """The executor is this side's from now on, which closes it in the end."""

    def __init__(self, executor: Executor, name: str) -> None:
        self.executor, self.name = executor, name
        self.abilities: Abilities | None = executor.abilities() if isinstance(executor, TellsAbilities) else None

    @property
    def embeds(self) -> bool:
        return self.abilities is not None and self.abilities.embeds

    @property
    def available(self) -> bool:
        """To generate text."""
        return self.executor.state().ready and not self.embeds

    async def ask(
        self, request: ChatCompletionRequest | CompletionRequest, call: Call, logprobs: int | None
    ) -> AsyncGenerator[Said, None]:
        """``logprobs``: of each token, and of so many alternatives, whatever the client wants to see. Raises as `Executor`."""
        if isinstance(request, CompletionRequest):
            if logprobs is not None:
                request = request.model_copy(update={"logprobs": max(logprobs, request.logprobs or 0)})
            async with aclosing(self.executor.complete(request, call)) as completion:
                async for part in completion:
                    yield said_in_completion(part)
            return
        if logprobs is not None and (request.logprobs or request.top_logprobs is None):
            request = request.model_copy(
                update={"logprobs": True, "top_logprobs": max(logprobs, request.top_logprobs or 0)}
            )
        async with aclosing(self.executor.chat(request, call)) as chat:
            async for chunk in chat:
                yield said_in_chat(chunk)

    async def prompt_ids(self, request: ChatCompletionRequest | CompletionRequest) -> Sequence[int] | None:
        """The prompt's tokens; None for one that the model cannot read, which is told where it is asked."""
        if isinstance(request, CompletionRequest):
            if not isinstance(request.prompt, str):
                return [part for part in request.prompt if isinstance(part, int)]
            asked = TokenizeRequest(model=self.name, prompt=request.prompt)
        else:
            asked = TokenizeRequest(model=self.name, messages=request.messages, tools=request.tools)
        try:
            return (await self.executor.tokenize(asked)).tokens
        except RequestError:
            return None

    async def text_of(self, token_ids: Sequence[int]) -> str:
        """Raises RequestError for ids that are not in the vocabulary."""
        return (await self.executor.detokenize(DetokenizeRequest(model=self.name, tokens=list(token_ids)))).prompt

    async def ids_of(self, text: str, token_ids: Sequence[int]) -> list[int] | None:
        """Those of an answer's tokens that ``text`` is made of; None where it is not made of them alone.

        The last tokens may not have come out as text yet, or stand for what is no text.
        """
        for end in range(len(token_ids), max(0, len(token_ids) - UNDECIDED_TOKENS), -1):
            if await self.text_of(token_ids[:end]) == text:
                return list(token_ids[:end])
        return None

    async def close(self) -> None:
        await self.executor.close()
