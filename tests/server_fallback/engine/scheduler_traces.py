"""Runs a scheduler over the hash model as tests/conformance/scheduler.json describes, and checks invariants after each
step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hash_model import STOP, VOCAB, fold, next_token

from nearfar.compiler.ir.sampling import DEFAULT_SAMPLING
from nearfar.compiler.runtime.page_groups import PageGroup, pages_of_sequence
from nearfar.server_fallback.engine.config import SchedulerConfig
from nearfar.server_fallback.engine.images import PromptImage
from nearfar.server_fallback.engine.pages import Pages
from nearfar.server_fallback.engine.resolved_sampling import resolve_sampling
from nearfar.server_fallback.engine.scheduler import Scheduler
from nearfar.server_fallback.engine.sequence import Sequence, SequenceParams
from nearfar.server_fallback.engine.speculation import Guess
from nearfar.server_fallback.engine.step import Row, Step

# The key of the pictures of requests, which differ in their lengths alone.
PICTURE = "ab" * 32


@dataclass(slots=True)
class HashDevice:
    """Pages of token ids, which an adapter changes, and states that are hashes of all tokens so far. A step is computed
    when it is committed, from the tables at the time when it was built. The pages must contain all tokens that each row
    attends to. All rows of a step read their states before any row writes one.
    """

    config: SchedulerConfig
    # The contents of the pages, by group.
    cells: list[list[int]] = field(init=False)
    # The hash in each slot, and the number of its tokens.
    states: list[tuple[int, int]] = field(init=False)
    # The token that each slot sampled last.
    sampled: dict[int, int] = field(default_factory=dict)
    # For each sequence, the tokens whose positions have been computed.
    computed: dict[Sequence, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cells = [[-1] * (group.pages * self.config.page_size) for group in self.config.groups]
        self.states = [(-1, -1)] * self.config.states

    def taken(self, step: Step) -> Callable[[], list[int]]:
        """The step as it was built; calling the result computes it."""
        rows = [
            (
                row,
                row.sequence.slot,
                [list(table.pages) for table in row.sequence.tables[: len(self.cells)]],
                row.state,
                list(row.sequence.tokens),
            )
            for row in step.rows
        ]

        def compute() -> list[int]:
            for cells, pairs in zip(self.cells, step.copies, strict=False):
                self.copy(cells, pairs)
            token_ids = []
            before = list(self.states)
            for row, slot, tables, pair, tokens in rows:
                known = tokens + list(row.drafts)
                shift = shift_of(row.sequence.params.adapter)
                end = row.start + row.length
                read = self.computed.setdefault(row.sequence, [])
                read[: len(known)] = [token + shift for token in known]
                del read[end:]
                if len(read) < end:
                    read.append(self.sampled[slot] + shift)
                assert len(read) == end
                for cells, pages, group in zip(self.cells, tables, self.config.groups, strict=True):
                    self.compute(cells, pages, group.window, row, read)
                value, count = (0, 0) if row.start == 0 else (fold(0, read[: row.start]), row.start)
                if pair is not None:
                    if row.start > 0:
                        value, count = before[pair[0]]
                    assert count == row.start, f"slot {pair[0]} has the state after {count} tokens, not {row.start}"
                    self.states[pair[1]] = fold(value, read[row.start : end]), end

                def sampled(length: int, value: int = value, row: Row = row, read: list[int] = read) -> int:
                    return fold(value, read[row.start : length]) % VOCAB

                for length in range(end - row.prompt_logprobs - row.sample + 1, end - row.sample + 1):
                    token_ids.append(sampled(length))
                if row.sample:
                    token_ids += [sampled(length) for length in range(end - len(row.drafts), end + 1)]
                    self.sampled[slot] = token_ids[-1]
            return token_ids

        return compute

    def copy(self, cells: list[int], pairs: list[tuple[int, int]]) -> None:
        size = self.config.page_size
        for source, destination in pairs:
            cells[destination * size : (destination + 1) * size] = cells[source * size : (source + 1) * size]

    def compute(self, cells: list[int], pages: list[int], window: int | None, row: Row, read: list[int]) -> None:
        """Write a row's tokens, and check that the pages contain those that the row attends to."""
        size = self.config.page_size
        slots = [pages[position // size] * size + position % size for position in range(len(read))]
        for position in range(row.start, len(read)):
            cells[slots[position]] = read[position]
        first = 0 if window is None else max(0, row.start - window + 1)
        assert [cells[slot] for slot in slots[first:]] == read[first:]


def shift_of(adapter: str | None) -> int:
    """The value that an adapter adds to the tokens in pages, because its keys and values differ."""
    return 0 if adapter is None else 100 + len(adapter)


def config_of(
    *, pages: int, window: int | None = None, window_pages: int | None = None, **other: Any
) -> SchedulerConfig:
    """A configuration in the form of the JSON: without ``window_pages``, the only group has the window."""
    groups = [PageGroup(pages, window if window_pages is None else None)]
    if window_pages is not None:
        groups.append(PageGroup(window_pages, window))
    return SchedulerConfig(groups=groups, **other)


def run_trace(
    config: dict[str, Any], requests: list[dict[str, Any]], check: Callable[[Scheduler], None]
) -> dict[str, Any]:
    """The steps and outputs of a trace, in the form of the JSON."""
    own = config_of(**{name: value for name, value in config.items() if name not in ("depth", "budgets")})
    budgets = config.get("budgets", [own.max_tokens])
    scheduler, device = Scheduler(own), HashDevice(own)
    sequences = [
        Sequence(
            id,
            request["prompt"],
            SequenceParams(
                request["max_tokens"],
                frozenset({STOP}),
                lockstep="drafts" in request,
                prompt_logprobs=request.get("prompt_logprobs", 0),
            ),
            request.get("priority", 0),
            images=[PromptImage(offset, length, PICTURE) for offset, length in request.get("pictures", ())],
        )
        for id, request in enumerate(requests)
    ]
    drafts = [list(request.get("drafts", [])) for request in requests]
    open_steps: list[tuple[Step, Callable[[], list[int]]]] = []
    steps: list[dict[str, Any]] = []
    last = max((max(request["at"], request.get("abort") or 0) for request in requests), default=0)
    tick = 0
    while tick <= last or open_steps or scheduler.waiting or scheduler.running:
        for sequence, request in zip(sequences, requests, strict=True):
            if request["at"] == tick:
                scheduler.add(sequence)
            if request.get("abort") == tick and request["at"] < tick:
                scheduler.finish(sequence, "stop")
        while len(open_steps) < config["depth"]:
            for sequence in scheduler.running:
                guess(sequence, drafts[sequence.id], own.context)
            budget = budgets[len(steps) % len(budgets)]
            step = scheduler.next(budget)
            if step is None:
                break
            assert sum(row.length for row in step.rows) <= budget
            open_steps.append((step, device.taken(step)))
            steps.append(record_of(step))
            require_step(scheduler, step)
            check(scheduler)
        if open_steps:
            step, compute = open_steps.pop(0)
            scheduler.commit(step, compute())
        check(scheduler)
        tick += 1
        assert tick < 10_000, "the trace does not end"
    outputs = [
        {"tokens": sequence.tokens[len(sequence.prompt) :], "finish": sequence.finish_reason} for sequence in sequences
    ]
    return {"steps": steps, "outputs": outputs, "scheduler": scheduler}


def guess(sequence: Sequence, turns: list[list[int]], context: int) -> None:
    """Give a sequence its next drafts if it can use any. ``turns`` are used in turn: how many drafts, and how many of
    the first ones are right.
    """
    count, right = turns[0] if turns else (0, 0)
    useful = Guess.of(sequence, resolve_sampling(DEFAULT_SAMPLING), count, context)
    if useful is None:
        return
    turns.append(turns.pop(0))
    sequence.drafts = drafts_of(sequence, useful.most, right)


def drafts_of(sequence: Sequence, count: int, right: int) -> list[int]:
    """``count`` drafts, of which the first ``right`` are the tokens that come next."""
    shift, tokens = shift_of(sequence.params.adapter), list(sequence.tokens)
    for index in range(count):
        token = next_token([token + shift for token in tokens])
        tokens.append(token if index < right else (token + 1) % VOCAB)
    return tokens[len(sequence.tokens) :]


def record_of(step: Step) -> dict[str, Any]:
    record: dict[str, Any] = {
        "rows": [[row.sequence.id, row.start, row.length, int(row.sample)] for row in step.rows],
        "pages": [list(row.sequence.tables[0].pages) for row in step.rows],
        "admitted": [[sequence.id, sequence.cached_tokens] for sequence in step.admitted],
        "preempted": [sequence.id for sequence in step.preempted],
    }
    pairs = [row.state for row in step.rows]
    if len(step.copies) > 1 + (pairs[0] is not None):
        record["window_pages"] = [list(row.sequence.tables[1].pages) for row in step.rows]
    if pairs[0] is not None:
        record["states"] = [list(pair) for pair in pairs if pair is not None]
    if any(row.drafts for row in step.rows):
        record["drafts"] = [list(row.drafts) for row in step.rows]
    prompt_logprobs = [row.prompt_logprobs for row in step.rows]
    return {**record, "prompt_logprobs": prompt_logprobs} if any(prompt_logprobs) else record


def pools_of(scheduler: Scheduler) -> list[Pages]:
    return scheduler.kv.pages


def require_pages(scheduler: Scheduler) -> None:
    """The number of users of each page and slot is right, and no other sequence reads the page that a sequence writes
    next.
    """
    require_states(scheduler)
    size = scheduler.config.page_size
    for group, pool in enumerate(pools_of(scheduler)):
        held = Counter(page for sequence in scheduler.running for page in sequence.tables[group].live)
        users = {page: pool.users[page] for page in range(pool.size) if pool.users[page] > 0}
        assert len(users) + pool.free == pool.size
        assert set(held) <= set(users)
        assert all(count - held[page] in (0, 1) for page, count in users.items())
        assert sum(count - held[page] for page, count in users.items()) == len(pool.nodes)
        assert set(pool.idle) == set(users) - set(held)
        for sequence in scheduler.running:
            table = sequence.tables[group]
            assert len(table.pages) >= -(-sequence.computed // size)
            assert table.dead <= pool.unread(len(sequence.tokens))
            most = pages_of_sequence(pool.window, scheduler.config.context, size, scheduler.config.max_tokens)
            assert len(table.live) <= most
    slots = [sequence.slot for sequence in scheduler.running]
    assert len(set(slots)) == len(slots)
    pages = len(pools_of(scheduler))
    assert not any(table.pages for sequence in scheduler.waiting for table in sequence.tables[:pages])
    assert all(sequence.slot == -1 for sequence in scheduler.waiting)


def require_states(scheduler: Scheduler) -> None:
    """The number of users of each slot is right, and each sequence's own slot is not a snapshot of the cache."""
    states = scheduler.kv.states
    if states is None:
        return
    tables = [sequence.tables[-1] for sequence in scheduler.running]
    assert all(table.slot == table.source == -1 for own in scheduler.waiting for table in own.tables[-1:])
    owned = [table.slot for table in tables if table.slot >= 0]
    assert all(states.users[slot] == 1 and slot not in states.nodes for slot in owned)
    held = Counter([*owned, *(table.source for table in tables if table.source >= 0), *states.nodes])
    assert {slot: users for slot, users in enumerate(states.users) if users > 0} == held
    assert set(states.idle) == {slot for slot in states.nodes if held[slot] == 1}
    snapshots = len(set(held) - set(owned))
    assert 0 <= states.free == states.size - scheduler.config.max_sequences - snapshots
    assert all(node.snapshots[-1] == slot and not node.is_removed for slot, node in states.nodes.items())


def require_step(scheduler: Scheduler, step: Step) -> None:
    """The step stays within its limits, and no other sequence reads what it writes."""
    config = scheduler.config
    assert sum(row.length for row in step.rows) <= config.max_tokens
    assert sum(row.num_sampled for row in step.rows) <= max(config.max_sequences, config.max_rows or 0)
    assert len({row.sequence for row in step.rows}) == len(step.rows) <= config.max_sequences
    assert all(row.length > 0 and row.start + row.length <= config.context for row in step.rows)
    # A sequence that must see each token has at most one in flight.
    assert all(row.sequence.in_flight <= 1 for row in step.rows if row.sequence.params.lockstep)
    # No row reads what another one writes, and none writes a snapshot.
    pairs = [pair for row in step.rows if (pair := row.state) is not None]
    writes = Counter(write for _, write in pairs)
    reads = Counter(read for read, write in pairs if read != write)
    assert not writes.keys() & reads.keys()
    assert all(count == 1 for count in writes.values())
    # A sequence that has just started from another's last page gets a copy before it writes there.
    for group, pool in enumerate(pools_of(scheduler)):
        beginners = [page for sequence in step.admitted for page in sequence.tables[group].live]
        for sequence in (row.sequence for row in step.rows):
            own = sequence.tables[group].pages[min(sequence.computed, len(sequence.tokens)) // config.page_size :]
            assert all(pool.users[page] == 1 or page in beginners for page in own)
