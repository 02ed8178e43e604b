"""The configuration of an engine, and of its scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from .speculation import Speculation


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``max_tokens`` positions a step, ``max_sequences`` running at once. The pages must hold at least ``context`` tokens.

    ``max_rows`` sampled rows a step, None for one per sequence; the rows beyond that can check drafts. A sequence that had no row for
    ``patience_steps`` steps goes before all others from then on, in the order of arrival; None lets it wait.
    """

    page_size: int
    pages: int
    max_tokens: int
    max_sequences: int
    context: int
    max_rows: int | None = None
    patience_steps: int | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """``max_waiting`` requests can be queued beside those that the runner computes at once; more are refused.

    ``lookahead``: how many steps are submitted before the first of them is read; 1 prepares a step only when the one before it is done.
    ``patience_steps``: see `SchedulerConfig`. ``speculation``: how tokens are guessed, None for no guesses.
    """

    max_waiting: int = 256
    lookahead: int = 2
    patience_steps: int | None = 256
    speculation: Speculation | None = None
