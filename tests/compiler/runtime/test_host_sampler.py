"""Sampling on the host, including its shortcuts, compared with the definition of sampling."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sampling_rows import rows_of

from nearfar.compiler.ir.ops.sampling import log_softmax
from nearfar.compiler.ir.sampling import MASKED, Settings, choose_token
from nearfar.compiler.runtime.batch import Batch, Chunk, make_batch
from nearfar.compiler.runtime.host_sampler import HostSampler
from nearfar.compiler.runtime.quick_choice import log_probability, quick_choice

VECTORS = json.loads((Path(__file__).parents[2] / "conformance/sampling.json").read_text())["cases"]
SETTINGS = [
    Settings(temperature, top_k, top_p, min_p)
    for temperature in (0.3, 1.0, 1.7)
    for top_k, top_p, min_p in (
        (0, 1, 0),
        (1, 1, 0),
        (40, 1, 0),
        (40, 0.9, 0.02),
        (900, 0.95, 0),
        (0, 0.9, 0),
        (0, 0.5, 0.05),
        (0, 1, 0.05),
    )
]


@pytest.mark.parametrize("case", VECTORS, ids=[case["name"] for case in VECTORS])
def test_tokens_and_states_are_those_of_the_conformance_vectors(case: dict[str, object]) -> None:
    inputs = rows_of(case)
    rows, columns = inputs["logits"].shape
    sampler = HostSampler(columns, rows)
    for slot in range(rows):
        for name, values in (
            ("token_counts", inputs["counts"]),
            ("logit_bias", inputs["bias"]),
            ("token_mask", inputs["mask"]),
        ):
            sampler.write(name, slot, values[slot])
    chunks = [
        Chunk([0], 0, [row], [0], Settings(*inputs["settings"][row]), int(slot), int(flags))
        for row, (slot, flags) in enumerate(inputs["slots"])
    ]
    output = sampler.choose(make_batch(chunks, 1), inputs["logits"])
    assert output.next_token_ids.tolist() == case["tokens"]
    fed = make_batch([Chunk([-1 - row], 1, [row, 0], [0]) for row in range(rows)], 1)
    assert sampler.token_ids(fed).tolist() == case["tokens"]


def greedy_batch(rows: int, *, alternatives: bool, logprobs: bool) -> Batch:
    return make_batch(
        [Chunk([0], 0, [row], [0]) for row in range(rows)], 1, alternatives=alternatives, logprobs=logprobs
    )


def test_a_row_that_is_not_finite_has_no_token_and_alternatives_come_best_first() -> None:
    logits = np.array(
        [[0, 2, 1], [0, np.nan, 1], [5, 2, -np.inf], [np.inf, 2, 0], [np.nan, np.inf, -np.inf]], np.float32
    )
    for wanted in (False, True):
        output = HostSampler(3, 1).choose(greedy_batch(5, alternatives=False, logprobs=wanted), logits)
        assert output.next_token_ids.tolist() == [1, -1, -1, -1, -1]
        assert (output.token_logprobs != 0).tolist() == [wanted, False, False, False, False]
        assert len(output.top_token_ids) == 0
    best = HostSampler(3, 1).choose(greedy_batch(1, alternatives=True, logprobs=True), logits[:1])
    assert best.top_token_ids.tolist() == [[1, 2, 0]]
    np.testing.assert_allclose(best.top_logprobs[0, 0], best.token_logprobs[0], rtol=1e-6)


@pytest.mark.parametrize("kind", ["peaked", "flat", "ties", "few", "masked"])
def test_quick_choices_are_those_of_the_definition(kind: str) -> None:
    rng = np.random.default_rng(7)
    size = 100 if kind == "few" else 20_011
    for round_ in range(3):
        logits = (rng.normal(size=size) * (1 if kind == "flat" else 4)).astype(np.float32)
        if kind == "ties":
            logits = np.round(logits)
        if kind == "masked":
            logits[rng.random(size) < 0.9] = MASKED
        for settings in SETTINGS:
            drawn = settings._replace(draw=(0.0, 0.5, float(rng.random()))[round_])
            assert quick_choice(logits, drawn) == choose_token(logits, drawn), drawn
        token = int(rng.integers(size))
        np.testing.assert_allclose(log_probability(logits, token), log_softmax(logits)[token], rtol=2e-6, atol=2e-6)


def test_logits_that_differ_in_their_last_bit_are_kept_as_the_definition_requires() -> None:
    high = np.float32(3)
    logits = np.zeros(1000, np.float32)
    logits[[5, 900]] = np.nextafter(high, np.float32(0)), high
    for draw in (0.1, 0.9):
        settings = Settings(temperature=1.0, top_p=0.01, draw=draw)
        assert quick_choice(logits, settings) == choose_token(logits, settings) == 900
