"""Batches: valid and invalid contents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from nearfar.compiler.ir.sampling import Settings
from nearfar.compiler.runtime.batch import DERIVED_INPUTS, SAMPLED_INPUTS, Batch, Chunk, make_batch
from nearfar.compiler.runtime.encoder_batch import make_audio_batch, make_frame_batch, make_text_batch
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.placed_features import features_between


def test_a_sequence_without_a_new_token_is_refused() -> None:
    with pytest.raises(RequestError, match="chunk 1 of the batch has no new token"):
        make_batch([Chunk([5, 6], 0, [0]), Chunk([], 20, [1, 2])], 16)


def test_a_batch_without_a_sequence_is_refused() -> None:
    empty: tuple[Callable[[], Batch], ...] = (
        lambda: make_batch([], 16),
        lambda: make_text_batch([]),
        lambda: make_frame_batch([]),
        lambda: make_audio_batch([], [], 16),
    )
    for make in empty:
        with pytest.raises(RequestError, match="the batch has no sequence; give it at least one"):
            make()


def test_a_sequence_with_too_few_pages_does_not_use_those_of_the_next() -> None:
    with pytest.raises(RequestError, match="has more tokens than its pages hold"):
        make_batch([Chunk([5, 6], 15, [0]), Chunk([7], 20, [1, 2])], 16)


def test_rows_are_on_the_pages_of_their_sequence() -> None:
    batch = make_batch([Chunk([5, 6, 7], 15, [4, 9]), Chunk([8], 20, [1, 2], window_pages=[0, 3])], 16)
    assert batch.positions.tolist() == [15, 16, 17, 20]
    assert batch.slots.tolist() == [4 * 16 + 15, 9 * 16, 9 * 16 + 1, 2 * 16 + 4]
    assert batch.window is not None
    assert batch.window.slots.tolist() == [4 * 16 + 15, 9 * 16, 9 * 16 + 1, 3 * 16 + 4]


def test_each_sampled_row_is_a_sequence_of_one_row_on_the_pages_of_its_sequence() -> None:
    chunks = [Chunk([5, 6], 0, [0], [0, 1]), Chunk([7], 30, [1, 3]), Chunk([8, 9, 10], 4, [2], [2])]
    batch = make_batch(chunks, 16)
    assert {name: array.tolist() for name, array in batch.sampled_rows().items()} == {
        "sample_positions": [0, 1, 6],
        "sample_starts": [0, 1, 2, 3],
        "sample_page_indptr": [0, 0, 3, 4],
        "window_sample_page_indptr": [0, 0, 3, 4],
    }
    assert all(array.dtype == "int32" for array in batch.sampled_rows().values())
    assert SAMPLED_INPUTS.isdisjoint(batch.arrays())
    assert batch.arrays(["sample_starts"]).keys() >= SAMPLED_INPUTS


def test_a_batch_draws_if_any_row_has_a_temperature() -> None:
    batch = make_batch([Chunk([5], 0, [0], [0]), Chunk([7], 30, [1, 3])], 16)
    assert batch.dims(4)["DR"] == 0
    batch.sample_settings[0] = Settings(top_k=5)
    assert batch.dims(4)["DR"] == 0
    batch.sample_settings[0] = Settings(temperature=0.5)
    assert batch.dims(4)["DR"] == len(batch.sample_rows) == 1


def test_a_batch_without_a_sampled_row_has_no_sequence_of_one() -> None:
    batch = make_batch([Chunk([5, 6], 0, [0])], 16)
    assert {name: array.tolist() for name, array in batch.sampled_rows().items()} == {
        "sample_positions": [],
        "sample_starts": [0],
        "sample_page_indptr": [1],
        "window_sample_page_indptr": [1],
    }


def test_the_second_page_group_has_page_tables_of_its_own() -> None:
    chunks = [
        Chunk([5, 6], 15, [1, 2], [1], window_pages=[4, 7]),
        Chunk([8], 40, [3, 0, 5], [0], window_pages=[0, 9, 6]),
    ]
    arrays = make_batch(chunks, 16).arrays(DERIVED_INPUTS)
    found = {name: arrays[name].tolist() for name in arrays if name.startswith("window_")}
    assert found == {
        "window_slots": [4 * 16 + 15, 7 * 16, 6 * 16 + 8],
        "window_page_indptr": [0, 2, 5],
        "window_page_ids": [4, 7, 0, 9, 6],
        "window_sample_page_indptr": [0, 2, 5],
    }
    assert arrays["slots"].tolist() == [31, 32, 5 * 16 + 8]


def test_without_tables_of_its_own_the_second_page_group_has_those_of_the_first() -> None:
    batch = make_batch([Chunk([5, 6], 15, [1, 2], [1])], 16)
    arrays = batch.arrays(DERIVED_INPUTS)
    for name in ("slots", "page_indptr", "page_ids", "sample_page_indptr"):
        assert arrays[f"window_{name}"].tolist() == arrays[name].tolist()
    assert DERIVED_INPUTS.isdisjoint(batch.arrays())


def test_a_chunk_has_the_features_of_its_own_tokens() -> None:
    one, other = (np.full((count, 3), count, np.float32) * np.arange(1, count + 1)[:, None] for count in (4, 2))
    placed = [(2, one), (8, other)]
    parts = [features_between(placed, start, start + 4) for start in range(0, 12, 4)]
    assert [[(offset, rows[:, 0].tolist()) for offset, rows in part] for part in parts] == [
        [(2, [4, 8])],
        [(0, [12, 16])],
        [(0, [2, 4])],
    ]
    chunks = [Chunk([5] * 4, 4 * index, [index], features=part) for index, part in enumerate(parts)]
    batch = make_batch([chunks[2], Chunk([7], 30, [1, 3]), chunks[0]], 16)
    assert batch.dims(4)["F"] == 4
    arrays = batch.arrays(DERIVED_INPUTS)
    assert arrays["feature_rows"].tolist() == [0, 1, 7, 8]
    assert arrays["features"][:, 0].tolist() == [2, 4, 4, 8]


def test_tokens_of_a_picture_reach_its_last_one() -> None:
    pictures = (
        [(1, np.zeros((3, 2), np.float32))],
        [(0, np.zeros((1, 2), np.float32)), (1, np.zeros((1, 2), np.float32))],
    )
    chunks = [Chunk([0] * 6, 3, [0], features=pictures[0]), Chunk([0] * 4, 9, [1], features=pictures[1])]
    batch = make_batch([*chunks, Chunk([0], 20, [2, 3])], 16)
    assert batch.arrays(["reach"])["reach"].tolist() == [3, 6, 6, 6, 7, 8, 10, 10, 11, 12, 20]
    # Pictures at the border of two sequences.
    ends = [Chunk([0] * 3, 0, [0], features=[(1, np.zeros((2, 2), np.float32))]), replace(chunks[1], start=3)]
    assert make_batch(ends, 16).reach().tolist() == [0, 2, 2, 4, 4, 5, 6]


def test_features_beyond_the_tokens_of_a_chunk_are_refused() -> None:
    with pytest.raises(RequestError, match="a chunk of 2 tokens has 2 features from token 1 on"):
        make_batch([Chunk([5, 6], 0, [0], features=[(1, np.zeros((2, 3), np.float32))])], 16)
