"""What an executor has beside `Executor` where its model may guess for another server: our own engine does, other servers do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from ..engine.request import TokenSource
from ..engine.verification import VerifyingSource
from ..schema.chat import ChatCompletionChunk, ChatCompletionRequest
from .executor import Call, Executor


@runtime_checkable
class Drafts(Executor, Protocol):
    @property
    def drafter(self) -> VerifyingSource:
        """The engine, which stays the executor's."""

    def chat_from(self, source: TokenSource, request: ChatCompletionRequest, call: Call) -> AsyncGenerator[ChatCompletionChunk, None]:
        """As `Executor.chat`, with the tokens of another source: prompts, texts, stop strings and chunks are this model's."""
