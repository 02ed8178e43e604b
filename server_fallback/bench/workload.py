"""Workload: random requests of given lengths, the same for the same seed on every server."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

# Short common words: most tokenizers have one token for each, so the lengths in tokens are nearly exact.
WORD_LINES = (
    "time year people way day man thing woman life child world school state family student group country problem",
    "hand part place case week company system program question work government number night point home water room",
    "mother area money story fact month lot right study book eye job word business issue side kind head house",
    "service friend father power hour game line end member law car city community",
)
WORDS = tuple(word for line in WORD_LINES for word in line.split())


@dataclass(frozen=True, slots=True)
class Lengths:
    """A range of lengths in tokens, both ends included."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """``prefix`` is the same for all requests of a workload; "" for none."""

    prefix: str
    prompt: str
    max_tokens: int


def make_workload(
    count: int, inputs: Lengths, outputs: Lengths, *, prefix_tokens: int, tokens_per_word: float, seed: Sequence[int]
) -> list[LoadRequest]:
    """``inputs`` does not include the prefix. ``seed`` may have several parts, so that each concurrency gets different
    prompts.
    """
    # The prefix depends only on the seed's first part, so that it is the same throughout a run.
    prefix = words(random.Random(f"prefix {seed[0]}"), prefix_tokens, tokens_per_word)
    chance = random.Random(f"asks {tuple(seed)}")
    return [
        LoadRequest(
            prefix,
            words(chance, chance.randint(inputs.least, inputs.most), tokens_per_word),
            chance.randint(outputs.least, outputs.most),
        )
        for _ in range(count)
    ]


def words(chance: random.Random, tokens: int, tokens_per_word: float) -> str:
    if tokens == 0:
        return ""
    return " ".join(chance.choices(WORDS, k=max(1, round(tokens / tokens_per_word))))
