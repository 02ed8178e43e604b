"""How an engine is to work: what its owner chooses, and what the scheduler goes by."""

from __future__ import annotations

from dataclasses import dataclass

from .speculation import Speculation


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``max_tokens`` positions a step, ``max_sequences`` running at once. The pages must hold at least ``context`` tokens.

    ``max_rows`` sampled rows a step, None for one a sequence; what is beyond that serves to check drafts. A sequence that got no row for
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
    """``max_waiting`` requests are queued beside those that the runner takes at once; more are refused.

    ``lookahead``: steps handed to the device before the first of them is read; 1 prepares a step only when the one before it is done.
    ``patience_steps``: see `SchedulerConfig`. ``speculation``: how tokens are guessed, None for not at all.
    """

    max_waiting: int = 256
    lookahead: int = 2
    patience_steps: int | None = 256
    speculation: Speculation | None = None
