"""The scheduler under any order of arrivals, steps, results, aborts and losses of the device: every request ends as it
does alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hash_model import STOP, VOCAB, next_token
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_traces import HashDevice, config_of, drafts_of, pools_of, require_pages, require_step, shift_of

from nearfar.compiler.runtime.page_groups import PageGroup, pages_of_sequence
from nearfar.server_fallback.engine.config import SchedulerConfig
from nearfar.server_fallback.engine.pages import PageTable
from nearfar.server_fallback.engine.scheduler import Scheduler
from nearfar.server_fallback.engine.sequence import FINISHED, RUNNING, Sequence, SequenceParams
from nearfar.server_fallback.engine.step import Step

TOKEN = st.integers(1, VOCAB - 1)
# Few prefixes, so that prompts share them.
PROMPTS = st.builds(
    lambda head, tail: [*head, *tail],
    st.sampled_from([[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 9], []]),
    st.lists(TOKEN, min_size=1, max_size=8),
)


def alone(sequence: Sequence, context: int) -> tuple[list[int], str]:
    """The answer to a request that runs alone, and its finish reason."""
    shift = shift_of(sequence.params.adapter)
    tokens = list(sequence.prompt)
    assert sequence.params.max_tokens is not None
    while len(tokens) - len(sequence.prompt) < sequence.params.max_tokens and len(tokens) <= context:
        token = next_token([token + shift for token in tokens])
        if token == STOP:
            return tokens[len(sequence.prompt) :], "stop"
        tokens.append(token)
    return tokens[len(sequence.prompt) :], "length"


class Scheduling(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[Sequence] = []
        self.aborted: set[Sequence] = set()
        # For each sequence, the number of prompt tokens that get a log-probability, and the tokens that have one.
        self.logprobs: dict[Sequence, tuple[int, list[int]]] = {}
        self.open: list[tuple[Step, Callable[[], list[int]]]] = []

    @initialize(
        # None: a page holds the complete context.
        page_size=st.sampled_from([1, 2, 3, 4, None]),
        max_tokens=st.integers(4, 12),
        max_sequences=st.integers(1, 4),
        context=st.integers(8, 32),
        spare_pages=st.integers(0, 12),
        spare_rows=st.integers(0, 6),
        patience=st.sampled_from([None, 3, 20]),
        # The window of all layers, or of the second group.
        window=st.sampled_from([None, 1, 3, 5, 9]),
        mixed=st.booleans(),
        # How many snapshots of states there may be; None for a model without states.
        snapshots=st.sampled_from([None, None, 0, 1, 2, 6]),
    )
    def begin(
        self,
        page_size: int | None,
        max_tokens: int,
        max_sequences: int,
        context: int,
        spare_pages: int,
        spare_rows: int,
        patience: int | None,
        window: int | None,
        mixed: bool,
        snapshots: int | None = None,
    ) -> None:
        page_size = page_size or context
        windows = (None, window) if mixed and window is not None else (window,)
        groups = [
            PageGroup(pages_of_sequence(own, context, page_size, max_tokens) + spare_pages, own) for own in windows
        ]
        states = 0 if snapshots is None else max_sequences + snapshots
        self.config = SchedulerConfig(
            page_size, groups, max_tokens, max_sequences, context, max_sequences + spare_rows, patience, states
        )
        self.scheduler, self.device = Scheduler(self.config), HashDevice(self.config)

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 12),
        priority=st.integers(0, 2),
        adapter=st.sampled_from([None, None, "a"]),
        lockstep=st.booleans(),
        verifies=st.booleans(),
        again=st.booleans(),
        prompt_logprobs=st.sampled_from([0, 0, 1, 3, 20]),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        priority: int,
        adapter: str | None,
        lockstep: bool,
        verifies: bool,
        again: bool,
        prompt_logprobs: int,
    ) -> None:
        """A round of verification may continue the previous one: it then starts from its last page."""
        leader = next(
            (one for one in self.sequences if again and one.state != FINISHED and one.priority >= priority), None
        )
        if leader is not None:
            prompt, adapter = list(leader.prompt), leader.params.adapter
        before = next((one for one in reversed(self.sequences) if one.params.verifies and one.state == FINISHED), None)
        if verifies and before is not None:
            prompt, adapter = list(before.tokens), before.params.adapter
        prompt = prompt[: self.config.context]
        sequence = Sequence(
            len(self.sequences),
            prompt,
            SequenceParams(
                max_tokens,
                frozenset({STOP}),
                lockstep=lockstep or verifies,
                verifies=verifies,
                partial_page=verifies,
                prompt_logprobs=0 if verifies else prompt_logprobs,
                adapter=adapter,
            ),
            priority,
            leader=None if verifies else leader,
        )
        self.logprobs[sequence] = min(sequence.params.prompt_logprobs, len(prompt) - 1), []
        self.sequences.append(sequence)
        self.scheduler.add(sequence)

    @rule(drafts=st.integers(0, 3), right=st.integers(0, 3), budget=st.sampled_from([None, None, 4, 7]))
    def build(self, drafts: int = 0, right: int = 0, budget: int | None = None) -> None:
        """Build a step with ``drafts`` for sequences in lockstep. The first ``right`` drafts are correct."""
        for sequence in self.scheduler.running:
            if sequence.params.lockstep and sequence.in_flight == 0:
                sequence.drafts = drafts_of(sequence, drafts, right)
        most = min(budget or self.config.max_tokens, self.config.max_tokens)
        step = self.scheduler.next(most)
        if step is not None:
            require_step(self.scheduler, step)
            assert sum(row.length for row in step.rows) <= most
            self.open.append((step, self.device.taken(step)))

    @precondition(lambda self: self.open)
    @rule()
    def read(self) -> None:
        step, compute = self.open.pop(0)
        for event in self.scheduler.commit(step, compute()):
            assert event.kind in ("prompt_logprob", "token", "finished")
            if event.kind == "prompt_logprob":
                self.logprobs[event.sequence][1].append(event.token_id)
            elif event.sequence not in self.aborted:
                # All log-probabilities of the prompt precede the answer.
                count, found = self.logprobs[event.sequence]
                assert len(found) == count

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        if sequence.state != FINISHED:
            self.aborted.add(sequence)
            self.scheduler.finish(sequence, None)

    @rule()
    def lose(self) -> None:
        self.open.clear()
        self.scheduler.reset()
        self.device = HashDevice(self.config)
        assert all(pool.free == pool.size for pool in pools_of(self.scheduler))
        assert not any(self.scheduler.kv.states.users if self.scheduler.kv.states else ())

    @invariant()
    def pages_are_accounted_for(self) -> None:
        if hasattr(self, "scheduler"):
            require_pages(self.scheduler)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        turns = 0
        while self.open or self.scheduler.running or self.scheduler.waiting:
            self.build(turns % 4, turns % 3)
            if self.open:
                self.read()
            turns += 1
            assert turns < 2000, "a request never ends"
        for sequence in self.sequences:
            tokens, finish = alone(sequence, self.config.context)
            found = sequence.tokens[len(sequence.prompt) :]
            count, logprobs = self.logprobs[sequence]
            expected = list(sequence.prompt)[len(sequence.prompt) - count :]
            assert logprobs == expected[: len(logprobs) if sequence in self.aborted else count]
            if sequence in self.aborted:
                assert found == tokens[: len(found)]
            elif sequence.params.verifies:
                assert found == tokens[: len(found)]
                assert found or not tokens
            else:
                assert (found, sequence.finish_reason) == (tokens, finish)
        for pool in pools_of(self.scheduler):
            assert pool.free + len(pool.idle) == pool.size
            assert pool.idle == pool.nodes
        states = self.scheduler.kv.states
        if states is not None:
            assert states.idle == states.nodes
            assert len(states.idle) + states.free == states.size - self.config.max_sequences
        for pool in reversed(pools_of(self.scheduler)):
            while pool.idle:
                self.scheduler.kv.prefixes.evict(pool)
            assert pool.free == pool.size
        if states is not None:
            # A snapshot is evicted with its page, or before. A window may end before the page.
            assert not states.nodes or pools_of(self.scheduler)[0].window is not None
            while states.idle:
                self.scheduler.kv.prefixes.evict(states)
            assert not any(states.users)


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=50, stateful_step_count=40, database=None)


def config(**other: Any) -> SchedulerConfig:
    return config_of(**{"page_size": 4, "pages": 32, "max_tokens": 8, "max_sequences": 2, "context": 32, **other})


def request(
    id: int, prompt: list[int], max_tokens: int, priority: float = 0, leader: Sequence | None = None, **params: Any
) -> Sequence:
    return Sequence(id, prompt, SequenceParams(max_tokens, frozenset({STOP}), **params), priority, leader)


def turn(scheduler: Scheduler, device: HashDevice) -> Step | None:
    """Build a step, compute it, and read it."""
    step = scheduler.next()
    if step is not None:
        scheduler.commit(step, device.taken(step)())
    return step


def steps_until_it_runs(patience: int | None) -> int | None:
    """The number of steps that a request of low priority waits while requests of high priority keep arriving; None for
    more than 200.
    """
    own = config(patience_steps=patience)
    scheduler, device = Scheduler(own), HashDevice(own)
    low = request(0, [1, 2], 2, priority=0)
    scheduler.add(low)
    for number in range(200):
        for index in range(2):
            scheduler.add(request(1 + 2 * number + index, [3 + index, number % VOCAB], 3, priority=5))
        turn(scheduler, device)
        if low.last_step >= 0:
            return number
    return None


def test_a_low_priority_waits_for_ever_without_patience_and_not_longer_than_it_with() -> None:
    assert steps_until_it_runs(None) is None
    waited = steps_until_it_runs(16)
    assert waited is not None
    assert 16 <= waited <= 16 + 16 // 8 + 4


def test_a_sequence_that_has_waited_too_long_is_not_put_back_for_the_next_important_one() -> None:
    own = config(max_sequences=1, patience_steps=8)
    scheduler, device = Scheduler(own), HashDevice(own)
    low = request(0, [1, 2], 12, priority=0)
    scheduler.add(low)
    number = 0
    while low.last_step < 0 or low.state == RUNNING:
        number += 1
        scheduler.add(request(number, [3, number % VOCAB], 3, priority=5))
        turn(scheduler, device)
        assert number < 100
    assert low.state == FINISHED
    assert low.tokens[2:] == alone(low, 32)[0]


def test_a_page_that_is_shared_and_not_full_is_copied_before_it_is_written() -> None:
    own = config(max_sequences=3)
    scheduler, device = Scheduler(own), HashDevice(own)
    first = request(0, [1, 2, 3, 4, 5, 6], 4)
    others = [request(id, list(first.prompt), 4, leader=first) for id in (1, 2)]
    for sequence in (first, *others):
        scheduler.add(sequence)
    assert len(scheduler.waiting) == 3
    step = turn(scheduler, device)
    assert step is not None
    assert [row.sequence for row in step.rows] == [first]
    step = turn(scheduler, device)
    assert step is not None
    assert [(row.sequence.id, row.start, row.length) for row in step.rows] == [(0, 6, 1), (1, 5, 1), (2, 5, 1)]
    page = first.tables[0].pages[1]
    assert [copy[0] for copy in step.copies[0]] == [page, page]
    assert len({sequence.tables[0].pages[1] for sequence in (first, *others)}) == 3
    assert {sequence.tables[0].pages[0] for sequence in (first, *others)} == {first.tables[0].pages[0]}
    assert [sequence.cached_tokens for sequence in others] == [5, 5]


class Borrower:
    """Holds pages that are no sequence's."""

    def __init__(self) -> None:
        self.tables = [PageTable()]


def test_without_a_free_page_a_fork_computes_its_last_page_again() -> None:
    own = config(max_sequences=2, pages=4, context=16)
    scheduler, device = Scheduler(own), HashDevice(own)
    first = request(0, [1, 2, 3, 4, 5, 6], 2)
    scheduler.add(first)
    turn(scheduler, device)
    second = request(1, list(first.prompt), 2, leader=first)
    scheduler.add(second)
    # One page of all that are free is lent.
    lent, (pool,) = Borrower(), pools_of(scheduler)
    pool.reserve(lent, 0, 4, 4)
    while first.state != FINISHED or second.state != FINISHED:
        turn(scheduler, device)
    assert first.tokens == second.tokens == [*first.prompt, *alone(first, 16)[0]]


def test_an_adapters_pages_are_its_own() -> None:
    own = config(max_sequences=2, max_tokens=32)
    scheduler, device = Scheduler(own), HashDevice(own)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    for id, adapter in enumerate((None, "a", "a", None)):
        sequence = request(id, prompt, 2, adapter=adapter)
        scheduler.add(sequence)
        while sequence.state != FINISHED:
            turn(scheduler, device)
        assert sequence.cached_tokens == (0 if id < 2 else 8)
        assert sequence.tokens[9:] == alone(sequence, 32)[0]


def test_a_page_that_others_follow_in_a_full_cache_is_continued() -> None:
    machine = Scheduling()
    machine.begin(
        page_size=2, max_tokens=4, max_sequences=1, context=8, spare_pages=0, spare_rows=0, patience=None, window=None,
        mixed=False,
    )  # fmt: skip
    common: dict[str, Any] = {"adapter": None, "again": False, "lockstep": False, "prompt_logprobs": 0}
    machine.add(prompt=[1, 2, 3, 4, 5, 6, 7, 8, 1], max_tokens=1, priority=0, verifies=True, **common)
    machine.add(prompt=[1, 2, 3, 9, 1], max_tokens=2, priority=1, verifies=False, **common)
    machine.teardown()
