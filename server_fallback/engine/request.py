"""What an answer is asked for with, and what comes of it, in token ids. Texts and messages become these; the scheduler reads them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

# The prompt's last tokens that may be told of.
MAX_PROMPT_LOGPROBS = 32


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; see `nearfar.compiler.sampling`.

    ``seed`` is a 32-bit unsigned integer, None for a random one; ``logit_bias`` is added to the logits of its tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None


class Constraint(Protocol):
    """What may be said next: a grammar's state over one answer. Used by one request only, from one thread at a time."""

    def mask(self) -> npt.NDArray[np.int32] | None:
        """One bit for each token id, (ceil(V / 32),), least significant bit first: whether it may come next. None where all may."""

    def accept(self, token_id: int) -> None:
        """The token that came. Stop tokens are not told."""

    @property
    def finished(self) -> bool:
        """Whether nothing but the end may come."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Continue ``prompt_ids``.

    ``max_tokens`` None: as many as the context holds. ``logprobs``: of the chosen tokens and of so many alternatives, 0 to 20; None for
    none. ``priority``: higher goes first. ``stop_token_ids`` end the answer like the model's own end tokens. ``adapter`` names a LoRA
    adapter that is loaded; None is the model as it is. ``deadline`` is a time of `time.monotonic` after which the answer is given up with
    DeadlineExceeded. ``when_full``: the answer ends when the context is full, or the oldest tokens after the first so many make way.

    ``drafts`` are guesses of the caller at the next tokens: those that hold are told in one step, with one token more, and with that the
    answer ends ("length", unless it stopped). None guesses nothing. The last ``answered`` of the prompt's tokens are of the answer already:
    random numbers go on behind them. ``arrival``, of `TokenEngine.arrive`, makes it one of several parts of an answer: all have that place
    in the queue, and each finds the last, unfilled page of the one before.

    ``prompt_logprobs``: of so many of the prompt's last tokens, 0 to 32, the log-probability is told before the answer; of all but the
    first where the prompt is no longer. Their rows are computed anew where a cache has them, so what is told does not depend on what was
    asked before. Not together with drafts, or where the oldest tokens make way.
    """

    prompt_ids: Sequence[int]
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    logprobs: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    priority: int = 0
    when_full: Literal["stop"] | int = "stop"
    adapter: str | None = None
    deadline: float | None = None
    drafts: Sequence[int] | None = None
    answered: int = 0
    arrival: int | None = None
    prompt_logprobs: int = 0


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
    """The log-probability of each of the prompt's last tokens, given all before it, in their order; none where nothing is before one.

    That of a token which is not among the 20 likeliest in its place is an equal share of what those leave, and at least -30.
    """

    values: tuple[float, ...]


# "stop": the model ended its answer. "length": max_tokens are there, or the context is full, or the drafts are checked.
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Completion:
    """How an answer ended. ``cached_tokens`` are those of the prompt whose keys and values were there already.

    Times in seconds, from when the request came; ``queue_seconds`` until its first token was handed to the device.
    """

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_seconds: float
    time_to_first_token_seconds: float
    total_seconds: float


class TokenSource(Protocol):
    """Where tokens come from: the engine, or in tests something like it."""

    def generate(self, request: TokenRequest) -> AsyncGenerator[PromptLogprobs | GeneratedToken | Completion, None]:
        """Yield each new token (a stop token is not yielded), and last the Completion; first PromptLogprobs, where they are asked for.

        Closing the generator early ends the answer and frees its pages at the next step.

        Raises RequestError for what cannot be answered, QueueFull, DeadlineExceeded, or DeviceError.
        """
