"""A sequence: the tokens of one request, the pages that hold their keys and values, and how far it has been
computed.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from .cache_kind import Node
from .images import PromptImage, prompt_keys
from .request import FinishReason

WAITING: Final = "waiting"
RUNNING: Final = "running"
FINISHED: Final = "finished"


@dataclass(frozen=True, slots=True)
class ContextShift:
    """Makes room in a full context: the older half of the tokens after the first ``keep`` is dropped, and the rest is
    computed again.
    """

    keep: int

    def apply(self, tokens: list[int], context: int) -> None:
        """Shorten ``tokens`` until they fit ``context``."""
        while len(tokens) > context:
            del tokens[self.keep : self.keep + -(-(len(tokens) - self.keep) // 2)]


@dataclass(frozen=True, slots=True)
class SequenceParams:
    """The parameters of a request for the scheduler. The defaults are those of a plain request.

    ``max_tokens`` None generates until the context is full. ``context_shift`` None ends the answer when the context is
    full. ``last_token_ids`` end the answer as its last token. ``lockstep``: the next token cannot be scheduled before
    the last one is read, because a constraint's mask or the drafts depend on it. ``verifies``: a round of verification;
    it ends with its first sampled row. ``partial_page``: one of several requests
    for one answer; each starts from the last, partly filled page of the one before. ``prompt_logprobs`` is the number
    of tokens at the end of the prompt that get a log-probability; it excludes ``context_shift``. ``adapter`` is the key
    of a LoRA adapter, ``adapter_slot`` its slot on the device. ``prefill_end``: no position from here on is computed,
    because only the pages before it are wanted.
    """

    max_tokens: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    last_token_ids: frozenset[int] = frozenset()
    context_shift: ContextShift | None = None
    lockstep: bool = False
    verifies: bool = False
    partial_page: bool = False
    prompt_logprobs: int = 0
    adapter: str | None = None
    adapter_slot: int = -1
    prefill_end: int | None = None


PLAIN = SequenceParams()


class PromptLogprobRows:
    """How many rows of a prompt are still to be sampled: ``pending`` ones are not scheduled, ``scheduled`` ones are not
    read back.

    The row at position p gives the log-probability of the token at p + 1, so these rows are the last ones before the
    row that samples the first token of the answer. They are never taken from a cache, which holds keys and values but
    no logits.
    """

    __slots__ = ("pending", "scheduled")

    def __init__(self, pending: int) -> None:
        self.pending, self.scheduled = pending, 0

    def schedule(self, rows: int) -> None:
        self.pending -= rows
        self.scheduled += rows

    def commit(self, rows: int) -> None:
        self.scheduled -= rows

    def restart(self) -> None:
        """The scheduled rows will never be read back; schedule them again."""
        self.schedule(-self.scheduled)


@dataclass(eq=False, slots=True)
class Sequence:
    """``id`` rises in the order of arrival; all requests for one answer have the same. ``priority`` only rises, to
    infinity once the sequence has waited too long. ``leader`` is an earlier sequence with the same prompt: this one
    starts from the leader's pages once the prompt is computed. ``client`` identifies the sender. ``resumes``: its
    answer has begun already, in an earlier round or before it was preempted. ``images`` are those of the prompt.
    """

    id: int
    prompt: Items[int]
    params: SequenceParams = PLAIN
    priority: float = 0
    leader: Sequence | None = None
    client: str = ""
    resumes: bool = False
    images: Items[PromptImage] = ()

    state: Literal["waiting", "running", "finished"] = WAITING
    # None if the sequence ended before its answer was complete.
    finish_reason: FinishReason | None = None
    # All known tokens: the prompt, then what has been read back from the device.
    tokens: list[int] = field(init=False)
    # The same as the prefix cache compares them: placeholders of different images differ. Without images, ``tokens``.
    keys: list[int] = field(init=False)
    # What it holds of each cache kind while it runs, and the nodes of its full pages in the prefix cache.
    tables: list[Any] = field(default_factory=list)
    path: list[Node] = field(default_factory=list)
    # Up to here, its tokens are those of other sequences in the cache.
    branch: int = 0
    # Positions whose keys and values are in the pages, or will be once all open steps are done.
    computed: int = 0
    # Pages of known tokens that it gave back as drafts were refused, until its next row computes these again; None if
    # it gave back none. They follow its own pages, and hold what they held until the next step.
    rewound: list[int] | None = None
    # Sampled tokens that have not been read back.
    in_flight: int = 0
    # Tokens of the answer that have been read back.
    generated: int = 0
    # Tokens of the prompt that were in a cache when the sequence started.
    cached_tokens: int = 0
    # The slot that holds its sampled token, penalties, bias and mask on the device; -1 unless it is running.
    slot: int = -1
    # The step in which it arrived, and the last step that had rows of it (-1 for none).
    arrival_step: int = 0
    last_step: int = -1
    # Between the scheduler's `hold` and `release`: it gets no rows.
    is_held: bool = False
    # Its drafts that were checked, and those that were right.
    drafted: int = 0
    accepted: int = 0
    # The steps that sampled tokens of its answer.
    passes: int = 0
    # Guesses at its next tokens; the next step checks them and clears the list.
    drafts: list[int] = field(default_factory=list)
    prompt_logprobs: PromptLogprobRows = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.keys = prompt_keys(self.tokens, self.images) if self.images else self.tokens
        self.prompt_logprobs = PromptLogprobRows(self.params.prompt_logprobs)

    @property
    def adapter(self) -> str | None:
        return self.params.adapter

    @property
    def prompt_keys(self) -> Items[int]:
        """Those of the prompt's tokens."""
        return self.keys[: len(self.prompt)] if self.images else self.prompt

    def append(self, token_id: int) -> None:
        """Add a token of the answer that was read back."""
        self.tokens.append(token_id)
        if self.keys is not self.tokens:
            self.keys.append(token_id)
        self.generated += 1

    @property
    def length(self) -> int:
        """Tokens, including those in flight."""
        return len(self.tokens) + self.in_flight

    @property
    def missing(self) -> int:
        """Positions to compute before the next token can be sampled: 1 while it decodes."""
        return len(self.tokens) + self.in_flight - self.computed

    @property
    def max_cached(self) -> int:
        """How many of the known tokens may come from a cache: the logits of the others are needed."""
        return len(self.tokens) - 1 - self.prompt_logprobs.pending

    def steps_waited(self, step_number: int) -> int:
        """How many steps ago it arrived, or had a row."""
        return 0 if self.is_held else step_number - max(self.arrival_step, self.last_step)

    def is_ready(self, context: int) -> bool:
        """Whether more positions can be computed now."""
        params = self.params
        if params.max_tokens is not None and self.generated + self.in_flight >= params.max_tokens:
            return False
        if params.prefill_end is not None and self.computed >= params.prefill_end:
            return False
        return self.computed < context and not self.is_held and not (params.lockstep and self.in_flight > 0)

    def is_complete(self, context: int) -> bool:
        """Whether all of its tokens are there, or no position is left at which to compute the last one."""
        params = self.params
        if params.max_tokens is not None and self.generated >= params.max_tokens:
            return True
        return len(self.tokens) > context and params.context_shift is None

    def take_drafts(self, limit: int) -> tuple[int, ...]:
        """The first ``limit`` drafts, fewer near the end of the answer; the others are dropped."""
        if self.params.max_tokens is not None:
            limit = min(limit, self.params.max_tokens - self.generated - 1)
        drafts, self.drafts = tuple(self.drafts[: max(0, limit)]), []
        return drafts


def by_rank(sequence: Sequence) -> tuple[float, int]:
    """Sort key: by priority, then by arrival."""
    return -sequence.priority, sequence.id


def by_turn(sequence: Sequence) -> tuple[float, int, int]:
    """Sort key for prompts: by priority, then by the last step that had rows of them."""
    return -sequence.priority, sequence.last_step, sequence.id
