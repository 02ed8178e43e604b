"""The scheduler: decides which positions of which sequences each step computes, and in which pages.

It knows neither the device nor text, and decides the same in every runtime: tests/conformance/scheduler.json holds it
to its decisions.

Every decoding sequence gets a row in each step; the rest of the step's budget goes to prompts, in chunks and in turn.
Steps are built before the tokens of earlier ones are known: a row may continue from "the token sampled last". When
pages run out, cached ones are evicted first; then the running sequence of the lowest rank is preempted, and computed
again later (Kwon et al. 2023). No request fails for lack of pages.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Items
from itertools import chain

from .config import SchedulerConfig
from .images import end_outside_images
from .kv_cache import KvCache
from .request import FinishReason
from .sequence import FINISHED, RUNNING, Sequence, by_rank, by_turn
from .step import Event, OpenStep, Row, Step
from .waiting_queue import WaitingQueue, promote_overdue


class Scheduler:
    """``running`` is ordered by rank, ``waiting`` by clients' turns and rank.

    Preemptions, checked drafts and accepted ones are counted.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.kv = KvCache(config)
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue()
        self.preemptions = self.drafted = self.accepted = 0
        self._slots = list(range(config.max_sequences - 1, -1, -1))
        self._max_rows = config.max_rows or config.max_sequences
        self._max_drafts = max(0, min(config.max_rows or 0, config.max_tokens) - config.max_sequences)
        self._step_number = 0
        self._open_steps = 0
        # Since the last step.
        self._admitted: list[Sequence] = []
        self._preempted: list[Sequence] = []
        # A sequence must be preempted, but steps are open: no further step is built until they are committed.
        self._draining = False
        # A sequence whose next image did not fit the last step: the next one begins with it.
        self._cramped: Sequence | None = None

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its tokens must fit the context, unless it has a context shift."""
        sequence.arrival_step = self._step_number
        self._shift_context(sequence)
        # The first token of a prompt has no log-probability.
        sequence.prompt_logprobs.pending = min(sequence.prompt_logprobs.pending, len(sequence.tokens) - 1)
        self.waiting.add(sequence)

    def next(self, budget: int | None = None) -> Step | None:
        """The next step, or None: open steps must be committed first, or there is nothing to do.

        ``budget``: its positions at most, enough for a row of each sequence, for its drafts, and for an image that is
        read as a whole; by default ``max_tokens``. Pages choose it by what suits their device.
        """
        if self._draining and self._open_steps > 0:
            return None
        self._draining = False
        self._order()
        step = OpenStep(self._step_number, budget or self.config.max_tokens, self._max_drafts)
        self._decode(step)
        self._admit(step)
        self._prefill(step)
        return self._close(step) if step.rows else None

    def commit(self, step: Step, token_ids: Items[int]) -> list[Event]:
        """A step is done: ``token_ids`` are those of its sampled rows, -1 if the device computed none.

        Steps are committed in the order in which they were built.
        """
        self._open_steps -= 1
        events: list[Event] = []
        first = 0
        for row in step.rows:
            sequence, num_sampled = row.sequence, row.num_sampled
            # A sequence that has ended may still have rows in open steps.
            if num_sampled > 0 and sequence.state == RUNNING:
                if num_sampled == 1 and row.prompt_logprobs == 0:
                    sequence.in_flight -= 1
                    sequence.passes += 1
                    self._append(sequence, token_ids[first], first, events, is_last=True)
                else:
                    self._commit_row(row, token_ids[first : first + num_sampled], first, events)
            first += num_sampled
        return events

    def finish(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """End a sequence in any state and give up its pages. ``reason`` None: before its answer was complete."""
        if sequence.state == FINISHED:
            return
        if sequence.state == RUNNING:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.state, sequence.finish_reason = FINISHED, reason

    def hold(self, sequence: Sequence) -> None:
        """Give a sequence no rows until it is released, because the mask of its next token is not ready. The browser's
        masks always are.
        """
        sequence.is_held = True

    def release(self, sequence: Sequence) -> None:
        sequence.is_held = False
        # It did not wait for others, so it is not overdue.
        sequence.arrival_step = self._step_number

    def reset(self) -> None:
        """The contents of all pages are lost: every sequence starts again from its known tokens. Open steps must not be
        committed.
        """
        for sequence in list(self.running):
            self._suspend(sequence)
        self.kv.prefixes.clear()
        self._admitted.clear()
        self._open_steps = 0
        self._draining = False

    # --- building a step ---

    def _order(self) -> None:
        """Bring both lists into the order in which they are scheduled."""
        self.waiting.release_followers()
        if promote_overdue(chain(self.waiting, self.running), self._step_number, self.config.patience_steps):
            self.waiting.sort()
            self.running.sort(key=by_rank)

    def _decode(self, step: OpenStep) -> None:
        """Give a row to each sequence whose prompt is computed."""
        decoding: list[Sequence] = []
        for sequence in self.running:
            if sequence.params.context_shift is not None:
                self._shift_context(sequence)
            if sequence.missing == 1:
                decoding.append(sequence)
        cramped, self._cramped = self._cramped, None
        if cramped is not None:
            self._schedule(step, cramped)
        for sequence in decoding:
            self._schedule(step, sequence)

    def _admit(self, step: OpenStep) -> None:
        """Start waiting sequences, in their order, while there is room."""
        while (sequence := self.waiting.head) is not None and step.budget > 0 and not self._draining:
            self._shift_context(sequence)
            if not self._start(step, sequence):
                return

    def _prefill(self, step: OpenStep) -> None:
        """Give the rest of the budget to prompts, in turn."""
        if len(step.rows) < len(self.running):
            for sequence in sorted((sequence for sequence in self.running if not step.has(sequence)), key=by_turn):
                self._schedule(step, sequence)

    def _close(self, step: OpenStep) -> Step:
        self._open_steps += 1
        self._step_number += 1
        admitted = [sequence for sequence in self._admitted if sequence.state == RUNNING]
        preempted, self._admitted, self._preempted = self._preempted, [], []
        return Step(step.rows, self.kv.take_copies(), admitted, preempted)

    def _schedule(self, step: OpenStep, sequence: Sequence) -> None:
        """Give a sequence a row, with as many of its missing positions as fit."""
        if sequence.state != RUNNING or not sequence.is_ready(self.config.context):
            return
        if self._schedule_one(step, sequence):
            return
        self.kv.prepare(sequence)
        start, missing, prompt_logprobs = sequence.computed, sequence.missing, sequence.prompt_logprobs
        # Positions before the first one that is sampled: for log-probabilities of the prompt, or for the next token.
        unsampled = missing - 1 - prompt_logprobs.pending
        end = sequence.params.prefill_end
        count = min(missing, step.budget, (self.config.context if end is None else end) - start)
        if prompt_logprobs.pending > 0:
            count = min(count, unsampled + 1 + self._free_rows(step))
        if count > 1 and self.kv.keeps_states:
            count = self.kv.row_end(sequence, start + count) - start
        if self.config.whole_images and count > 0:
            count = end_outside_images(sequence.images, start, start + count) - start
            if count == 0:
                self._cramped = sequence
        if count <= 0 or not self._reserve(step, sequence, start + count):
            return
        sample, num_sampled = count == missing, max(0, count - unsampled)
        logprob_rows = num_sampled - sample
        if logprob_rows > 0:
            prompt_logprobs.schedule(logprob_rows)
            step.draft_budget = max(0, min(step.draft_budget, self._free_rows(step) - logprob_rows))
        drafts = self._take_drafts(step, sequence, count) if sample and sequence.drafts else ()
        step.add(Row(sequence, start, count + len(drafts), num_sampled + len(drafts), logprob_rows, drafts))
        sequence.computed = start + count + len(drafts)
        sequence.in_flight += sample
        sequence.last_step = step.number
        self.kv.cache_pages(sequence)

    def _schedule_one(self, step: OpenStep, sequence: Sequence) -> bool:
        """Schedule a sequence's next position, if it alone is missing and the sequence can write to it.

        Nearly all rows are like this, and `_schedule` would do the same in three times the time.
        """
        start = sequence.computed
        if (
            sequence.missing != 1
            or step.budget <= 0
            or sequence.drafts
            or sequence.prompt_logprobs.pending > 0
            or not self.kv.can_write(sequence, start)
        ):
            return False
        step.rows.append(Row(sequence, start, 1, 1))
        step.budget -= 1
        step.num_sampled += 1
        sequence.computed = start + 1
        sequence.in_flight += 1
        sequence.last_step = step.number
        self.kv.cache_pages(sequence)
        return True

    def _free_rows(self, step: OpenStep) -> int:
        """Rows that can be sampled beside those in the step and one for each running sequence that is not in it."""
        return self._max_rows - step.num_sampled - (len(self.running) - len(step.rows))

    def _take_drafts(self, step: OpenStep, sequence: Sequence, count: int) -> tuple[int, ...]:
        """The drafts that the step checks after ``count`` positions of a sequence. They may evict cached pages at
        most.
        """
        end = sequence.computed + count
        drafts = sequence.take_drafts(min(step.draft_budget, step.budget - count, self.config.context - end))
        while not self.kv.reserve(sequence, end + len(drafts)):
            drafts = drafts[:-1]
        step.draft_budget -= len(drafts)
        return drafts

    def _start(self, step: OpenStep, sequence: Sequence) -> bool:
        """Start the first waiting sequence, preempting those of lower priority. False if it has to wait."""
        while True:
            prefix = self.kv.find_prefix(sequence)
            # One sequence alone always fits: the pages hold a whole context.
            if self._slots and (not self.running or self.kv.fits(sequence, prefix, self.running)):
                self.waiting.admit(sequence)
                self.kv.start(sequence, prefix)
                self._run(sequence)
                return True
            victim = self._lowest_rank(step)
            if victim is None or victim.priority >= sequence.priority or not self._preempt(victim):
                return False

    def _reserve(self, step: OpenStep, sequence: Sequence, length: int) -> bool:
        """Find pages for the first ``length`` positions, preempting other sequences if necessary. False if this one has
        to wait.
        """
        while not self.kv.reserve(sequence, length):
            victim = self._lowest_rank(step)
            if victim is None or not self._preempt(victim) or victim is sequence:
                return False
        return True

    def _lowest_rank(self, step: OpenStep) -> Sequence | None:
        """The last running sequence by rank that is not in the step."""
        return next((sequence for sequence in reversed(self.running) if not step.has(sequence)), None)

    def _preempt(self, victim: Sequence) -> bool:
        """Stop a sequence and queue it again. False if open steps must be committed first."""
        if self._open_steps > 0:
            self._draining = True
            return False
        self._suspend(victim)
        self._preempted.append(victim)
        self.preemptions += 1
        return True

    def _shift_context(self, sequence: Sequence) -> None:
        """Drop old tokens of a sequence that has outgrown the context, if it allows that."""
        shift = sequence.params.context_shift
        if shift is not None and sequence.in_flight == 0 and len(sequence.tokens) > self.config.context:
            shift.apply(sequence.tokens, self.config.context)
            self.kv.restart(sequence)

    # --- starting and stopping ---

    def _run(self, sequence: Sequence) -> None:
        sequence.state, sequence.leader, sequence.slot = RUNNING, None, self._slots.pop()
        insort(self.running, sequence, key=by_rank)
        self._admitted.append(sequence)

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.kv.release(sequence)
        self._slots.append(sequence.slot)
        sequence.slot = -1

    def _suspend(self, sequence: Sequence) -> None:
        """Stop a sequence and queue it again, to be computed from its known tokens."""
        self._stop(sequence)
        sequence.resumes = True
        sequence.computed = sequence.in_flight = 0
        sequence.prompt_logprobs.restart()
        self.waiting.add(sequence)

    # --- reading a step ---

    def _commit_row(self, row: Row, token_ids: Items[int], first: int, events: list[Event]) -> None:
        """Read the sampled tokens of a row. ``first`` is the index of the first of them among the step's."""
        sequence = row.sequence
        if row.prompt_logprobs > 0:
            sequence.prompt_logprobs.commit(row.prompt_logprobs)
            if min(token_ids[: row.prompt_logprobs]) < 0:
                self._fail(sequence, events)
                return
            events.extend(
                Event("prompt_logprob", sequence, token_id, sample)
                for sample, token_id in enumerate(row.prompt_tokens, first)
            )
            token_ids, first = token_ids[row.prompt_logprobs :], first + row.prompt_logprobs
        if not token_ids:
            return
        sequence.in_flight -= 1
        sequence.passes += 1
        if row.drafts:
            accepted = row.num_accepted(token_ids)
            self.kv.rewind(sequence, sequence.computed - (len(row.drafts) - accepted))
            for counts in (self, sequence):
                counts.drafted += len(row.drafts)
                counts.accepted += accepted
            token_ids = token_ids[: accepted + 1]
        last = first + len(token_ids) - 1
        for sample, token_id in enumerate(token_ids, first):
            if not self._append(sequence, token_id, sample, events, is_last=sample == last):
                return

    def _append(self, sequence: Sequence, token_id: int, sample: int, events: list[Event], *, is_last: bool) -> bool:
        """Read a sampled token; ``is_last``: of its row. False if it ends the sequence."""
        params = sequence.params
        if token_id < 0:
            self._fail(sequence, events)
            return False
        if token_id in params.stop_token_ids:
            self._complete(sequence, "stop", events, token_id, sample)
            return False
        sequence.append(token_id)
        self.kv.cache_pages(sequence)
        events.append(Event("token", sequence, token_id, sample))
        ends = token_id in params.last_token_ids
        if ends or (is_last and params.verifies) or sequence.is_complete(self.config.context):
            self._complete(sequence, "stop" if ends else "length", events)
            return False
        return True

    def _complete(
        self, sequence: Sequence, reason: FinishReason, events: list[Event], token_id: int = -1, sample: int = -1
    ) -> None:
        self.finish(sequence, reason)
        events.append(Event("finished", sequence, token_id, sample))

    def _fail(self, sequence: Sequence, events: list[Event]) -> None:
        self.kv.prefixes.discard(sequence)
        self.finish(sequence, None)
        events.append(Event("failed", sequence))
