"""A scheduler's step as the batch that the device takes."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from nearfar.compiler.batch import Batch, IntArray
from nearfar.compiler.sampling import GREEDY

from .slot_sampling import SlotSampling
from .step import Step

Ints = npt.NDArray[np.int64]


def step_batch(step: Step, page_size: int, sampling: SlotSampling, *, alternatives: bool, logprobs: bool) -> Batch:
    """To be called before any later commit: a token that has not been read back is named by its slot.

    Rows that check drafts leave no token in their slot, because only the host knows how many drafts are right; nor do rows for prompt
    log-probabilities, which are greedy.
    """
    sequences, *columns, all_drafts = zip(*step.rows, strict=True)
    starts, lengths, num_sampled, num_prompt_logprobs = (np.array(column) for column in columns)
    slots = np.array([sequence.slot for sequence in sequences])
    seq_starts = offsets(lengths)
    page_indptr = offsets(np.array([len(sequence.pages) for sequence in sequences]))
    page_ids = np.frombuffer(b"".join([sequence.pages for sequence in sequences]), np.int32)
    owners = np.repeat(np.arange(len(sequences)), lengths)
    positions = np.arange(len(owners)) + (starts - seq_starts[:-1])[owners]
    pages = page_ids[page_indptr[owners] + positions // page_size]

    # The last positions of each sequence are sampled; ``places`` count the tokens of the answer, those of the prompt are below 0.
    samplers = np.repeat(np.arange(len(sequences)), num_sampled)
    places = np.arange(len(samplers)) - (offsets(num_sampled)[:-1] + num_prompt_logprobs)[samplers]
    sample_rows = (seq_starts[1:] - num_sampled + num_prompt_logprobs)[samplers] + places
    # The row that is being scheduled already counts as in flight.
    next_index = np.array([sequence.generated + sequence.in_flight - 1 for sequence in sequences])
    sample_settings = sampling.settings(slots[samplers], next_index[samplers] + places)
    sample_slots = np.stack([slots, sampling.flags(slots)], axis=1).astype(np.int32)[samplers]
    if any(all_drafts):
        sample_slots[np.array([bool(drafts) for drafts in all_drafts])[samplers], 0] = -1
    if num_prompt_logprobs.any():
        sample_slots[places < 0] = -1, 0
        sample_settings[places < 0] = GREEDY
    return Batch(
        token_ids=token_ids_of(step),
        positions=positions.astype(np.int32),
        slots=(pages * page_size + positions % page_size).astype(np.int32),
        seq_starts=seq_starts.astype(np.int32),
        page_indptr=page_indptr.astype(np.int32),
        page_ids=page_ids,
        sample_rows=sample_rows.astype(np.int32),
        sample_slots=sample_slots,
        sample_settings=sample_settings,
        adapters=np.array([sequence.params.adapter_slot for sequence in sequences], np.int32)[owners],
        alternatives=alternatives,
        logprobs=logprobs,
    )


def token_ids_of(step: Step) -> IntArray:
    """The known tokens of each row, then its drafts, or the slot that holds the token sampled last."""
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


def offsets(counts: Ints) -> Ints:
    """(n + 1,): where each of ``counts`` (n,) items starts if they follow each other, and where the last ends."""
    found = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=found[1:])
    return found
