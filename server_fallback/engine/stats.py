"""Counters and gauges of an engine, for metrics."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.compiler.errors import NearfarError

from .batch_stats import BatchStats


@dataclass(slots=True)
class Counts:
    """Counters of the engine's thread; see `EngineStats`."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    overhead_seconds: float = 0.0
    recoveries: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. ``running`` and ``waiting`` are requests; ``kv_usage`` is the share of pages that running ones use, 0
    to 1, and ``kv_waste`` the share of the positions in these pages that hold no token.

    All others count from the start. ``prefix_queries`` are the prompts' tokens, ``prefix_hits`` those that were in a
    cache. ``computed_tokens`` are positions that the device computed, ``generated_tokens`` those of answers.
    ``drafted_tokens`` are guesses that were checked, ``accepted_tokens`` those that were right. ``recoveries``: device
    failures that the engine survived; ``failure``: the one that ended it, after which every request fails.
    ``restarts`` are those of the engine's process, and ``silent_seconds`` is the time since its last heartbeat.

    ``overhead_seconds`` is the time of the engine's own code in all steps: wall time of its thread, including waits for
    the masks of constrained answers, without drafting, the runner's calls and waits for the device; and for delivery,
    on that thread and on the event loops, processor time, because it runs while the device works. What the callers do
    with their tokens is not included. ``batches`` are those of an encoder engine, which has no pages.
    """

    running: int
    waiting: int
    kv_usage: float
    kv_waste: float
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    computed_tokens: int
    generated_tokens: int
    steps: int
    overhead_seconds: float
    drafted_tokens: int
    accepted_tokens: int
    recoveries: int
    failure: NearfarError | None = None
    restarts: int = 0
    silent_seconds: float = 0.0
    batches: BatchStats | None = None

    @property
    def overhead_seconds_per_step(self) -> float:
        """0 before the first step."""
        return self.overhead_seconds / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """The share of guesses that were right; 0 if none was checked."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0
