"""The green lists of a watermark: their definition's vectors, their statistics, and the op that raises their logits."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.ir.sampling import MARK, MASK, MASKED
from nearfar.compiler.ir.watermark import ROUNDS, Watermark, chaskey_round, list_words, mark_logits

VECTORS = json.loads((Path(__file__).parents[2] / "conformance/watermark.json").read_text())["cases"]
WATERMARK = Watermark.of(b"a secret")
VOCAB = 5000


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_green_lists_are_those_of_the_conformance_vectors(case: dict[str, Any]) -> None:
    watermark = Watermark(bytes.fromhex(case["key"]), case["share"])
    assert np.flatnonzero(watermark.are_green(case["before"], np.arange(case["vocab_size"]))).tolist() == case["green"]


def test_the_rounds_are_those_of_chaskey() -> None:
    """A tag of Chaskey-12 (its authors' vector of 16 bytes): the permutation between two additions of a subkey."""
    key = np.array([0x833D3433, 0x009F389F, 0x2398E64F, 0x417ACF39], np.uint32)
    number = int.from_bytes(key.tobytes(), "little") << 1
    doubled = number % 2**128 ^ (0x87 if number >> 128 else 0)
    subkey = np.frombuffer(doubled.to_bytes(16, "little"), "<u4")
    v = list(np.frombuffer(bytes(range(16)), "<u4").reshape(4, 1) ^ (key ^ subkey).reshape(4, 1))
    for _ in range(ROUNDS):
        v = chaskey_round(*v)
    tag = [int(word[0] ^ own) for word, own in zip(v, subkey, strict=True)]
    assert tag == [0x5DD0E2A9, 0xFB5EAC8C, 0x633A392E, 0x500C36F3]


def test_a_green_list_has_its_share_and_is_another_for_each_token_and_key() -> None:
    green = WATERMARK.are_green(np.arange(40)[:, None], np.arange(VOCAB))
    assert green.mean() == pytest.approx(0.25, abs=0.005)
    assert green.mean(axis=1) == pytest.approx(np.full(40, 0.25), abs=0.025)
    # Lists of two tokens, and of two keys, are independent: they share a quarter of a quarter.
    shared = [np.mean(one & other) for one, other in itertools.pairwise(green)]
    assert np.mean(shared) == pytest.approx(0.0625, abs=0.004)
    other = Watermark.of(b"another secret").are_green(0, np.arange(VOCAB))
    assert np.mean(green[0] & other) == pytest.approx(0.0625, abs=0.015)
    assert WATERMARK.are_green(7, 13).shape == ()
    assert WATERMARK.are_green(np.arange(40), np.arange(40)).tolist() == green[np.arange(40), np.arange(40)].tolist()


def test_words_of_lists_change_by_half_of_their_bits_with_each_bit_of_the_token_and_of_the_key() -> None:
    key = WATERMARK.row().view(np.uint32)[:4]
    first = np.stack(list_words(key, np.array([5], np.uint32)))
    flips = []
    for bit in range(17):
        flips.append(np.stack(list_words(key, np.array([5 ^ 1 << bit], np.uint32))) ^ first)
    for bit in range(128):
        other = key.copy()
        other[bit // 32] ^= np.uint32(1 << bit % 32)
        flips.append(np.stack(list_words(other, np.array([5], np.uint32))) ^ first)
    counts = np.bitwise_count(np.array(flips)) if hasattr(np, "bitwise_count") else None
    ones = counts if counts is not None else np.unpackbits(np.array(flips).view(np.uint8)).reshape(len(flips), -1)
    assert ones.reshape(len(flips), -1).sum(axis=1).mean() == pytest.approx(32, abs=1)


def test_the_secret_is_not_in_what_is_printed() -> None:
    assert "secret" not in repr(WATERMARK)
    assert str(WATERMARK.key) not in repr(WATERMARK)


def test_only_marked_rows_get_the_strength_by_the_token_before_which_a_slot_may_hold() -> None:
    logits = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)
    logits[:, 3] = MASKED
    inputs = {
        "adjusted": logits,
        "token_ids": np.array([9, 8, -3, 7, 6], np.int32),
        "rows": np.array([0, 2, 3, 4], np.int32),
        "slots": np.array([(0, MARK), (2, MARK | MASK), (1, MASK), (-1, MARK)], np.int32),
        "sampled": np.array([40, 41, 42], np.int32),
        "watermark": WATERMARK.row()[None],
    }
    y = OPS["mark_logits"].run(inputs, {})
    assert y is not None
    for row, before in ((0, 9), (1, 42), (3, 6)):
        np.testing.assert_array_equal(y[row], mark_logits(logits[row], WATERMARK.row(), before))
        raised = np.flatnonzero(y[row] != logits[row])
        assert set(raised) == set(np.flatnonzero(WATERMARK.are_green(before, np.arange(50)))) - {3}
        np.testing.assert_allclose(y[row][raised] - logits[row][raised], 2, rtol=1e-6)
    np.testing.assert_array_equal(y[2], logits[2])
    np.testing.assert_array_equal(y[:, 3], logits[:, 3])
    inputs["adjusted"] = np.zeros((0, 50), np.float32)
    empty = OPS["mark_logits"].run(inputs, {})
    assert empty is not None
    assert empty.shape == (0, 50)
