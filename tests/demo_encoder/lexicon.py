"""Words that mean nearly the same, written by hand, with which training writes queries in other words."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("lexicon.txt")


@cache
def groups() -> tuple[tuple[str, ...], ...]:
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return tuple(tuple(word.strip().strip('"') for word in line.split(",")) for line in lines)


@cache
def alternatives() -> Mapping[str, Sequence[str]]:
    """The other words of all groups of each word."""
    found: dict[str, list[str]] = {}
    for group in groups():
        for word in group:
            found.setdefault(word, []).extend(other for other in group if other != word)
    return found


def in_other_words(text: str, share: float, rng: random.Random) -> str:
    """The text with a share of the words that the lexicon knows replaced; a plural counts as its singular."""

    def other(match: re.Match[str]) -> str:
        word = match[0].lower()
        known = alternatives().get(word) or alternatives().get(word.removesuffix("s"))
        return rng.choice(known) if known and rng.random() < share else match[0]

    return re.sub(r"[^\W_]+", other, text)
