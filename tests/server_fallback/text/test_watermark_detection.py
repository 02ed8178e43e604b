"""The detection of a watermark: which texts are found, and how often it is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.compiler.ir.watermark import Watermark, mark_logits
from nearfar.server_fallback.text.watermark_detection import binomial_tail, detect, windows

WATERMARK = Watermark.of(b"a secret")
VOCAB = 5000


def written(watermark: Watermark, count: int, seed: int) -> list[int]:
    """Tokens of a model whose logits are all alike."""
    drawn, token_ids, row = np.random.default_rng(seed), [0], watermark.row()
    while len(token_ids) <= count:
        weights = np.exp(mark_logits(np.zeros(VOCAB, np.float32), row, token_ids[-1]).astype(np.float64))
        token_ids.append(int(drawn.choice(VOCAB, p=weights / weights.sum())))
    return token_ids


def words(count: int, seed: int) -> list[int]:
    """Tokens of another author: few are frequent."""
    weights = 1 / np.arange(1, 501)
    return [int(each) for each in np.random.default_rng(seed).choice(500, count, p=weights / weights.sum())]


def test_the_tail_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for least, count, share in ((0, 10, 0.25), (3, 10, 0.25), (90, 200, 0.25), (200, 200, 0.5), (2, 1000, 0.01)):
        assert binomial_tail(least, count, share) == pytest.approx(stats.binom.sf(least - 1, count, share), rel=1e-9)


def test_marked_texts_are_found_and_with_the_right_key_only() -> None:
    texts = [written(WATERMARK, 60, seed) for seed in range(12)]
    found = [detect(WATERMARK, text) for text in texts]
    # Of four logits alike, one is green and gets two more: e^2 / (e^2 + 3).
    assert np.mean([each.green_share for each in found]) == pytest.approx(0.711, abs=0.04)
    assert all(each.p_value < 1e-6 and each.z_score > 4 for each in found)
    assert min(detect(Watermark.of(b"no"), text).p_value for text in texts) > 1e-3


def test_texts_without_a_mark_are_taken_for_marked_as_often_as_the_p_value_says() -> None:
    values = np.array(
        [detect(Watermark.of(bytes([seed % 256, seed // 256])), words(200, seed)).p_value for seed in range(400)]
    )
    for level in (0.01, 0.05, 0.2):
        # Three standard deviations above the level at the most.
        assert np.mean(values <= level) <= level + 3 * (level * (1 - level) / len(values)) ** 0.5


def test_a_text_that_repeats_itself_is_not_taken_for_marked() -> None:
    pair = next([0, token_id] for token_id in range(1, VOCAB) if WATERMARK.are_green(0, token_id))
    found = detect(WATERMARK, pair * 500)
    assert found.scored == 2
    assert found.p_value > 0.05


def test_a_window_finds_a_marked_part_and_allows_for_the_number_of_windows() -> None:
    text = [*words(300, 1), *written(WATERMARK, 60, 2), *words(300, 3)]
    parts = list(windows(WATERMARK, text, 50))
    marked = [part for part in parts if part.p_value < 1e-4]
    assert marked
    assert all(part.stop > 300 and part.start < 361 for part in marked)
    assert parts[-1].stop == len(text)
    assert {part.stop - part.start for part in parts} == {50}
    best = min(parts, key=lambda part: part.p_value)
    assert best.p_value == pytest.approx(best.found.p_value * len(parts))
    (only,) = windows(WATERMARK, text[:20], 50)
    assert (only.start, only.stop) == (0, 20)


@given(st.lists(st.integers(0, 100), max_size=8))
def test_short_texts_prove_nothing(token_ids: list[int]) -> None:
    found = detect(WATERMARK, token_ids)
    assert found.scored <= max(0, len(token_ids) - 1)
    assert 0.25**found.scored <= found.p_value * 1.000001 <= 1.000002
