"""Requests to the engine, and what it answers, in token ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from nearfar.compiler.ir.sampling import DEFAULT_SAMPLING, Sampling

from .images import PromptImage

ItemT = TypeVar("ItemT")


class Constraint(Protocol):
    """The allowed next tokens: a grammar's state over one answer. One request uses it, from one thread at a time."""

    def mask(self) -> npt.NDArray[np.int32] | None:
        """One bit for each token id, (ceil(V / 32),), least significant bit first: whether it may come next. None if
        all may.
        """

    def accept(self, token_id: int) -> None:
        """Advance by a sampled token. Stop tokens are not passed."""

    @property
    def finished(self) -> bool:
        """Whether nothing but the end may come."""

    @property
    def complete(self) -> bool:
        """Whether the answer so far is a whole one, so that ``max_tokens`` does not cut it."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Continue ``prompt_ids``.

    ``max_tokens`` None generates until the context is full. ``logprobs``: the number of alternatives, 0 to 20, listed
    with the log-probability of each chosen token; None for neither. ``priority``: higher goes first. ``adapter`` names
    a loaded LoRA adapter; None is the model as it is. ``deadline`` is a time of `time.monotonic` at which the answer
    fails with DeadlineExceeded. ``when_full``: "stop" ends the answer when the context is full; a number drops old
    tokens instead, and keeps that many at the start.

    ``stop_token_ids`` end the answer like the model's own end tokens, which are not part of it; ``last_token_ids`` end
    it and are its last token. With ``ignore_eos`` the model's own end tokens are part of the answer like any other.
    None of all these comes before the answer has ``min_tokens`` tokens, unless a constraint allows nothing else.

    ``drafts`` are the caller's guesses at the next tokens. All of them are checked in one step; the answer consists of
    the accepted ones and one token more, and then ends ("length", unless a stop token came). None guesses nothing.
    ``answered``: how many of the prompt's last tokens belong to the answer already, so that its random numbers continue
    after them. ``arrival``, from `TokenEngine.arrive`, is shared by several requests that together make one answer: all
    have the same rank in the queue, and each starts from the last, partly filled page of the one before.

    ``prompt_logprobs``: how many of the prompt's last tokens get a log-probability before the answer, with
    ``prompt_alternatives``, 0 to 20, of the most likely ones; the prompt's first token never does. The rows for them
    are always computed, even if a cache holds their keys and values, so the values do not depend on earlier requests.
    Not together with drafts or with a number for ``when_full``.

    ``client`` identifies the sender: requests of equal priority are admitted fairly between clients.

    ``watermark``: mark the answer, with the watermark of the engine.

    ``images`` are those of the prompt, in the order of their places; not together with a number for ``when_full``.

    ``export``: instead of an answer, the stored pages of the prompt's positions in this range, both ends of which are
    page borders; see `TokenEngine.export`.

    ``prefill_from`` names the server that computes the beginning of the prompt, "" for none; see `executors/apart.py`.
    None leaves the choice to this server.
    """

    prompt_ids: Sequence[int]
    max_tokens: int | None = None
    sampling: Sampling = DEFAULT_SAMPLING
    logprobs: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    last_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    ignore_eos: bool = False
    constraint: Constraint | None = None
    priority: int = 0
    when_full: Literal["stop"] | int = "stop"
    adapter: str | None = None
    deadline: float | None = None
    drafts: Sequence[int] | None = None
    answered: int = 0
    arrival: int | None = None
    prompt_logprobs: int = 0
    prompt_alternatives: int = 0
    client: str = ""
    watermark: bool = False
    images: Sequence[PromptImage] = ()
    export: range | None = None
    prefill_from: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float


class GeneratedToken(NamedTuple):
    """``logprob`` is None unless it was requested; ``alternatives`` are the most likely tokens, best first."""

    token_id: int
    logprob: float | None = None
    alternatives: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The prompt's last tokens with their log-probabilities, given all tokens before them, in the order of the
    prompt.
    """

    tokens: tuple[GeneratedToken, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(token.logprob or 0.0 for token in self.tokens)


# "stop": the model ended its answer, or the answer is whole under its constraint. "length": max_tokens are reached, the
# context is full, or the drafts are checked.
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """How an answer ended. ``cached_tokens`` are those of the prompt that were in a cache; ``end_token`` is the sampled
    token that ended the answer and is not part of it, if one did. ``drafted_tokens`` are guesses that were checked,
    ``accepted_tokens`` those that were right. ``passes`` are the steps of the model that sampled tokens of the answer,
    0 if they are unknown.

    Times are in seconds since the request arrived; ``queue_seconds`` until its first token was submitted to the device.
    """

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_seconds: float
    time_to_first_token_seconds: float
    total_seconds: float
    end_token: GeneratedToken | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    passes: int = 0


class TokenSource(Protocol):
    """Something that generates tokens: the engine, or a replacement in tests."""

    def generate(self, request: TokenRequest) -> AsyncGenerator[PromptLogprobs | GeneratedToken | AnswerEnd, None]:
        """Yield each new token, without a stop token, and last the AnswerEnd; first PromptLogprobs if they are
        requested.

        Closing the generator early ends the answer and frees its pages at the next step.

        Raises RequestError for what cannot be answered, QueueFull, DeadlineExceeded, or DeviceError.
        """


# Handles a token at once, without waking the reader of its answer, and returns True. If it returns False, the token is
# yielded. It is called only while the reader waits for the next batch and has received all items before.
TokenHandler = Callable[[GeneratedToken], bool]


@runtime_checkable
class BatchSource(TokenSource, Protocol):
    """A source that yields several items at once when its reader is slower than the device."""

    def batches(
        self, request: TokenRequest, handle: TokenHandler | None = None
    ) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | AnswerEnd], None]:
        """Tokens that ``handle`` has handled are not yielded. An error that it raises ends the answer."""


def batches_of(
    source: TokenSource, request: TokenRequest, handle: TokenHandler | None = None
) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | AnswerEnd], None]:
    """The batches of a source, or each of its items as one; ``handle`` is not needed for these."""
    return source.batches(request, handle) if isinstance(source, BatchSource) else _one_by_one(source, request)


async def items_of(batches: AsyncGenerator[list[ItemT], None]) -> AsyncGenerator[ItemT, None]:
    """The items of batches, one by one. Closing it closes the batches."""
    async with aclosing(batches):
        async for batch in batches:
            for item in batch:
                yield item


async def _one_by_one(
    source: TokenSource, request: TokenRequest
) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | AnswerEnd], None]:
    async with aclosing(source.generate(request)) as items:
        async for item in items:
            yield [item]
