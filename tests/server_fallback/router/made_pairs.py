"""Pairs of two simulated sides: near is right if the prompt is easy, far is nearly always right."""

from __future__ import annotations

import random

from nearfar.server_fallback.router.fitting.pairs import FarAnswer, NearAnswer, Pair

FILLERS = ("lamp", "river", "seven", "door", "paper", "green")


def made_pairs(count: int, *, seed: int = 0, near_when_hard: float = 0.05, signals: bool = True) -> list[Pair]:
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        hard = rng.random() < 0.4
        prompt = f"{'solve' if hard else 'say'} {rng.choice(FILLERS)} {rng.choice(FILLERS)}"
        near = rng.random() < (near_when_hard if hard else 0.95)
        near_signals = {"first_entropy": rng.random(), "first_mean_logprob": -rng.random()} if signals else None
        pairs.append(
            Pair(
                prompt=prompt,
                near=NearAnswer(answer="", right=near, seconds=0.1, signals=near_signals),
                far=FarAnswer(answer="", right=rng.random() < 0.9, seconds=0.2),
            )
        )
    return pairs
