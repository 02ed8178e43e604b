"""A scheduler's step as the batch that the device takes."""

from __future__ import annotations

from array import array

import numpy as np

from nearfar.compiler.batch import Batch, IntArray
from nearfar.compiler.sampling import GREEDY

from .slot_sampling import SlotSampling
from .step import Step


def step_batch(step: Step, page_size: int, sampling: SlotSampling, *, alternatives: bool, logprobs: bool) -> Batch:
    """To be called before any later commit: a token that has not been read back is named by its slot.

    Rows that check drafts leave no token in their slot, because only the host knows how many drafts are right; nor do rows for prompt
    log-probabilities, which are greedy.
    """
    sequences, *columns, drafts = zip(*step.rows, strict=True)
    starts, lengths, num_sampled, num_prompt_logprobs = np.array(columns, np.int32)
    slots = np.array([sequence.slot for sequence in sequences], np.int32)
    page_indptr = offsets(np.array([len(sequence.pages) for sequence in sequences], np.int32))
    page_ids = np.frombuffer(b"".join([sequence.pages for sequence in sequences]), np.int32)
    seq_starts = offsets(lengths)
    owners = owners_of(lengths)
    positions = np.arange(seq_starts[-1], dtype=np.int32) + (starts - seq_starts[:-1])[owners]
    pages = page_ids[page_indptr[:-1][owners] + positions // page_size]

    # The last positions of each sequence are sampled. ``places`` counts them from the first token of the answer: a prompt's are negative.
    samplers = owners_of(num_sampled)
    ends = offsets(num_sampled)
    places = np.arange(ends[-1], dtype=np.int32) - (ends[:-1] + num_prompt_logprobs)[samplers]
    sample_rows = (seq_starts[1:] - num_sampled + num_prompt_logprobs)[samplers] + places
    # The row of this step already counts as in flight.
    next_indices = np.array([sequence.generated + sequence.in_flight - 1 for sequence in sequences], np.int32)
    sample_slots, sample_settings = sampling.rows(slots[samplers], next_indices[samplers] + places)
    if any(drafts):
        sample_slots[np.array(list(map(bool, drafts)))[samplers], 0] = -1
    if num_prompt_logprobs.any():
        sample_slots[places < 0] = -1, 0
        sample_settings[places < 0] = GREEDY
    return Batch(
        token_ids=token_ids_of(step),
        positions=positions,
        slots=pages * page_size + positions % page_size,
        seq_starts=seq_starts,
        page_indptr=page_indptr,
        page_ids=page_ids,
        sample_rows=sample_rows,
        sample_slots=sample_slots,
        sample_settings=sample_settings,
        adapters=np.array([sequence.params.adapter_slot for sequence in sequences], np.int32)[owners],
        alternatives=alternatives,
        logprobs=logprobs,
    )


def token_ids_of(step: Step) -> IntArray:
    """(S,): the known tokens of each row, then its drafts, or the slot that holds the token sampled last."""
    token_ids = array("i")
    for sequence, start, length, _, _, drafts in step.rows:
        tokens = sequence.tokens
        if start < len(tokens):
            token_ids.extend(tokens[start : start + length])
        if drafts:
            token_ids.extend(drafts)
        elif start + length > len(tokens):
            token_ids.append(-1 - sequence.slot)
    return np.frombuffer(token_ids, np.int32)


def offsets(counts: IntArray) -> IntArray:
    """(n + 1,): where each of n groups of so many items starts if they follow each other, and where the last one ends."""
    found = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=found[1:])
    return found


def owners_of(counts: IntArray) -> IntArray | slice:
    """The index that spreads one value of each group over its items, in the order of the groups."""
    return slice(None) if (counts == 1).all() else np.repeat(np.arange(len(counts), dtype=np.int32), counts)
