"""Executor: what answers requests for one model. Our own engine is one; another server is one too.

Requests and answers are OpenAI's, as the classes of `schema/`; HTTP, keys and limits are the API's concern.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..schema.chat import ChatCompletionChunk, ChatCompletionRequest
from ..schema.completions import CompletionChunk, CompletionRequest
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse


@dataclass(frozen=True, slots=True)
class Call:
    """What surrounds a request. ``deadline`` is a time of `time.monotonic`; ``headers`` are passed on to other servers (traceparent).

    ``priority`` is the final one: what the request asks for, within what its key may. An executor of our own tells ``observe_queue``, for
    each answer, the seconds until its first token was handed to the device, and ``observe_token`` the id of each token of its answers; and
    ``observe_prompt_logprobs``, before that, how likely the prompt's last tokens were, up to 32. Others tell none of it.
    """

    request_id: str
    priority: int = 0
    deadline: float | None = None
    headers: dict[str, str] = field(default_factory=dict)
    observe_queue: Callable[[float], None] | None = None
    observe_token: Callable[[int], None] | None = None
    observe_prompt_logprobs: Callable[[Sequence[float]], None] | None = None


@dataclass(frozen=True, slots=True)
class ExecutorState:
    """What the model's executor is doing. ``memory_bytes`` is what it holds on the device, None where it is not known.

    ``kv_usage`` is 0 to 1, and so is ``kv_waste``, the share of what is in use that holds no token. The rest are counts since the start:
    tokens that were looked up in the prefix cache and found there, requests that had to give their pages back, tokens guessed by drafts,
    and how many of those were right; steps of the device, and the seconds in all of them that the engine itself took.
    """

    ready: bool
    detail: str
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    memory_bytes: int | None = None
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    kv_waste: float = 0.0
    steps: int = 0
    overhead_seconds: float = 0.0


class Executor(Protocol):
    """Streams always; whoever wants a whole answer folds the chunks (`schema/fold.py`). Closing a generator ends the answer.

    All methods raise NearfarError's leaves: RequestError (400), QueueFull (429), DeadlineExceeded and Unavailable (503), DeviceError (500).
    """

    @property
    def context(self) -> int:
        """The longest sequence in tokens."""

    def chat(self, request: ChatCompletionRequest, call: Call) -> AsyncGenerator[ChatCompletionChunk, None]:
        """The chunks of all ``n`` choices. The last one has no choices and has the usage, whether or not the request asked for it."""

    def complete(self, request: CompletionRequest, call: Call) -> AsyncGenerator[CompletionChunk, None]: ...

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse: ...

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse: ...

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse: ...

    def state(self) -> ExecutorState: ...

    async def close(self) -> None:
        """End what runs and give memory back."""
