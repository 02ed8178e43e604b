"""A sequence: one request's tokens, the pages that hold their keys and values, and how far the device is with it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Final, Literal

from .prefix_cache import Place
from .request import FinishReason

WAITING: Final = "waiting"
RUNNING: Final = "running"
FINISHED: Final = "finished"


@dataclass(eq=False, slots=True)
class Sequence:
    """The first fields are the request's, as far as the scheduler goes by it; the others are the scheduler's.

    ``id`` rises with the order of arrival; those that follow each other as parts of one answer have the same. ``max_tokens`` None: as many
    as the context holds. ``keep``: where the context is full, the oldest tokens after the first so many make way; None ends the answer
    there. ``stepwise``: each token must be read before the next can be asked for, as a constraint's mask depends on it. ``once``: it ends
    with what its first sampled row says. ``part``: others with the same id go on where it ends. ``leader`` is an earlier sequence with the
    same prompt, whose pages this one starts from once the prompt is computed. ``adapter`` is the key of its adapter, ``adapter_place``
    where that is on the device. ``untold``: so many of the prompt's last tokens are to be told of, by rows that are not handed out yet;
    fewer than the prompt has, and none with ``keep``.
    """

    id: int
    prompt: Items[int]
    max_tokens: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    # It only rises: to infinity, when the sequence has waited too long.
    priority: float = 0
    keep: int | None = None
    stepwise: bool = False
    once: bool = False
    untold: int = 0
    part: bool = False
    adapter: str | None = None
    adapter_place: int = -1
    leader: Sequence | None = None

    state: Literal["waiting", "running", "finished"] = WAITING
    # None for a sequence that ended before its answer did.
    finish_reason: FinishReason | None = None
    # All tokens that are known: the prompt, and those that came back from the device.
    tokens: list[int] = field(init=False)
    # Pages in the order of the positions that they hold.
    pages: array[int] = field(default_factory=lambda: array("i"))
    place: Place = field(default_factory=Place)
    # Positions whose keys and values are in the pages, or will be once all that was handed out is done.
    computed: int = 0
    # Sampled rows whose token was not read back yet.
    in_flight: int = 0
    # Rows that tell of the prompt and were not read back yet.
    telling: int = 0
    # Tokens of the answer that came back.
    generated: int = 0
    # Of the prompt, the tokens whose keys and values were there at the start.
    cached_tokens: int = 0
    # Its place among the running ones, which names its sampled token and its penalties on the device. -1 while it does not run.
    slot: int = -1
    # The step in which rows of it were last handed out.
    last_step: int = -1
    # The step since which it waits for rows.
    waits_since: int = 0
    # Guesses at what comes next, to be checked in the step in which they are handed out.
    drafts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def length(self) -> int:
        """Tokens, those on their way included."""
        return len(self.tokens) + self.in_flight

    @property
    def missing(self) -> int:
        """Positions that the next token waits for; 1 while it decodes."""
        return len(self.tokens) + self.in_flight - self.computed

    @property
    def most_cached(self) -> int:
        """How many of the known tokens may come from a cache: not the last one, and none whose row tells of the prompt."""
        return len(self.tokens) - 1 - self.untold


def by_rank(sequence: Sequence) -> tuple[float, int]:
    """Sorts by priority, then by arrival."""
    return -sequence.priority, sequence.id


def by_turn(sequence: Sequence) -> tuple[float, int, int]:
    """Sorts prompts by priority, then by who waited longest for a turn."""
    return -sequence.priority, sequence.last_step, sequence.id
