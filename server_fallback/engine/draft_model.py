"""Drafts from a smaller model with the same tokens.

The small model has its own pages and states. It samples with the large model's settings and random numbers, so that
both choose the same token as often as possible.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

from nearfar.compiler.ir.sampling import Settings
from nearfar.compiler.runtime.batch import Batch, Chunk, make_batch
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.page_groups import PageGroup, longest_sequence
from nearfar.compiler.runtime.runner import Limits, Output

from .model import TokenModel
from .pages import Pages, PageTable
from .sequence import Sequence
from .speculation import Guess
from .step_runner import device_errors


@dataclass(eq=False, slots=True)
class Draft:
    """What the small model has of a sequence: its pages hold ``computed`` known tokens, followed by most of
    ``guessed``. ``tables``: what it holds of each cache kind.
    """

    slot: int
    tables: list[PageTable]
    computed: int = 0
    guessed: list[int] = field(default_factory=list)

    def learn(self, tokens: Items[int], first: int) -> None:
        """Count accepted guesses as computed, of the tokens from the ``first`` one on; the others will be overwritten.
        The last guess was not computed.
        """
        for guess in self.guessed[:-1]:
            # The last token is always computed again, because its logits are needed.
            if first + self.computed + 1 >= len(tokens) or tokens[first + self.computed] != guess:
                break
            self.computed += 1
        self.guessed = []


class DraftRunner(Protocol):
    """The part of `StepRunner` that is needed here."""

    @property
    def limits(self) -> Limits: ...

    @property
    def groups(self) -> Items[PageGroup]: ...

    @property
    def device(self) -> str: ...

    def submit(self, batch: Batch) -> Future[Output]: ...

    def close(self) -> None: ...


class DraftModel:
    """A `Drafter` that owns its runner. The runner needs pages for all sequences that speculate at once. A model with
    states needs two slots for each: for the state after its known tokens, and after its guesses.

    ``first_token``: how many tokens of a sequence it does not read.
    """

    first_token = 0
    # Another model's tower makes other features.
    reads_images = False

    def __init__(self, runner: DraftRunner, model: TokenModel) -> None:
        self.model = model
        self._runner, self._page_size = runner, model.page_size
        self._context = longest_sequence(runner.groups, model.context, model.page_size, runner.limits.tokens)
        self.reset()

    def require_states(self) -> None:
        """Raises RequestError if the small model has too few slots for states."""
        limits = self._runner.limits
        states, needed = limits.states or 0, 2 * limits.sequences
        if self.model.is_recurrent and states < needed:
            raise RequestError(
                f"the draft model's runner has {states} slots for states; open it with {needed}, two for each sequence"
            )

    def draft(self, guesses: Items[Guess]) -> None:
        """A sequence gets no drafts until the small model has read it completely; it reads one batch of prompts at a
        time.
        """
        room = self._runner.limits.tokens
        chunks: list[Chunk] = []
        ready: list[tuple[Guess, Draft]] = []
        for guess in guesses:
            tokens, first = guess.sequence.tokens, self.first_token
            readable = len(tokens) - first
            guess.sequence.drafts = []
            known = self._drafts.get(guess.sequence)
            if known is not None and known.computed == readable:
                # Nothing was checked since the last guesses.
                guess.sequence.drafts = known.guessed[: guess.most]
                continue
            draft = self._draft_of(guess) if room > 0 and self._can_read(guess) else None
            if draft is None:
                continue
            if self._reads_guesses_again:
                draft.guessed = []
            draft.learn(tokens, first)
            part = tokens[first + draft.computed : first + draft.computed + room]
            start = draft.computed
            room -= len(part)
            draft.computed += len(part)
            if draft.computed == readable:
                chunks.append(self._chunk(guess, draft, part, start, 0))
                ready.append((guess, draft))
            else:
                chunks.append(self._chunk_of(guess, draft, part, start, 0))
        if not chunks:
            return
        # Sampled tokens stay on the device until all steps are submitted, unless the model gathers rows for them.
        futures = [self._submit(chunks)]
        for index in range(1, max((guess.most for guess, _ in ready), default=0)):
            going = [(guess, draft) for guess, draft in ready if guess.most > index]
            previous = self._previous(futures[-1], [draft for guess, draft in ready if guess.most > index - 1])
            futures.append(
                self._submit(
                    [
                        self._chunk(guess, draft, [previous[draft.slot]], draft.computed + index - 1, index)
                        for guess, draft in going
                    ],
                )
            )
        for index, future in enumerate(futures):
            token_ids = self._result(future)
            for (guess, draft), token_id in zip(
                [pair for pair in ready if pair[0].most > index], token_ids, strict=True
            ):
                # After a token that the small model could not compute, there are no further drafts.
                if token_id >= 0 and len(guess.sequence.drafts) == index:
                    guess.sequence.drafts.append(token_id)
                    draft.guessed = list(guess.sequence.drafts)

    def forget(self, sequence: Sequence) -> None:
        draft = self._drafts.pop(sequence, None)
        if draft is not None:
            self._slots.append(draft.slot)
            for kind in self._kinds:
                kind.drop(draft)

    def reset(self) -> None:
        self._kinds = [
            Pages(index, group, self._page_size, self._context, self._runner.limits.tokens)
            for index, group in enumerate(self._runner.groups)
        ]
        self._slots = list(range(min(self._runner.limits.sequences, self._runner.limits.rows)))
        self._drafts: dict[Sequence, Draft] = {}

    def close(self) -> None:
        self._runner.close()

    @property
    def _reads_guesses_again(self) -> bool:
        """Whether guesses are read once more when they are known: a state cannot go back to the last accepted one."""
        return self.model.is_recurrent

    def _can_read(self, guess: Guess) -> bool:  # noqa: ARG002
        """Whether the known tokens of a sequence can be read now."""
        return True

    def _draft_of(self, guess: Guess) -> Draft | None:
        """A sequence's state, with pages for its next guesses; None if there is no room for them."""
        length = len(guess.sequence.tokens) - self.first_token + guess.most - 1
        draft = self._drafts.get(guess.sequence)
        if length > self._context or (draft is None and not self._slots):
            return None
        new = draft is None
        draft = draft or Draft(self._slots[-1], [PageTable() for _ in self._kinds])
        start = draft.computed
        # The tokens of a long prompt are read in several batches.
        end = min(length, start + self._runner.limits.tokens + guess.most - 1)
        for kind in self._kinds:
            kind.trim(draft, start)
        if any(kind.missing(draft, start, end, end) > kind.free for kind in self._kinds):
            return None
        for kind in self._kinds:
            kind.reserve(draft, start, end, end)
        if new:
            self._drafts[guess.sequence] = draft
            self._slots.pop()
        return draft

    def _chunk(self, guess: Guess, draft: Draft, token_ids: list[int], start: int, index: int) -> Chunk:
        """A chunk whose last row is sampled like the answer's token number ``index`` from now on."""
        settings = Settings(*guess.sampling.settings(guess.sequence.generated + index))
        chunk = self._chunk_of(guess, draft, token_ids, start, index)
        return replace(chunk, sample=[len(token_ids) - 1], settings=settings, slot=draft.slot)

    def _chunk_of(
        self,
        guess: Guess,  # noqa: ARG002
        draft: Draft,
        token_ids: Items[int],
        start: int,
        index: int,
    ) -> Chunk:
        """A chunk of known tokens, or with an ``index`` above 0 of the guess number ``index``."""
        pages, *window = (table.pages for table in draft.tables)
        state = None
        if self.model.is_recurrent:
            guessed = draft.slot + self._runner.limits.sequences
            state = (guessed if index > 1 else draft.slot, guessed if index > 0 else draft.slot)
        return Chunk(token_ids, start, pages, window_pages=window[0] if window else None, state=state)

    def _submit(self, chunks: list[Chunk]) -> Future[Output]:
        with device_errors(self._runner.device):
            return self._runner.submit(make_batch(chunks, self._page_size))

    def _previous(self, future: Future[Output], drafts: Items[Draft]) -> dict[int, int]:
        """For each slot, the token that a step sampled, as an id or as a reference to the slot on the device."""
        if not self.model.gathers:
            return {draft.slot: -1 - draft.slot for draft in drafts}
        # The id of a token that could not be computed is -1; it ends the draft, whatever follows it.
        token_ids = (max(token_id, 0) for token_id in self._result(future))
        return dict(zip((draft.slot for draft in drafts), token_ids, strict=True))

    def _result(self, future: Future[Output]) -> list[int]:
        with device_errors(self._runner.device):
            token_ids: list[int] = future.result().next_token_ids.tolist()
        return token_ids
