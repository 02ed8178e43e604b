"""The configuration of an engine, and of its scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.compiler.runtime.batch import Limits

from .model import TokenModel
from .speculation import Speculation


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``max_tokens`` positions a step, ``max_sequences`` running at once. The pages must hold at least ``context``
    tokens.

    ``max_rows`` sampled rows a step, None for one per sequence; the rows beyond that can check drafts. A sequence that
    had no row for ``patience_steps`` steps goes before all others from then on, in the order of arrival; None lets it
    wait.
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

    ``lookahead``: how many steps are submitted before the first of them is read; 1 prepares a step only when the one
    before it is done. ``patience_steps``: see `SchedulerConfig`. ``speculation``: how tokens are guessed, None for no
    guesses. ``max_mask_wait_seconds``: how long one step waits at most for the masks of constrained answers; those that
    are not ready by then miss the step.
    """

    max_waiting: int = 256
    lookahead: int = 2
    patience_steps: int | None = 256
    speculation: Speculation | None = None
    max_mask_wait_seconds: float = 0.02


def scheduler_config(limits: Limits, num_pages: int, model: TokenModel, patience_steps: int | None) -> SchedulerConfig:
    """For a runner with these limits and pages."""
    return SchedulerConfig(
        page_size=model.page_size,
        pages=num_pages,
        max_tokens=limits.tokens,
        max_sequences=min(limits.sequences, limits.rows),
        context=model.context,
        max_rows=limits.rows,
        patience_steps=patience_steps,
    )
