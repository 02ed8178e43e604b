"""Drafts from the model's own heads: one more layer, which reads the row of the model's last layer for a token, and the
token after it. The heads run on the model's device, between its steps.

They know row p once token p + 1 is known, so they are a `DraftModel` of the tokens from the second one on. Its runner
runs the bundle's plan "draft", with pages of its own; the rows of the model are in the pages of the sequence. A guess
after the first one reads the heads' own row instead. Once its token is accepted it is computed again from the model's
row, as the heads were trained.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from nearfar.compiler.bundle.manifest import DRAFT
from nearfar.compiler.runtime.batch import Batch, Chunk, Limits, Output
from nearfar.compiler.runtime.page_groups import PageGroup

from .draft_model import Draft, DraftModel
from .model import TokenModel
from .pages import PageTable
from .speculation import Guess
from .step_runner import StepRunner


class RunnerWithHeads(StepRunner, Protocol):
    def submit(self, batch: Batch, plan: str = ...) -> Future[Output]: ...


class HeadsRunner:
    """Implements `DraftRunner` by the plan "draft" of a runner, which its owner closes."""

    def __init__(self, runner: RunnerWithHeads) -> None:
        self._runner = runner

    @property
    def limits(self) -> Limits:
        return self._runner.limits

    @property
    def groups(self) -> Items[PageGroup]:
        return (PageGroup(self.limits.draft_pages),)

    @property
    def device(self) -> str:
        return self._runner.device

    def submit(self, batch: Batch) -> Future[Output]:
        return self._runner.submit(batch, DRAFT)

    def close(self) -> None:
        """The engine closes the runner."""


class DraftHeads(DraftModel):
    first_token = 1

    def __init__(self, runner: RunnerWithHeads, model: TokenModel) -> None:
        super().__init__(HeadsRunner(runner), replace(model, is_recurrent=False))

    @property
    def _reads_guesses_again(self) -> bool:
        """Then the model has a row of its own for each."""
        return True

    def _can_read(self, guess: Guess) -> bool:
        """Whether the model has computed all known tokens but the last one."""
        sequence = guess.sequence
        known = len(sequence.tokens) - self.first_token
        return known > 0 and (sequence.computed >= known or sequence.rewound is not None)

    def _chunk_of(self, guess: Guess, draft: Draft, token_ids: Items[int], start: int, index: int) -> Chunk:
        chunk = super()._chunk_of(guess, draft, token_ids, start, index)
        if index > 0:
            return replace(chunk, kept_rows=[-1 - draft.slot])
        table: PageTable = guess.sequence.tables[0]
        pages, size = [*table.pages, *(guess.sequence.rewound or ())], self.model.page_size
        positions = range(start, start + len(token_ids))
        return replace(chunk, kept_rows=[pages[position // size] * size + position % size for position in positions])
