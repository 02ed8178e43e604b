"""Phrasings of one request: templates with alternatives, varied with politeness, casing and punctuation.

In a template ``(a|b|)`` is a choice and ``{room}`` a slot. A template that starts with ``~`` is a complete sentence and
is not prefixed with "could you ...". Held-out phrasings use held-out politeness too, so a measured paraphrase is new
from end to end.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from .example import Split

CHOICE = re.compile(r"\(([^()]*)\)")
PREFIXES = (
    "please ", "please, ", "can you ", "could you ", "would you ", "can you please ", "could you "
                                                                                      "please ", "would you please ",
    "hey, ", "hi, ", "ok, ", "okay ", "hey ", "now ", "i want you "
                                                      "to ", "i'd like you "
                                                             "to ", "i need you to ", "kindly ", "you should ",
    "will you ", "just ", "hello, can you ", "hi, could you ", "and ", "then ", "so, ",
)  # fmt: skip
SUFFIXES = (
    " please",
    ", please",
    " for me",
    " now",
    ", thanks",
    " thanks",
    ", thank you",
    " for me please",
    " quickly",
    ", ok?",
    " again",
)
SENTENCE_PREFIXES = ("hey, ", "hi, ", "ok, ", "so, ", "and ", "please, ", "hello, ", "now ", "hey ", "well, ")
HELD_OUT_PREFIXES = (
    "do me a favor and ",
    "i would like you to ",
    "hello there, please ",
    "be so kind and ",
    "might you ",
    "alright, ",
    "go and ",
)
HELD_OUT_SUFFIXES = (
    ", would you",
    " right away",
    ", cheers",
    " if you can",
    " when you can",
    " this time",
    ", many thanks",
)
HELD_OUT_SENTENCE_PREFIXES = ("alright, ", "hello there, ", "listen, ", "one more: ")


@dataclass(frozen=True, slots=True)
class Phrasings:
    """The templates that training may use, and the held-out ones."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]

    def of(self, split: Split) -> tuple[str, ...]:
        return self.held_out if split.phrasing_is_held_out else self.training


def phrase(rng: random.Random, phrasings: Phrasings, split: Split, **slots: object) -> tuple[str, str]:
    """Phrase a request in one of the allowed ways -> (prompt, template)."""
    template = rng.choice(phrasings.of(split))
    text = dress(rng, template, split).format(**slots)
    if rng.random() < 0.4:
        text = text[0].upper() + text[1:]
    return text, template


def expand(rng: random.Random, template: str) -> str:
    """Choose one alternative of every choice; choices may be nested."""
    while "(" in template:
        template = CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)
    return template


def dress(rng: random.Random, template: str, split: Split) -> str:
    """Expand a template and add politeness and punctuation. Slots are not filled."""
    sentence = template.startswith("~")
    text = expand(rng, template.removeprefix("~"))
    held_out = split.phrasing_is_held_out
    if sentence:
        if rng.random() < 0.12:
            text = rng.choice(HELD_OUT_SENTENCE_PREFIXES if held_out else SENTENCE_PREFIXES) + text
    else:
        if rng.random() < 0.3:
            text = rng.choice(HELD_OUT_PREFIXES if held_out else PREFIXES) + text
        if rng.random() < 0.15:
            text += rng.choice(HELD_OUT_SUFFIXES if held_out else SUFFIXES)
    if text[-1] not in "?=.:!" and rng.random() < 0.4:
        text += rng.choice((".", ".", "!", "?"))
    if "'" in text and rng.random() < 0.3:
        text = text.replace("'", "")
    return text
