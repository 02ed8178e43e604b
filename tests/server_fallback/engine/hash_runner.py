"""A runner whose pages contain token ids: it reads a sequence through its page table, as attention does, and computes
the hash model.

Penalties, biases, masks and random numbers influence the answer, which therefore reveals wrong settings of a slot.
Optionally, it works on its own thread, as a device does, or fails. With pages for drafts it has heads, or an assistant:
they read the hash after a token, and the token that follows, from which they know the next one; if they err, about
every fifth guess is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
from hash_model import VOCAB, fold, next_token

from nearfar.compiler.bundle.manifest import DRAFT, GENERATE
from nearfar.compiler.ir.sampling import BIAS, COUNTS, IN_PROMPT, MASK
from nearfar.compiler.runtime.batch import Array, Batch, FloatArray, IntArray
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.inputs import require_states
from nearfar.compiler.runtime.page_groups import PageGroup
from nearfar.compiler.runtime.runner import Limits, Output, done
from nearfar.server_fallback.engine.model import TokenModel

PAGE = 4
MODEL = TokenModel(vocab_size=VOCAB, end_token_ids=frozenset({0}), context=64, page_size=PAGE)


class HashRunner:
    """``fail`` returns the error to raise for a batch, by its number. Tokens in ``broken`` produce NaN logits.
    ``hold`` is called with the number of a step before the step is computed, on the runner's thread if it has one.

    If the limits have ``states``, these are hashes of all tokens so far, from which the next token follows.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        threaded: bool = False,
        step_seconds: float = 0.0,
        fail: Callable[[int], Exception | None] = lambda _: None,
        hold: Callable[[int], object] = lambda _: None,
        broken: int | None = None,
        has_assistant: bool = False,
        errs: bool = False,
    ) -> None:
        assert limits.pages is not None
        self.limits, self.groups, self.device = limits, (PageGroup(limits.pages),), "the hash"
        self.batches: list[Batch] = []
        self.writes: list[tuple[str, int]] = []
        self.copies = 0
        self.closed = False
        self._pool = ThreadPoolExecutor(1) if threaded else None
        self._step_seconds, self._fail, self._hold, self._broken = step_seconds, fail, hold, broken
        self._steps = count()
        self._cells = np.full((limits.pages, PAGE), -1)
        self._sampled = np.full(limits.sequences, -1)
        # The hash in each slot, and the number of its tokens.
        self._hashes = np.full((limits.states or 0, 2), -1)
        # For drafts: the hash after the token of each cell, that of each cell of the heads' pages, and by slot the last
        # guess and the hash before it.
        self._has_assistant, self._errs = has_assistant, errs
        self._kept = np.full((limits.pages if limits.draft_pages else 0, PAGE), -1)
        self._head_cells = np.full((limits.draft_pages or 0, PAGE), -1)
        self._guessed = np.full((limits.sequences, 2), -1)
        self._states: dict[str, Array] = {
            "token_counts": np.zeros((limits.sequences, VOCAB), np.int32),
            "logit_bias": np.zeros((limits.sequences, VOCAB), np.float32),
            "token_mask": np.zeros((limits.sequences, 1), np.int32),
        }

    def submit(self, batch: Batch, plan: str = GENERATE) -> Future[Output]:
        self.batches.append(batch)
        failure = self._fail(len(self.batches) - 1)
        return self._run(self._guess if plan == DRAFT else self._forward, batch, failure)

    def embed(self, batch: Batch) -> FloatArray:
        """For each sampled row: the sum of its sequence's tokens, their number, and the token itself."""
        self.batches.append(batch)
        failure = self._fail(len(self.batches) - 1)
        if failure is not None:
            raise failure
        self._write_tokens(batch)
        texts = [self._tokens(batch, row) for row in batch.sample_rows]
        return np.array([[sum(text), len(text), text[-1]] for text in texts], np.float32).reshape(-1, 3)

    def write_state(self, name: str, slot: int, values: Array) -> None:
        self.writes.append((name, slot))
        own = values.copy()
        self._run(self._states[name].__setitem__, slot, own)

    def copy_pages(self, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        assert group == 0
        self.copies += len(pairs)
        self._run(self._copy, list(pairs))

    def read_pages(self, units: Sequence[Sequence[int]]) -> Future[bytes]:
        assert len(units) == 1 + (len(self._hashes) > 0)
        pages, slots = [list(some) for some in [*units, []][:2]]
        return self._run(lambda: b"".join([self._cells[pages].tobytes(), self._hashes[slots].tobytes()]))

    def write_pages(self, units: Sequence[Sequence[int]], data: bytes) -> None:
        assert len(units) == 1 + (len(self._hashes) > 0)
        self._run(self._write_pages, list(units[0]), list(units[1]) if len(units) > 1 else [], data)

    def _write_pages(self, pages: list[int], slots: list[int], data: bytes) -> None:
        values = np.frombuffer(data, np.int64)
        self._cells[pages] = values[: len(pages) * PAGE].reshape(-1, PAGE)
        self._hashes[slots] = values[len(pages) * PAGE :].reshape(-1, 2)

    def close(self) -> None:
        self.closed = True
        if self._pool is not None:
            self._pool.shutdown()

    def _run(self, call: Callable[..., object], *arguments: object) -> Future[Any]:
        """Run calls in order, on the runner's thread if it has one."""
        if self._pool is not None:
            return self._pool.submit(call, *arguments)
        try:
            return done(call(*arguments))
        except DeviceError as error:
            future: Future[Any] = Future()
            future.set_exception(error)
            return future

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self._cells[destination] = self._cells[source]
            if self._kept.size:
                self._kept[destination] = self._kept[source]

    def _write_tokens(self, batch: Batch) -> None:
        ids = read_ids(batch, self._sampled)
        for slot, token in zip(batch.slots, ids, strict=True):
            self._cells[slot // PAGE, slot % PAGE] = token
        for row, slot in enumerate(batch.slots if self._kept.size else ()):
            # An assistant's model keeps the rows of sampled tokens only.
            if not self._has_assistant or row in batch.sample_rows:
                self._kept[slot // PAGE, slot % PAGE] = fold(0, self._tokens(batch, row))

    def _tokens(self, batch: Batch, row: int) -> list[int]:
        """A row's sequence up to the row, read through the page table."""
        sequence = int(np.searchsorted(batch.seq_starts, row, side="right")) - 1
        pages = batch.page_ids[batch.page_indptr[sequence] : batch.page_indptr[sequence + 1]]
        cells: list[int] = self._cells[pages].reshape(-1)[: batch.positions[row] + 1].tolist()
        return cells

    def _fold_states(self, batch: Batch) -> None:
        """Continue each sequence's state: all are read before any is written."""
        if batch.state_slots is None:
            assert not len(self._hashes)
            return
        require_states(batch.state_slots, len(self._hashes))
        before = self._hashes.tolist()
        for index, (read, write) in enumerate(batch.state_slots.tolist()):
            start, end = batch.seq_starts[index : index + 2].tolist()
            position, tokens = int(batch.positions[start]), self._tokens(batch, end - 1)
            value, count = before[read] if position > 0 else (0, 0)
            assert (value, count) == (fold(0, tokens[:position]), position), f"slot {read} has another state"
            self._hashes[write] = fold(value, tokens[position:]), len(tokens)

    def _forward(self, batch: Batch, failure: Exception | None) -> Output:
        self._hold(next(self._steps))
        if self._step_seconds:
            time.sleep(self._step_seconds)
        self._write_tokens(batch)
        # After a failure of the device, results contain invalid values.
        if failure is not None:
            self._cells[:] = -1
            self._hashes[:] = -1
            raise failure
        self._fold_states(batch)
        rows = zip(batch.sample_rows.tolist(), batch.sample_slots.tolist(), batch.sample_settings.tolist(), strict=True)
        token_ids = np.array(
            [self._sample(self._tokens(batch, row), slot[0], slot[1], settings) for row, slot, settings in rows],
            np.int32,
        )
        return self._output(batch, token_ids)

    def _output(self, batch: Batch, token_ids: IntArray) -> Output:
        count = len(token_ids) if batch.alternatives else 0
        return Output(
            next_token_ids=token_ids,
            token_logprobs=-token_ids.astype(np.float32) * batch.logprobs,
            top_token_ids=np.tile(np.arange(VOCAB, dtype=np.int32), (count, 1)),
            top_logprobs=np.zeros((count, VOCAB), np.float32),
            read_logits=lambda: np.zeros((len(token_ids), VOCAB), np.float32),
        )

    def _guess(self, batch: Batch, failure: Exception | None) -> Output:
        """The guesses of the sampled rows. The heads' pages must hold the row before each row."""
        if failure is not None:
            raise failure
        assert batch.kept_rows is not None
        hashes, ids = [], read_ids(batch, self._guessed[:, 0])
        for row, (kept, position) in enumerate(zip(batch.kept_rows.tolist(), batch.positions.tolist(), strict=True)):
            sequence = int(np.searchsorted(batch.seq_starts, row, side="right")) - 1
            pages = batch.page_ids[batch.page_indptr[sequence] : batch.page_indptr[sequence + 1]]
            before = int(self._kept.flat[kept] if kept >= 0 else self._guessed[-1 - kept, 1])
            hashes.append(fold(before, [ids[row]]))
            if self._has_assistant:
                own = pages[position // PAGE] * PAGE + position % PAGE
                assert kept in (own, -1 - batch.sample_slots[sequence, 0]), f"the kept row is not that of {position}"
                continue
            cells = self._head_cells[pages].reshape(-1)
            assert position == 0 or cells[position - 1] == before, f"the heads have another row before {position}"
            self._head_cells[pages[position // PAGE], position % PAGE] = hashes[-1]
        token_ids = []
        for row, (slot, _), settings in zip(
            batch.sample_rows.tolist(), batch.sample_slots.tolist(), batch.sample_settings.tolist(), strict=True
        ):
            wrong = self._errs and hashes[row] % 5 == 0
            token_ids.append((drawn(hashes[row], settings) + wrong) % VOCAB)
            self._guessed[slot] = token_ids[-1], hashes[row]
        return self._output(batch, np.array(token_ids, np.int32))

    def _sample(self, tokens: list[int], slot: int, flags: int, settings: list[float]) -> int:
        if self._broken in tokens:
            return -1
        token, repetition = drawn(next_token(tokens), settings), settings[5]
        if flags & COUNTS:
            counts = self._states["token_counts"][slot]
            token += int(repetition * int(counts.sum() % 97)) + int((counts >= IN_PROMPT).sum())
        if flags & BIAS:
            token += int(self._states["logit_bias"][slot].sum())
        token = int(token) % VOCAB
        if flags & MASK:
            mask = int(self._states["token_mask"][slot][0])
            token = next(id for id in ((token + step) % VOCAB for step in range(VOCAB)) if mask >> id & 1)
        if slot >= 0:
            self._sampled[slot] = token
            if flags & COUNTS:
                self._states["token_counts"][slot][token] += 1
        return token


def read_ids(batch: Batch, sampled: npt.NDArray[np.int_]) -> list[int]:
    """What the rows of a batch read: their tokens, of which those of slots are ``sampled``, or the features of
    images.
    """
    ids = [int(sampled[-1 - token]) if token < 0 else int(token) for token in batch.token_ids]
    if batch.features is not None and batch.feature_rows is not None:
        for row, feature in zip(batch.feature_rows.tolist(), batch.features[:, 0].tolist(), strict=True):
            ids[row] = int(feature)
    return ids


def drawn(value: int, settings: Sequence[float]) -> int:
    """What follows from a hash, and unless an answer is greedy from its random number."""
    temperature, draw = settings[0], settings[4]
    return value % VOCAB + (int(draw * VOCAB) if temperature else 0)


class LayeredHashRunner(HashRunner):
    """Has two parts of pages: one that is read before the step that is in flight is computed, and the rest."""

    EARLY = b"early"

    def read_layers(self, units: Sequence[Sequence[int]]) -> list[Future[bytes]]:
        early: Future[bytes] = Future()
        early.set_result(self.EARLY)
        return [early, self.read_pages(units)]

    def write_layers(self, units: Sequence[Sequence[int]], data: bytes) -> None:
        assert data.startswith(self.EARLY)
        self.write_pages(units, data.removeprefix(self.EARLY))
