"""Sampling: the vectors that every runtime must reproduce, and properties that these vectors cannot show."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sampling_rows import rows_of

from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.ir.sampling import GREEDY, Sampler, Settings, choose_token, choosing
from nearfar.compiler.runtime.errors import RequestError

VECTORS = json.loads((Path(__file__).parents[2] / "conformance/sampling.json").read_text())["cases"]


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_tokens_are_those_of_the_conformance_vectors(case: dict[str, object]) -> None:
    inputs = rows_of(case)
    adjusted = OPS["adjust_logits"].run(inputs, {})
    assert adjusted is not None
    tokens = OPS["sample"].run({**inputs, "adjusted": adjusted}, {})
    assert tokens is not None
    assert tokens.tolist() == case["tokens"]


def test_temperature_zero_is_greedy_and_draws_nothing() -> None:
    sampler = Sampler(state=5)
    assert sampler.next() == GREEDY
    assert sampler.state == 5


def test_draws_are_those_of_mulberry32() -> None:
    sampler = Sampler(temperature=1, state=0)
    # The first numbers that the reference code of the generator's author yields for seed 0, times 2^32.
    assert [round(sampler.draw() * 2**32) for _ in range(3)] == [1144304738, 1416247, 958946056]


def test_frequencies_at_temperature_one_are_those_of_softmax() -> None:
    logits = np.array([1.0, 0.0, 2.0, -1.0, -np.inf], np.float32)
    sampler = Sampler(temperature=1.0, state=123)
    counts = np.bincount([choose_token(logits, sampler.next()) for _ in range(4000)], minlength=5) / 4000
    expected = np.exp(logits) / np.exp(logits).sum()
    assert np.abs(counts - expected).max() < 0.03
    assert counts[4] == 0


@pytest.mark.parametrize("draw", [0.0, np.nextafter(np.float32(1), np.float32(0)), 1.0])
def test_any_draw_chooses_a_token_that_is_kept(draw: float) -> None:
    logits = np.array([0, 5, 1, 5, 0], np.float32)
    assert choose_token(logits, Settings(temperature=1.0, top_k=2, draw=draw)) == (1 if draw == 0 else 3)


@pytest.mark.parametrize("temperature", [-0.1, float("inf"), float("nan")])
def test_a_temperature_out_of_range_is_refused(temperature: float) -> None:
    with pytest.raises(RequestError, match="temperature is"):
        Sampler(temperature=temperature)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(RequestError, match="seed is"):
        Sampler(state=seed)


def test_settings_choose_a_given_token_of_a_vocabulary_of_any_size() -> None:
    logits = np.random.default_rng(0).normal(0, 20, 262_144).astype(np.float32)
    for vocab_size in (1, 2, 1000, 50_257, 152_064, 262_144):
        tokens = sorted({0, 1 % vocab_size, vocab_size // 3, vocab_size - 1})
        for token, settings in zip(tokens, choosing(tokens, vocab_size), strict=True):
            assert choose_token(logits[:vocab_size], Settings(*settings)) == token
