"""A scheduler's step as the batch that the device takes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from nearfar.compiler.runtime.batch import Batch, FloatArray, IntArray, page_tables, ranges, spread
from nearfar.compiler.runtime.placed_features import features_between, rope_positions_between

from .pages import PageTable
from .slot_sampling import SlotSampling
from .step import Step


def step_batch(step: Step, page_size: int, sampling: SlotSampling, *, alternatives: bool, logprobs: bool) -> Batch:
    """To be called before any later commit: a token that has not been read back is named by its slot.

    Rows that check drafts leave no token in their slot, because only the host knows how many drafts are right; nor do
    rows for prompt log-probabilities, which choose the prompt's own tokens.
    """
    sequences, starts, lengths, num_sampled, num_prompt_logprobs, drafts = zip(*step.rows, strict=True)
    seq_starts = np.array([0, *accumulate(lengths)], np.int32)
    positions = ranges(starts, lengths)
    first, *second = (
        page_tables(
            *page_lists([sequence.tables[group].pages for sequence in sequences]), positions, lengths, page_size
        )
        for group, table in enumerate(sequences[0].tables)
        if isinstance(table, PageTable)
    )
    states = [row.state for row in step.rows] if step.rows[0].state is not None else None

    # The last rows of a sequence are sampled; those for its prompt come first. This step's token already counts as in
    # flight.
    first_rows = seq_starts[1:] - np.array(num_sampled, np.int32)
    first_tokens = [sequence.generated + sequence.in_flight - 1 for sequence in sequences]
    if any(num_prompt_logprobs):
        first_tokens = [token - count for token, count in zip(first_tokens, num_prompt_logprobs, strict=True)]
    slots = np.array([sequence.slot for sequence in sequences], np.int32)
    sample_slots, sample_settings = sampling.rows(spread(slots, num_sampled), ranges(first_tokens, num_sampled))
    if any(drafts):
        sample_slots[spread([bool(own) for own in drafts], num_sampled) > 0, 0] = -1
    if any(num_prompt_logprobs):
        is_prompt = ranges([-count for count in num_prompt_logprobs], num_sampled) < 0
        sample_slots[is_prompt] = -1, 0
        own = [token_id for row in step.rows for token_id in row.prompt_tokens]
        sample_settings[is_prompt] = sampling.choosing(own)
    features, feature_rows, seen_rows = features_of(step, seq_starts)
    return Batch(
        token_ids=token_ids_of(step),
        positions=positions,
        slots=first.slots,
        seq_starts=seq_starts,
        page_indptr=first.page_indptr,
        page_ids=first.page_ids,
        sample_rows=ranges(first_rows, num_sampled),
        sample_slots=sample_slots,
        sample_settings=sample_settings,
        adapters=spread([sequence.params.adapter_slot for sequence in sequences], lengths),
        alternatives=alternatives,
        logprobs=logprobs,
        window=second[0] if second else None,
        state_slots=None if states is None else np.array(states, np.int32),
        features=features,
        feature_rows=feature_rows,
        seen_rows=seen_rows,
        rope_positions=rope_positions_of(step),
    )


def features_of(
    step: Step, seq_starts: IntArray
) -> tuple[FloatArray, IntArray, IntArray | None] | tuple[None, None, None]:
    """The features of the step's positions (F, E), the rows of the batch that they replace, and those of pictures; None
    without any.
    """
    placed = [
        (first + offset, features, image.is_sound)
        for row, first in zip(step.rows, seq_starts.tolist(), strict=False)
        for image in row.sequence.images
        for offset, features in features_between([image.placed], row.start, row.start + row.length)
    ]
    if not placed:
        return None, None, None
    rows = [np.arange(first, first + len(features), dtype=np.int32) for first, features, _ in placed]
    seen = [own for own, (_, _, is_sound) in zip(rows, placed, strict=True) if not is_sound]
    every = np.concatenate([features for _, features, _ in placed])
    return every, np.concatenate(rows), np.concatenate(seen) if seen else None


def rope_positions_of(step: Step) -> IntArray | None:
    """The positions (S, 3) by which the step's tokens rotate; None if no sequence has images."""
    if not any(row.sequence.images for row in step.rows):
        return None
    return np.concatenate(
        [
            rope_positions_between((each.grid for each in row.sequence.images), row.start, row.start + row.length)
            for row in step.rows
        ]
    )


def page_lists(tables: Sequence[array[int]]) -> tuple[IntArray, IntArray]:
    """As that of `runtime/batch.py`, for pages in arrays."""
    return np.array([0, *accumulate(map(len, tables))], np.int32), np.frombuffer(bytearray().join(tables), np.int32)


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
