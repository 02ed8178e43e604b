"""Features: the numbers that the predictor reads from the last user message, the same in both languages.

Text features follow ASCII's rules for every script: [0-9] are digits, and ASCII's white space separates words. Counts
are log1p values. Terms are words and pairs of adjacent words; a predictor has a weight for each term that it knows.
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
    "thens",
    "extra_numbers",
    "extra_digits",
    "extra_sentences",
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
_CLAUSE_END = re.compile(rf"[.!?;](?=[{_SPACES}]|\Z)")
_LETTERS = re.compile("[A-Za-z]+")
_TERM = re.compile("[a-z]+|[0-9]+")
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def last_user_text(messages: Sequence[Message]) -> str:
    """The text from which features are computed; empty if there is no user message."""
    return next((message.content for message in reversed(messages) if message.role == "user"), "")


def text_features(text: str) -> dict[str, float]:
    """The value of each of TEXT_FEATURES by its name.

    The extras are signs of a task with several steps: numbers beyond two, digits of the longest number beyond three,
    and sentences, which a semicolon ends too, beyond one.
    """
    numbers = [len(run) for run in _NUMBER.findall(text)]
    words = [word.translate(_LOWER) for word in _LETTERS.findall(text)]
    longest = max(numbers, default=0)
    counts = {
        "characters": len(text),
        "words": len(_WORD.findall(text)),
        "digits": sum(numbers),
        "numbers": len(numbers),
        "longest_number": longest,
        "sentences": len(_SENTENCE_END.findall(text)),
        "commas": text.count(","),
        "ands": words.count("and"),
        "thens": words.count("then"),
        "extra_numbers": max(0, len(numbers) - 2),
        "extra_digits": max(0, longest - 3),
        "extra_sentences": max(0, len(_CLAUSE_END.findall(text)) - 1),
    }
    question = 1.0 if text.rstrip(_SPACES).endswith("?") else 0.0
    return {name: question if name == "question" else math.log1p(counts[name]) for name in TEXT_FEATURES}


def text_terms(text: str) -> list[str]:
    """The lowercased words [a-z]+ and numbers, as one "#" for each digit, in their order; then each two adjacent ones,
    joined by a space.
    """
    words = ["#" * len(term) if term[0].isdigit() else term for term in _TERM.findall(text.translate(_LOWER))]
    return [*words, *(f"{left} {right}" for left, right in pairwise(words))]
