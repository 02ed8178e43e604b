"""The scheduler: which rows of which sequences the device computes next, and in which pages.

Sequences flow in; steps flow out, and for each step that is done its tokens flow back in. It knows neither the device nor texts, and does
the same on every runtime: tests/conformance/scheduler.json holds it to its decisions.

Decoding sequences get a row each in every step; what is left of the step goes to prompts, in chunks and in turn. Steps are handed out
before the tokens of earlier ones are known: a row may stand for "the token sampled last". When pages run out, cached ones go first, then
the sequence of lowest rank gives up its pages and computes them again later (Kwon et al. 2023). No request fails for want of pages.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence as Items
from dataclasses import dataclass

from .config import SchedulerConfig
from .page_pool import PagePool
from .prefix_cache import PrefixCache
from .request import FinishReason
from .sequence import FINISHED, RUNNING, WAITING, Sequence, by_rank, by_turn
from .step import Event, OpenStep, Row, Step


@dataclass(slots=True)
class Beginning:
    """Where a sequence can start: ``computed`` positions, in pages of the cache (``cached``) or of its leader."""

    computed: int
    pages: Items[int]
    cached: bool


class Scheduler:
    """``running`` in the order in which they started, ``waiting`` by rank. It counts preemptions, drafts checked, and those accepted."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = PagePool(config.pages)
        self.cache = PrefixCache(self.pool, config.page_size, beginnings=config.page_size >= config.context)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.preemptions = self.drafted = self.accepted = 0
        # They wait until their leader's prompt is computed.
        self._followers: list[Sequence] = []
        self._slots = list(range(config.max_sequences - 1, -1, -1))
        self._step_number = 0
        self._open_steps = 0
        # What happened since a step was handed out last.
        self._admitted: list[Sequence] = []
        self._preempted: list[Sequence] = []
        # A sequence must give up its pages, for which all its tokens must be known: no step is handed out until all are back.
        self._draining = False

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self._followers)

    @property
    def unfilled(self) -> int:
        """Places in the running sequences' pages that hold no token. May be asked while a step is made, and is a little off then."""
        page_size = self.config.page_size
        return sum(max(0, len(sequence.pages) * page_size - sequence.computed) for sequence in list(self.running))

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its tokens must fit the context, unless it says what makes way."""
        sequence.waits_since = self._step_number
        self._make_room(sequence)
        if leads(sequence.leader):
            self._followers.append(sequence)
        else:
            self._enqueue(sequence)

    def next(self) -> Step | None:
        """The next step, or None: there is nothing to do before another step's tokens are back, or nothing at all."""
        if self._draining and self._open_steps > 0:
            return None
        self._draining = False
        self._release_followers()
        self._promote()
        spare = min(self.config.max_rows or 0, self.config.max_tokens) - self.config.max_sequences
        step = OpenStep(self.config.max_tokens, max(0, spare))
        for sequence in self.running:
            self._make_room(sequence)
        for sequence in sorted(self.running, key=by_rank):
            if sequence.missing == 1:
                self._hand(step, sequence)
        while self._admit(step):
            pass
        handed = {row.sequence for row in step.rows}
        if len(handed) < len(self.running):
            for sequence in sorted((other for other in self.running if other not in handed), key=by_turn):
                self._hand(step, sequence)
        if not step.rows:
            return None
        self._open_steps += 1
        admitted = [sequence for sequence in self._admitted if sequence.state == RUNNING]
        done = Step(self._step_number, step.rows, step.copies, admitted, self._preempted)
        self._admitted, self._preempted = [], []
        self._step_number += 1
        return done

    def commit(self, step: Step, token_ids: Items[int]) -> list[Event]:
        """A step is done: ``token_ids`` are those of its sampled rows, -1 where the device computed none.

        Steps are committed in the order in which they were handed out.
        """
        self._open_steps -= 1
        events: list[Event] = []
        sample = 0
        for row in step.rows:
            if row.num_sampled == 0:
                continue
            first, sample = sample, sample + row.num_sampled
            # A sequence that ended has rows on their way still.
            if row.sequence.state == RUNNING and self._commit_told(row, token_ids[first : first + row.told], first, events) and row.sample:
                self._commit_row(row, token_ids[first + row.told : sample], first + row.told, events)
        return events

    def finish(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """End a sequence, whatever state it is in, and let its pages go. ``reason`` None: before its answer was complete."""
        if sequence.state == FINISHED:
            return
        if sequence.state == RUNNING:
            self.running.remove(sequence)
        else:
            (self._followers if sequence in self._followers else self.waiting).remove(sequence)
        self._leave(sequence)
        sequence.state, sequence.finish_reason = FINISHED, reason

    def reset(self) -> None:
        """What the pages hold is lost: all sequences start again from the tokens that are known. Open steps are not to be committed."""
        for sequence in sorted(self.running, key=by_rank):
            self._suspend(sequence)
        self.cache.clear()
        self._admitted.clear()
        self._open_steps = 0
        self._draining = False

    # --- handing out -----------------------------------------------------------------------------------------------------------

    def _hand(self, step: OpenStep, sequence: Sequence) -> None:
        """Give a sequence its rows, as many as it misses and the step still takes."""
        if sequence.state != RUNNING or not self._is_ready(sequence):
            return
        missing = sequence.missing
        if missing > 1:
            self._adopt(sequence)
        self._unshare(step, sequence)
        start, missing = sequence.computed, sequence.missing
        count = min(missing, step.budget, self.config.context - start)
        count, told = self._tell(step, sequence, count) if sequence.untold else (count, 0)
        if count <= 0 or not self._reserve(step, sequence, start + count):
            return
        sample = count == missing
        if told:
            sequence.untold -= told
            sequence.telling += told
            step.spare = max(0, min(step.spare, self._free_rows(step) - told))
        drafts = self._draft(step, sequence, count) if sequence.drafts and sample else ()
        count += len(drafts)
        step.rows.append(Row(sequence, start, count, sample, drafts, told))
        step.budget -= count
        sequence.computed = start + count
        sequence.last_step = sequence.waits_since = self._step_number
        if sample:
            sequence.in_flight += 1
        self._cache_pages(sequence)

    def _is_ready(self, sequence: Sequence) -> bool:
        """Whether more can be computed now: neither answer nor context is full, and a stepwise sequence has seen its last token."""
        if sequence.max_tokens is not None and sequence.generated + sequence.in_flight >= sequence.max_tokens:
            return False
        return sequence.computed < self.config.context and not (sequence.stepwise and sequence.in_flight > 0)

    def _tell(self, step: OpenStep, sequence: Sequence, count: int) -> tuple[int, int]:
        """Of the next ``count`` positions, as many as the step has sampled rows for, and how many of them tell of the prompt."""
        before = sequence.missing - 1 - sequence.untold
        told = min(count - before, sequence.untold)
        if told <= 0:
            return count, 0
        # The row that is kept for its next token serves as well where that does not come yet.
        free = self._free_rows(step) + 1
        if told + (count == sequence.missing) <= free:
            return count, told
        told = min(told, free)
        return before + told, told

    def _free_rows(self, step: OpenStep) -> int:
        """Rows that may be sampled beside those in the step, and one for each other running sequence."""
        most = self.config.max_rows or self.config.max_sequences
        return most - sum(row.num_sampled for row in step.rows) - (len(self.running) - len(step.rows))

    def _draft(self, step: OpenStep, sequence: Sequence, known: int) -> tuple[int, ...]:
        """Those of a sequence's drafts that are checked behind the ``known`` tokens of its row, in free pages.

        Nobody gives up a page for a guess, not even the cache, unless the guesses are what the sequence is there for.
        """
        end = sequence.computed + known
        pages = len(sequence.pages) + self.pool.free + (self.cache.evictable if sequence.once else 0)
        count = min(len(sequence.drafts), step.spare, step.budget - known, min(self.config.context, pages * self.config.page_size) - end)
        if sequence.max_tokens is not None:
            count = min(count, sequence.max_tokens - sequence.generated - 1)
        drafts = tuple(sequence.drafts[: max(0, count)])
        sequence.drafts = []
        for _ in range(self._pages_for(end + len(drafts)) - len(sequence.pages)):
            if self.pool.free == 0:
                self.cache.evict()
            sequence.pages.append(self.pool.take())
        step.spare -= len(drafts)
        return drafts

    def _admit(self, step: OpenStep) -> bool:
        """Make the best waiting sequence run. False where it has to wait, or none waits."""
        if not self.waiting or step.budget == 0 or self._draining:
            return False
        sequence = self.waiting[0]
        self._make_room(sequence)
        while True:
            beginning = self._beginning(sequence)
            if self._slots and self._has_pages(sequence, beginning):
                del self.waiting[0]
                self._start(sequence, beginning)
                return True
            # Only a more important request takes another's place.
            worst = self._last_of_rank(step)
            if worst is None or worst.priority >= sequence.priority or not self._preempt(worst):
                return False

    def _has_pages(self, sequence: Sequence, beginning: Beginning) -> bool:
        """Whether a sequence's known tokens find pages, beside those that the running ones need for theirs and one token more."""
        # The pool holds a whole context, so one alone always fits.
        if not self.running:
            return True
        promised = sum(max(0, self._pages_for(other.length + 1) - len(other.pages)) for other in self.running)
        needed = promised + self._pages_for(len(sequence.tokens) + 1) - len(beginning.pages)
        # What it starts from is not there to be evicted; of its leader's last page it may need a copy.
        needed += sum(self.pool.users(page) == 1 for page in beginning.pages) if beginning.cached else 1
        return needed <= self.pool.free + self.cache.evictable

    def _beginning(self, sequence: Sequence) -> Beginning:
        """What is there of a sequence's tokens, but for those whose logits are wanted, as always the last one's are."""
        most, leader = sequence.most_cached, sequence.leader
        pages, computed = self.cache.longest(sequence.tokens, most, sequence.adapter, part=sequence.part)
        if leader is not None and leader.state == RUNNING and leader.keep is None and sequence.generated == 0:
            # Of the leader's rows in this very step all are behind its prompt, so what is shared was computed before.
            shared = min(leader.computed, most)
            if shared > computed:
                return Beginning(shared, leader.pages[: self._pages_for(shared)], cached=False)
        return Beginning(computed, pages, cached=True)

    def _start(self, sequence: Sequence, beginning: Beginning) -> None:
        sequence.leader = None
        for page in beginning.pages:
            self.pool.share(page)
            sequence.pages.append(page)
        sequence.computed = beginning.computed
        if sequence.last_step < 0:
            sequence.cached_tokens = beginning.computed
        sequence.slot = self._slots.pop()
        sequence.state = RUNNING
        self.running.append(sequence)
        self._admitted.append(sequence)

    # --- pages -----------------------------------------------------------------------------------------------------------------

    def _adopt(self, sequence: Sequence) -> None:
        """Go on with pages that another sequence with the same beginning has filled in the meantime."""
        page_size, held = self.config.page_size, len(sequence.pages)
        if sequence.computed != held * page_size:
            return
        pages = self.cache.match(sequence.tokens, sequence.most_cached // page_size, sequence.adapter)[held:]
        for page in pages:
            self.pool.share(page)
            sequence.pages.append(page)
        sequence.computed += len(pages) * page_size
        if sequence.generated == 0:
            sequence.cached_tokens += len(pages) * page_size

    def _unshare(self, step: OpenStep, sequence: Sequence) -> None:
        """Make the page that a sequence writes next its own: a copy where there is room for one, else the page is computed again."""
        pages, index = sequence.pages, sequence.computed // self.config.page_size
        if index >= len(pages) or self.pool.users(pages[index]) == 1:
            return
        shared = pages[index]
        # Where the part before it left an unfilled page, it goes on in that one.
        if sequence.part and self.cache.hand_over(shared, unfilled=True):
            return
        if self.pool.free > 0 or self.cache.evict():
            pages[index] = self.pool.take()
            step.copies.append((shared, pages[index]))
        elif self.cache.hand_over(shared):
            return
        else:
            del pages[index:]
            sequence.computed = index * self.config.page_size
        self.cache.release(shared)

    def _reserve(self, step: OpenStep, sequence: Sequence, length: int) -> bool:
        """Find pages for the first ``length`` positions. False where they must wait."""
        missing = self._pages_for(length) - len(sequence.pages)
        while self.pool.free < missing:
            if self.cache.evict():
                continue
            victim = self._last_of_rank(step)
            if victim is None or not self._preempt(victim) or victim is sequence:
                return False
        for _ in range(missing):
            sequence.pages.append(self.pool.take())
        return True

    def _last_of_rank(self, step: OpenStep) -> Sequence | None:
        """Of the running sequences that are not in the step, the last by rank."""
        handed = {row.sequence for row in step.rows}
        return max((sequence for sequence in self.running if sequence not in handed), key=by_rank, default=None)

    def _preempt(self, victim: Sequence) -> bool:
        """Take a sequence's pages and put it back into the queue. False where that must wait for steps on their way."""
        if self._open_steps > 0:
            self._draining = True
            return False
        self._suspend(victim)
        self._preempted.append(victim)
        self.preemptions += 1
        return True

    def _suspend(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._leave(sequence)
        sequence.untold += sequence.telling
        sequence.computed = sequence.in_flight = sequence.telling = 0
        self._enqueue(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Give back pages and slot."""
        self.cache.retire(sequence.place, sequence.tokens[: sequence.computed], sequence.pages, sequence.adapter, part=sequence.part)
        del sequence.pages[:]
        if sequence.slot >= 0:
            self._slots.append(sequence.slot)
        sequence.slot = -1

    def _make_room(self, sequence: Sequence) -> None:
        """Where the context is full and old tokens may go: let half of those go that are not to be kept; the rest is computed again."""
        keep, tokens = sequence.keep, sequence.tokens
        if keep is None or sequence.in_flight > 0 or len(tokens) <= self.config.context:
            return
        while len(tokens) > self.config.context:
            del tokens[keep : keep + -(-(len(tokens) - keep) // 2)]
        self.cache.leave(sequence.place, sequence.pages)
        del sequence.pages[:]
        sequence.computed = 0

    def _cache_pages(self, sequence: Sequence) -> None:
        """Let others use the full pages of known tokens."""
        known = min(sequence.computed, len(sequence.tokens)) // self.config.page_size
        self.cache.insert(sequence.place, sequence.tokens, sequence.pages, known, sequence.adapter)

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.config.page_size)

    # --- tokens that came back -------------------------------------------------------------------------------------------------

    def _commit_told(self, row: Row, token_ids: Items[int], sample: int, events: list[Event]) -> bool:
        """Tell of the prompt's tokens after the told positions. False where the device computed nothing for one."""
        sequence = row.sequence
        first = len(sequence.tokens) - sequence.untold - sequence.telling
        sequence.telling -= row.told
        for index, token_id in enumerate(token_ids):
            if token_id < 0:
                self._fail(sequence, events)
                return False
            events.append(Event("prompt", sequence, sequence.tokens[first + index], sample + index))
        return True

    def _commit_row(self, row: Row, token_ids: Items[int], sample: int, events: list[Event]) -> None:
        """Go on with the tokens of one sequence: the first, and each further one whose draft was the token before it."""
        sequence, drafts = row.sequence, row.drafts
        sequence.in_flight -= 1
        if drafts:
            misses = (index for index, draft in enumerate(drafts) if draft != token_ids[index])
            accepted = next(misses, len(drafts))
            token_ids = token_ids[: accepted + 1]
            # Behind the accepted drafts the pages hold what did not come, to be written over.
            sequence.computed -= len(drafts) - accepted
            self.drafted += len(drafts)
            self.accepted += accepted
        for index, token_id in enumerate(token_ids):
            if token_id < 0:
                self._fail(sequence, events)
                return
            if token_id in sequence.stop_token_ids:
                self.finish(sequence, "stop")
                events.append(Event("finished", sequence))
                return
            sequence.tokens.append(token_id)
            sequence.generated += 1
            self._cache_pages(sequence)
            events.append(Event("token", sequence, token_id, sample + index))
            if self._is_complete(sequence) or (sequence.once and index == len(token_ids) - 1):
                self.finish(sequence, "length")
                events.append(Event("finished", sequence))
                return

    def _fail(self, sequence: Sequence, events: list[Event]) -> None:
        self.cache.forget(sequence.place, sequence.pages)
        del sequence.pages[:]
        self.finish(sequence, None)
        events.append(Event("failed", sequence))

    def _is_complete(self, sequence: Sequence) -> bool:
        """Whether all tokens are there that were asked for, or no position is left to compute the last one at."""
        if sequence.max_tokens is not None and sequence.generated >= sequence.max_tokens:
            return True
        return len(sequence.tokens) > self.config.context and sequence.keep is None

    # --- the queue -------------------------------------------------------------------------------------------------------------

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.state = WAITING
        insort(self.waiting, sequence, key=by_rank)

    def _release_followers(self) -> None:
        """Queue those whose leader's prompt is computed, or whose leader is gone."""
        for sequence in [follower for follower in self._followers if not leads(follower.leader)]:
            self._followers.remove(sequence)
            self._enqueue(sequence)

    def _promote(self) -> None:
        """Sequences that got no row for too long go first from now on."""
        patience = self.config.patience_steps
        # Looking at all of them in every step is not needed for a bound.
        if patience is None or self._step_number % max(1, patience // 8) > 0:
            return
        late = [
            sequence
            for sequence in (*self.waiting, *self.running)
            if sequence.priority < math.inf and self._step_number - sequence.waits_since >= patience
        ]
        for sequence in late:
            sequence.priority = math.inf
        if late:
            self.waiting.sort(key=by_rank)


def leads(leader: Sequence | None) -> bool:
    """Whether a follower does better to wait: its leader's prompt is still to be computed."""
    return leader is not None and leader.state != FINISHED and leader.generated == 0 and leader.computed < len(leader.prompt)
