"""Which tokens rounding may choose."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.compiler.ir.sampling import Settings, choose_token
from nearfar.server_fallback.receipts.rounding import may_choose

VOCAB_SIZE, ERROR = 12, 0.05
CASES = [
    Settings(),
    Settings(temperature=1.0),
    Settings(temperature=0.7, top_k=4),
    Settings(temperature=1.3, top_p=0.8),
    Settings(temperature=1.0, min_p=0.2),
    Settings(temperature=0.9, top_k=6, top_p=0.7, min_p=0.1),
]


@pytest.mark.parametrize("settings", CASES)
def test_every_token_that_rounding_chooses_is_one_that_it_may_choose(settings: Settings) -> None:
    random, others = np.random.default_rng(0), 0
    for _ in range(40):
        logits = random.normal(size=VOCAB_SIZE).astype(np.float32)
        drawn = settings._replace(draw=float(random.random()))
        for _ in range(40):
            noise = random.choice([-ERROR, 0.0, ERROR], VOCAB_SIZE)
            chosen = choose_token(logits.astype(np.float64) + noise, drawn)
            others += chosen != choose_token(logits, drawn)
            assert may_choose(logits, drawn, chosen, ERROR)
    assert others > 0


@pytest.mark.parametrize("settings", CASES)
def test_few_other_tokens_are_ones_that_it_may_choose_and_none_without_errors(settings: Settings) -> None:
    random, possible = np.random.default_rng(1), 0
    for _ in range(100):
        logits = random.normal(size=VOCAB_SIZE).astype(np.float32)
        drawn = settings._replace(draw=float(random.random()))
        chosen = choose_token(logits, drawn)
        exact = [token for token in range(VOCAB_SIZE) if may_choose(logits, drawn, token, 0.0)]
        assert exact == [chosen]
        possible += sum(may_choose(logits, drawn, token, ERROR) for token in range(VOCAB_SIZE))
    assert 100 <= possible <= 250


def test_a_masked_token_is_never_one_of_them() -> None:
    logits = np.array([1.0, -3e38, 0.9], np.float32)
    for temperature in (0.0, 1.0):
        assert not may_choose(logits, Settings(temperature=temperature, draw=0.9), 1, 0.5)
    assert may_choose(logits, Settings(), 2, 0.051)
    assert not may_choose(logits, Settings(), 2, 0.049)
