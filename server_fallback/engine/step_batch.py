"""A step as the device takes it. A scheduler's step, and how each sequence samples, flow in; a batch flows out."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

from nearfar.compiler.ir.sampling import GREEDY, Settings
from nearfar.compiler.runtime.batch import Batch, FloatArray, IntArray

from .resolved_sampling import ResolvedSampling
from .sequence import Sequence
from .step import Step

# Of a sampled row: how it samples, and its flags.
SamplingOf = Callable[[Sequence], tuple[ResolvedSampling, int]]


def step_batch(step: Step, page_size: int, sampling_of: SamplingOf, *, alternatives: bool, logprobs: bool) -> Batch:
    """To be made before any later commit: a token that is not read yet is named by its slot.

    Rows that check drafts leave no token in their slot, for only the host knows which of theirs counts; nor do those that tell of a prompt.
    """
    token_ids, positions, slots, page_ids = array("i"), array("i"), array("i"), array("i")
    seq_starts, page_indptr = array("i", [0]), array("i", [0])
    sample_rows, sample_slots, settings = array("i"), array("i"), array("f")
    adapters = array("i")
    for row in step.rows:
        sequence, start, end = row.sequence, row.start, row.start + row.count
        pages, tokens = sequence.pages, sequence.tokens
        token_ids.extend(tokens[start:end])
        if row.drafts:
            token_ids.extend(row.drafts)
        elif end > len(tokens):
            token_ids.append(-1 - sequence.slot)
        positions.extend(range(start, end))
        for index in range(start // page_size, -(-end // page_size)):
            first, last = max(start - index * page_size, 0), min(end - index * page_size, page_size)
            slots.extend(range(pages[index] * page_size + first, pages[index] * page_size + last))
        adapters.extend([sequence.adapter_place] * row.count)
        seq_starts.append(len(token_ids))
        page_ids.extend(pages)
        page_indptr.append(len(page_ids))
        first = len(token_ids) - row.num_sampled
        for told in range(row.told):
            sample_rows.append(first + told)
            sample_slots.extend((-1, 0))
            settings.extend(GREEDY)
        if not row.sample:
            continue
        sampling, flags = sampling_of(sequence)
        # This step's own row counts as on its way already.
        index = sequence.generated + sequence.in_flight - 1
        for draft in range(len(row.drafts) + 1):
            sample_rows.append(len(token_ids) - 1 - len(row.drafts) + draft)
            sample_slots.extend((-1 if row.drafts else sequence.slot, flags))
            settings.extend(sampling.settings(index + draft))
    return Batch(
        token_ids=ints(token_ids),
        positions=ints(positions),
        slots=ints(slots),
        seq_starts=ints(seq_starts),
        page_indptr=ints(page_indptr),
        page_ids=ints(page_ids),
        sample_rows=ints(sample_rows),
        sample_slots=ints(sample_slots).reshape(-1, 2),
        sample_settings=floats(settings).reshape(-1, len(Settings._fields)),
        adapters=ints(adapters),
        alternatives=alternatives,
        logprobs=logprobs,
    )


def ints(values: array[int]) -> IntArray:
    """The same memory as an array of numpy."""
    return np.frombuffer(values, np.int32) if values else np.zeros(0, np.int32)


def floats(values: array[float]) -> FloatArray:
    return np.frombuffer(values, np.float32) if values else np.zeros(0, np.float32)
