"""Features: the numbers that the predictor reads from the last user message, the same in both languages.

Text features follow ASCII's rules for every script: [0-9] are digits, and ASCII's white space separates words. Counts
are log1p values. Buckets count words and pairs of adjacent words by a hash, so that a predictor knows phrases without a
list of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

from .situation import Message

TextFeature = Literal[
    "characters",
    "words",
    "digits",
    "numbers",
    "longest_number",
    "sentences",
    "commas",
    "question",
    "ands",
]
Signal = Literal["prompt_mean_logprob", "first_entropy", "first_mean_logprob"]
FeatureName = Literal[TextFeature, Signal]

TEXT_FEATURES: tuple[TextFeature, ...] = get_args(TextFeature)
SIGNALS: tuple[Signal, ...] = get_args(Signal)
PROMPT_SIGNAL: Signal = "prompt_mean_logprob"

_SPACES = " \t\n\r\f\v"
_WORD = re.compile(rf"[^{_SPACES}]+")
_NUMBER = re.compile("[0-9]+")
_SENTENCE_END = re.compile(rf"[.!?](?=[{_SPACES}]|\Z)")
_LETTERS = re.compile("[A-Za-z]+")
_TERM = re.compile("[a-z]+|[0-9]+")
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193


def last_user_text(messages: Sequence[Message]) -> str:
    """The text from which features are computed; empty if there is no user message."""
    return next((message.content for message in reversed(messages) if message.role == "user"), "")


def text_features(text: str) -> dict[str, float]:
    """The value of each of TEXT_FEATURES by its name."""
    numbers = [len(run) for run in _NUMBER.findall(text)]
    counts = {
        "characters": len(text),
        "words": len(_WORD.findall(text)),
        "digits": sum(numbers),
        "numbers": len(numbers),
        "longest_number": max(numbers, default=0),
        "sentences": len(_SENTENCE_END.findall(text)),
        "commas": text.count(","),
        "ands": sum(word.translate(_LOWER) == "and" for word in _LETTERS.findall(text)),
    }
    question = 1.0 if text.rstrip(_SPACES).endswith("?") else 0.0
    return {name: question if name == "question" else math.log1p(counts[name]) for name in TEXT_FEATURES}


def bucket_counts(text: str, buckets: int) -> dict[int, int]:
    """Count the terms in each bucket; empty buckets are left out.

    Terms are lowercased words, numbers as one "#" for each digit, and each two adjacent terms joined by a space. The
    hash is FNV-1a of 32 bits: Fowler, Noll and Vo, draft-eastlake-fnv.
    """
    if buckets == 0:
        return {}
    terms = ["#" * len(term) if term[0].isdigit() else term for term in _TERM.findall(text.translate(_LOWER))]
    counts: dict[int, int] = {}
    for term in [*terms, *(f"{left} {right}" for left, right in pairwise(terms))]:
        bucket = fnv1a(term) % buckets
        counts[bucket] = counts.get(bucket, 0) + 1
    return counts


def fnv1a(term: str) -> int:
    digest = _FNV_OFFSET
    for byte in term.encode():
        digest = ((digest ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return digest
