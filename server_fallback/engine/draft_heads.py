"""Drafts from the model's own heads: one more layer, which reads the row of the model's last layer for a token, and the
token after it. The heads run on the model's device, between its steps.

They know row p once token p + 1 is known, so they are a `DraftModel` of the tokens from the second one on. Its runner
runs the bundle's plan "draft", with pages of its own; the rows of the model are in the pages of the sequence. A guess
after the first one reads the heads' own row instead. Once its token is accepted it is computed again from the model's
row, as the heads were trained. In the place of the embeddings of placeholders they read the features of pictures and
sounds, as the model does.

An assistant (Gemma 4) has no keys and values, but reads those of the model: of known tokens it needs the last one only,
and it computes all guesses at the position of the model's last row.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from nearfar.compiler.bundle.manifest import DRAFT, Manifest
from nearfar.compiler.runtime.batch import FEATURES, Batch, Chunk
from nearfar.compiler.runtime.page_groups import PageGroup
from nearfar.compiler.runtime.placed_features import features_between, rope_positions_between
from nearfar.compiler.runtime.runner import Limits, Output

from .draft_model import Draft, DraftModel
from .model import TokenModel
from .pages import PageTable
from .sequence import Sequence
from .speculation import Guess
from .step_runner import StepRunner


class RunnerWithHeads(StepRunner, Protocol):
    def submit(self, batch: Batch, plan: str = ...) -> Future[Output]: ...


class HeadsRunner:
    """Implements `DraftRunner` by the plan "draft" of a runner, which its owner closes. ``groups``: those of its own
    pages.
    """

    def __init__(self, runner: RunnerWithHeads, groups: Items[PageGroup]) -> None:
        self._runner, self.groups = runner, groups

    @property
    def limits(self) -> Limits:
        return self._runner.limits

    @property
    def device(self) -> str:
        return self._runner.device

    def submit(self, batch: Batch) -> Future[Output]:
        return self._runner.submit(batch, DRAFT)

    def close(self) -> None:
        """The engine closes the runner."""


class DraftHeads(DraftModel):
    first_token = 1

    def __init__(self, runner: RunnerWithHeads, model: TokenModel, *, reads_images: bool = True) -> None:
        self.reads_images = reads_images
        super().__init__(HeadsRunner(runner, self._groups(runner)), replace(model, is_recurrent=False))

    @staticmethod
    def _groups(runner: RunnerWithHeads) -> Items[PageGroup]:
        return (PageGroup(runner.limits.draft_pages),)

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
        sequence, stop = guess.sequence, start + len(token_ids)
        rows = self._kept_rows(sequence, draft, range(start, stop), index)
        if not sequence.images:
            return replace(chunk, kept_rows=rows)
        # A row is at the position of the row that it reads, and its token is the next one.
        pictures, sounds = (
            features_between(
                (image.placed for image in sequence.images if image.is_sound == is_sound),
                start + self.first_token,
                stop + self.first_token,
            )
            for is_sound in (False, True)
        )
        turns = rope_positions_between((image.grid for image in sequence.images), start, stop)
        return replace(chunk, kept_rows=rows, features=pictures, heard=sounds, rope_positions=turns)

    def _kept_rows(self, sequence: Sequence, draft: Draft, positions: range, index: int) -> list[int]:
        """The rows that are read at these positions: the model's, or the own one for a guess behind another."""
        if index > 0:
            return [-1 - draft.slot]
        table: PageTable = sequence.tables[0]
        pages, size = [*table.pages, *(sequence.rewound or ())], self.model.page_size
        return [pages[position // size] * size + position % size for position in positions]


class DraftAssistant(DraftHeads):
    """The model keeps the rows of sampled tokens only; a guess from another one may be wrong, like any guess."""

    @staticmethod
    def _groups(runner: RunnerWithHeads) -> Items[PageGroup]:  # noqa: ARG004
        return ()

    def _draft_of(self, guess: Guess) -> Draft | None:
        draft = super()._draft_of(guess)
        if draft is not None:
            draft.computed = len(guess.sequence.tokens) - self.first_token - 1
        return draft

    def _chunk_of(self, guess: Guess, draft: Draft, token_ids: Items[int], start: int, index: int) -> Chunk:  # noqa: ARG002
        sequence = guess.sequence
        position = len(sequence.tokens) - self.first_token - 1
        pages, *window = (table.pages for table in sequence.tables)
        rows = self._kept_rows(sequence, draft, range(position, position + 1), index)
        return Chunk(token_ids, position, pages, window_pages=window[0] if window else None, kept_rows=rows)


def heads_of(runner: RunnerWithHeads, manifest: Manifest) -> DraftHeads:
    """What drafts the tokens of a bundle with a plan "draft": the model's heads, or its assistant."""
    model = TokenModel.of(manifest)
    if manifest.has_assistant:
        return DraftAssistant(runner, model)
    # Those of an earlier compiler read text only.
    sees = model.feature_size == 0 or FEATURES in manifest.plan(DRAFT).inputs
    return DraftHeads(runner, model, reads_images=sees)
