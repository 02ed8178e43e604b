"""Questions about this repository's documents, written by hand, each with words of the passage that answers it.

The documents change, so the words need not stand in them exactly: the passage with most of their triples is meant.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from .repository_text import words

FILE = Path(__file__).with_name("questions.jsonl")
# A question whose passage was rewritten further than this is outdated.
LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Question:
    split: Literal["training", "held-out"]
    document: str
    # Words of the passage that answers.
    passage: str
    text: str


@cache
def questions(split: Literal["training", "held-out"]) -> tuple[Question, ...]:
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    return tuple(
        Question(row["split"], row["document"], row["passage"], text)
        for row in rows
        if row["split"] == split
        for text in row["questions"]
    )


def passage_of(question: Question, passages: Sequence[tuple[str, str]]) -> int | None:
    """The index of the passage, given as (document, text), that answers a question; None if it is no longer there."""
    wanted = _triples(question.passage)
    best, share = None, LEAST_SHARE
    for index, (document, text) in enumerate(passages):
        if document == question.document:
            found = len(wanted & _triples(text)) / len(wanted)
            if found > share:
                best, share = index, found
    return best


def _triples(text: str) -> set[tuple[str, ...]]:
    parts = words(text.lower())
    return {tuple(parts[start : start + 3]) for start in range(max(1, len(parts) - 2))}
