"""Decode steps as CUDA graphs: which batches use one, and how a batch is padded to the size of one.

A graph is launched as it was captured, so its scalars and grids are those of its bucket: of sequences, and of the
longest context. The ids, positions and pages, which change from step to step, are data. Padding sequences read and
write a reserved page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nearfar.compiler.ir.pages import KEPT, KEPT_PAGES
from nearfar.compiler.ir.sampling import GREEDY
from nearfar.compiler.runtime.batch import NO_PATCHES, Batch, PageTables, SourceTables

# Each bucket of contexts is twice as long as the previous one.
SHORTEST_CONTEXT = 256


class Bucket(NamedTuple):
    """The properties of one graph: sequences, tokens of context, and whether logits are adjusted, top logprobs are
    returned, and LoRA adapters are used.
    """

    sequences: int
    context: int
    adjusts: bool = False
    alternatives: bool = False
    adapted: bool = False

    def dims(self, dims: Mapping[str, int]) -> dict[str, int]:
        """The dims of a padded batch, and ``dims``, which are those that are equal for all batches. Lengths of page
        lists are not among them, because they vary between the batches of a bucket.
        """
        size = self.sequences
        own = {
            "S": size,
            "B": size,
            "R": size,
            "T": self.context,
            "A": size * self.adjusts,
            "W": size * self.alternatives,
            # One graph runs greedy and drawn rows.
            "DR": size,
            "G": size * self.adapted,
            KEPT: size if dims[KEPT_PAGES] else 0,
            # Rows of pictures do not decode.
            **NO_PATCHES,
        }
        return {**dims, **own}


def bucket_sizes(most: int) -> tuple[int, ...]:
    """Batch sizes of graphs, up to ``most``: close together while reading the weights does not yet dominate a step's
    time.
    """
    sizes = [1, 2, 4, 8, *range(16, 64, 16), *range(64, most + 32, 32)]
    return (*(size for size in sizes if size < most), most)


def bucket_of(dims: Mapping[str, int], sizes: Sequence[int], longest: int) -> Bucket | None:
    """The smallest bucket that holds a batch; None if a sequence has more than one new token, or is not sampled."""
    if not dims["S"] == dims["B"] == dims["R"] <= sizes[-1] or not dims["S"]:
        return None
    context = next(context for context in contexts_up_to(longest) if context >= dims["T"])
    size = next(size for size in sizes if size >= dims["B"])
    return Bucket(size, context, dims["A"] > 0, dims["W"] > 0, dims["G"] > 0)


def contexts_up_to(longest: int) -> list[int]:
    """The contexts of graphs, of which the last one is the longest."""
    contexts = [SHORTEST_CONTEXT]
    while contexts[-1] < longest:
        contexts.append(2 * contexts[-1])
    return [*contexts[:-1], longest]


def pad_batch(batch: Batch, size: int, pages: Sequence[int], page_size: int, state: int = 0) -> Batch:
    """A decode batch with sequences of one token added, which are sampled greedily and keep nothing. They are on one
    page of each page group, in ``pages``, and their states, if there are any, are written into slot ``state``. They
    read the first row of the first source, if there are sources.
    """
    more = size - (len(batch.seq_starts) - 1)
    if not more:
        return batch

    def with_zeros(array: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return np.concatenate([array, np.zeros(more, np.int32)])

    def counting_on(array: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return np.concatenate([array, array[-1] + np.arange(1, more + 1, dtype=np.int32)])

    def padded(tables: Batch | PageTables, page: int) -> PageTables:
        return PageTables(
            slots=np.concatenate([tables.slots, np.full(more, page * page_size, np.int32)]),
            page_indptr=counting_on(tables.page_indptr),
            page_ids=np.concatenate([tables.page_ids, np.full(more, page, np.int32)]),
        )

    def with_first_page(tables: SourceTables) -> SourceTables:
        return SourceTables(
            positions=with_zeros(tables.positions),
            slots=with_zeros(tables.slots),
            page_indptr=counting_on(tables.page_indptr),
            page_ids=with_zeros(tables.page_ids),
        )

    states, turns = batch.state_slots, batch.rope_positions
    first, *second = (padded(batch.window or batch if group else batch, page) for group, page in enumerate(pages))
    return Batch(
        token_ids=with_zeros(batch.token_ids),
        positions=with_zeros(batch.positions),
        slots=first.slots,
        seq_starts=counting_on(batch.seq_starts),
        page_indptr=first.page_indptr,
        page_ids=first.page_ids,
        sample_rows=np.concatenate([batch.sample_rows, np.arange(size - more, size, dtype=np.int32)]),
        sample_slots=np.concatenate([batch.sample_slots, np.tile(np.array([[-1, 0]], np.int32), (more, 1))]),
        sample_settings=np.concatenate([batch.sample_settings, np.tile(np.array([GREEDY], np.float32), (more, 1))]),
        adapters=np.concatenate([batch.adapters, np.full(more, -1, np.int32)]),
        alternatives=batch.alternatives,
        window=second[0] if second else None,
        source=None if batch.source is None else with_first_page(batch.source),
        rope_positions=None if turns is None else np.concatenate([turns, np.zeros((more, 3), np.int32)]),
        state_slots=None if states is None else np.concatenate([states, np.full((more, 2), state, np.int32)]),
    )
