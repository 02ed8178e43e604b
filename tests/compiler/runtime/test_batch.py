"""Batches: what may be in one."""

from __future__ import annotations

import pytest

from nearfar.compiler.errors import RequestError
from nearfar.compiler.runtime.batch import SAMPLED_INPUTS, Chunk, make_batch


def test_a_sequence_without_a_new_token_is_refused() -> None:
    with pytest.raises(RequestError, match="chunk 1 of the batch has no new token"):
        make_batch([Chunk([5, 6], 0, [0]), Chunk([], 20, [1, 2])], 16)


def test_each_sampled_row_is_a_sequence_of_one_row_on_the_pages_of_its_sequence() -> None:
    chunks = [Chunk([5, 6], 0, [0], [0, 1]), Chunk([7], 30, [1, 3]), Chunk([8, 9, 10], 4, [2], [2])]
    batch = make_batch(chunks, 16)
    assert {name: array.tolist() for name, array in batch.sampled_rows().items()} == {
        "sample_positions": [0, 1, 6],
        "sample_starts": [0, 1, 2, 3],
        "sample_page_indptr": [0, 0, 3, 4],
    }
    assert all(array.dtype == "int32" for array in batch.sampled_rows().values())
    assert SAMPLED_INPUTS.isdisjoint(batch.arrays())
    assert batch.arrays(["sample_starts"]).keys() >= SAMPLED_INPUTS


def test_a_batch_without_a_sampled_row_has_no_sequence_of_one() -> None:
    batch = make_batch([Chunk([5, 6], 0, [0])], 16)
    assert {name: array.tolist() for name, array in batch.sampled_rows().items()} == {
        "sample_positions": [],
        "sample_starts": [0],
        "sample_page_indptr": [1],
    }
