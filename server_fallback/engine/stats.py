"""What an engine did and does, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """What the engine's thread counts up as it goes; see `EngineStats`."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    overhead_seconds: float = 0.0
    recoveries: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. ``running`` and ``waiting`` are requests; ``kv_usage`` is the share of pages that running ones use, 0 to 1, and
    ``kv_waste`` the share of these pages' places that hold no token.

    All others count from the start. ``prefix_queries`` are the prompts' tokens, ``prefix_hits`` those whose keys and values were there.
    ``computed_tokens`` are positions handed to the device, ``generated_tokens`` those that came back and were told. ``overhead_seconds``
    is the time spent in the engine's own code, in all steps: guessing, the runner's calls and waits for the device are not in it.
    ``drafted_tokens`` are guesses that were checked, ``accepted_tokens`` those that were right. ``recoveries``: failures of the device
    after which the engine went on.
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

    @property
    def overhead_seconds_per_step(self) -> float:
        """0 before the first step."""
        return self.overhead_seconds / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """The share of guesses that were right; 0 where none was made."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0
