"""Steps as batches: equal to the results of plain loops over rows and positions, for any rows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hash_model import STOP, VOCAB
from scheduler_traces import HashDevice

from nearfar.compiler.ir.pages import STATE_SLOTS
from nearfar.compiler.ir.sampling import BIAS, COUNTS, FLAT, IN_PROMPT, MASK, Sampling, Settings, draw_at
from nearfar.compiler.runtime.batch import WINDOW_INPUTS, Array, Batch
from nearfar.compiler.runtime.page_groups import PageGroup
from nearfar.server_fallback.engine.config import SchedulerConfig
from nearfar.server_fallback.engine.resolved_sampling import ResolvedSampling, resolve_sampling
from nearfar.server_fallback.engine.scheduler import Scheduler
from nearfar.server_fallback.engine.sequence import Sequence, SequenceParams
from nearfar.server_fallback.engine.slot_sampling import SlotSampling
from nearfar.server_fallback.engine.step import Step
from nearfar.server_fallback.engine.step_batch import step_batch

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.7, top_p=0.9, seed=(1 << 32) - 1),
    Sampling(temperature=1.5, top_k=3, min_p=0.1, repetition_penalty=1.2, seed=7),
    Sampling(frequency_penalty=0.5, logit_bias={3: 1.5}),
]


def plain_batch(
    step: Step, page_size: int, samplings: dict[Sequence, ResolvedSampling], masked: set[int]
) -> dict[str, list[Any]]:
    """The definition of each input, row by row and position by position."""
    found: dict[str, list[Any]] = {
        **{
            name: []
            for name in (
                "token_ids",
                "positions",
                "slots",
                "page_ids",
                "window_slots",
                "window_page_ids",
                "sample_rows",
                "sample_slots",
                "sample_settings",
                "adapters",
                "state_slots",
            )
        },
        "seq_starts": [0],
        "page_indptr": [0],
        "window_page_indptr": [0],
    }
    for row in step.rows:
        sequence, sampling = row.sequence, samplings[row.sequence]
        known = [*sequence.tokens, *row.drafts]
        for position in range(row.start, row.start + row.length):
            found["token_ids"].append(known[position] if position < len(known) else -1 - sequence.slot)
            found["positions"].append(position)
            found["adapters"].append(sequence.params.adapter_slot)
        found["seq_starts"].append(len(found["token_ids"]))
        *page_tables, state = sequence.tables
        if row.state is None:
            page_tables.append(state)
        else:
            # A row reads the snapshot if that is of the state before it.
            found["state_slots"].append([state.source if state.length == row.start else state.slot, state.slot])
        for prefix, table in zip(("", "window_"), page_tables, strict=False):
            pages = table.pages
            positions = range(row.start, row.start + row.length)
            found[f"{prefix}slots"] += [
                pages[position // page_size] * page_size + position % page_size for position in positions
            ]
            found[f"{prefix}page_ids"] += pages
            found[f"{prefix}page_indptr"].append(len(found[f"{prefix}page_ids"]))
        for index in range(row.num_sampled):
            found["sample_rows"].append(len(found["token_ids"]) - row.num_sampled + index)
            if index < row.prompt_logprobs:
                found["sample_slots"].append([-1, 0])
                token_id = sequence.tokens[row.start + row.length - row.num_sampled + index + 1]
                draw = float(np.float32((token_id + 0.5) / VOCAB))
                found["sample_settings"].append(list(Settings(temperature=float(np.float32(FLAT)), draw=draw)))
                continue
            mask = MASK if sequence.slot in masked else 0
            found["sample_slots"].append([-1 if row.drafts else sequence.slot, sampling.flags | mask])
            place = sequence.generated + sequence.in_flight - 1 + index - row.prompt_logprobs
            found["sample_settings"].append([np.float32(value) for value in sampling.settings(place)])
    return found


def require_equal(batch: Batch, expected: dict[str, list[Any]]) -> None:
    declared = (WINDOW_INPUTS if batch.window else frozenset()) | {STATE_SLOTS}
    assert (batch.state_slots is None) == (not expected["state_slots"])
    for name, array in batch.arrays(declared).items():
        assert array.dtype == (np.float32 if name == "sample_settings" else np.int32)
        assert array.flags.writeable
        found = array.tolist()
        if name == "sample_settings":
            # A greedy row ignores its random number.
            draw = [row[4] if row[0] > 0 else 0.0 for row in found]
            found = [[*row[:4], drawn, *row[5:]] for row, drawn in zip(found, draw, strict=True)]
        assert found == expected[name], name


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_equals_that_of_plain_loops_over_its_rows(seed: int) -> None:
    chosen = random.Random(seed)
    page_size, max_sequences = chosen.choice([1, 2, 4, 16]), chosen.randint(1, 6)
    pages = -(-48 // page_size) + 40
    groups = [PageGroup(pages), PageGroup(pages, 7)][: chosen.randint(1, 2)]
    rows, states = max_sequences + chosen.randint(0, 12), chosen.choice([0, max_sequences, max_sequences + 3])
    config = SchedulerConfig(page_size, groups, 24, max_sequences, 48, rows, states=states)
    scheduler, device = Scheduler(config), HashDevice(config)
    samplings: dict[Sequence, ResolvedSampling] = {}
    slots = SlotSampling(max_sequences, VOCAB, lambda *_: None)
    open_steps: list[tuple[Step, Any]] = []
    kinds = set[str]()
    for number in range(80):
        if chosen.random() < 0.4:
            logprobs = chosen.choice([0, 0, 3, 9])
            params = SequenceParams(
                chosen.randint(1, 12),
                frozenset({STOP}),
                lockstep=chosen.random() < 0.5,
                prompt_logprobs=logprobs,
                adapter_slot=chosen.choice([-1, -1, 0, 1]),
            )
            sequence = Sequence(number, [chosen.randint(1, VOCAB - 1) for _ in range(chosen.randint(1, 30))], params)
            samplings[sequence] = resolve_sampling(chosen.choice(SAMPLINGS), answered=chosen.randint(0, 3))
            scheduler.add(sequence)
        for sequence in scheduler.running:
            if sequence.params.lockstep and sequence.in_flight == 0 and sequence.missing == 1:
                sequence.drafts = [chosen.randint(1, VOCAB - 1) for _ in range(chosen.randint(0, 4))]
        step = scheduler.next()
        if step is not None:
            for sequence in step.admitted:
                slots.assign(sequence.slot, samplings[sequence], sequence.prompt, [])
            masked = {row.sequence.slot for row in step.rows if chosen.random() < 0.2}
            for row in step.rows:
                slots.set_mask(row.sequence.slot, np.zeros(1, np.int32) if row.sequence.slot in masked else None)
            batch = step_batch(step, page_size, slots, alternatives=True, logprobs=False)
            require_equal(batch, plain_batch(step, page_size, samplings, masked))
            assert (batch.alternatives, batch.logprobs) == (True, False)
            kinds |= {"drafts" for row in step.rows if row.drafts} | {
                "in flight" for token_id in batch.token_ids if token_id < 0
            }
            kinds |= {"prompt" for row in step.rows if row.prompt_logprobs > 0} | {
                "unsampled" for row in step.rows if row.num_sampled == 0
            }
            open_steps.append((step, device.taken(step)))
        while open_steps and (len(open_steps) > 1 or step is None):
            done, compute = open_steps.pop(0)
            scheduler.commit(done, compute())
    assert "in flight" in kinds
    assert "prompt" in kinds


def test_the_states_of_a_slot_are_written_for_each_sequence_that_starts_in_it() -> None:
    writes: list[tuple[str, int, Array]] = []
    slots = SlotSampling(2, VOCAB, lambda name, slot, values: writes.append((name, slot, values)))
    sampling = resolve_sampling(Sampling(temperature=1, presence_penalty=1, logit_bias={3: 1.5}, seed=5))
    slots.assign(1, sampling, [2, 2, 4], [4])
    slots.set_mask(1, np.array([6], np.int32))
    assert [(name, slot) for name, slot, _ in writes] == [("token_counts", 1), ("logit_bias", 1), ("token_mask", 1)]
    assert writes[0][2].tolist() == [0, 0, IN_PROMPT, 0, IN_PROMPT + 1, *[0] * (VOCAB - 5)]
    assert writes[1][2].tolist() == [0, 0, 0, 1.5, *[0] * (VOCAB - 4)]
    sample_slots, settings = slots.rows(np.array([1, 0], np.int32), np.array([4, 0], np.int32))
    assert sample_slots.tolist() == [[1, COUNTS | BIAS | MASK], [0, 0]]
    assert settings[0, 4] == np.float32(draw_at(5, 4))
    # The next sequence in the slot starts without them.
    slots.assign(1, resolve_sampling(Sampling()), [2], [])
    assert slots.rows(np.array([1], np.int32), np.array([0], np.int32))[0].tolist() == [[1, 0]]
    assert len(writes) == 3


def test_numbers_drawn_for_many_rows_at_once_are_those_drawn_one_by_one() -> None:
    chosen = np.random.default_rng(0)
    seeds, indices = chosen.integers(0, 1 << 32, 5000), chosen.integers(0, 1 << 31, 5000)
    expected = [draw_at(int(seed), int(index)) for seed, index in zip(seeds, indices, strict=True)]
    assert draw_at(seeds, indices).tolist() == expected
