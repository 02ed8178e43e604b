"""Sorting, spelling and reversing: the tasks about the order of items and of letters.

A reversed word is spelled out first (``l a m p -> p m a l``): a word is often a single token, whose letters the model
cannot see.
"""

from __future__ import annotations

import random

from .example import Example, Split
from .phrasing import Phrasings, phrase
from .words import ANIMALS, COMMON, NAMES, THINGS, pseudo_word, real_word, word

WHAT_NUMBERS = "( these numbers:| the numbers| these:| the list| this list:| numbers:|:|||)"
SORT_NUMBERS = Phrasings(
    training=(
        f"(sort|sort|order|arrange|rank){WHAT_NUMBERS} {{list}}",
        "put {list} in order",
        "put (these|the numbers) in order: {list}",
        "~{list} sorted",
        "(sort|order)( these| these numbers|) from (smallest to largest|small to big|low to high): {list}",
        "(sort|order) {list} (ascending|in ascending order)",
        "sort {list} from (smallest to largest|small to big|low to high)",
        "~what is {list} sorted",
        "~can you sort {list}",
        "~i need {list} (sorted|in order)",
        "bring {list} into order",
        "~(sort|sorted|order): {list}",
    ),
    held_out=(
        "get {list} sorted",
        "~in order please: {list}",
        "order {list} by size",
        "~{list} in ascending order",
        "~what is the order of {list}",
        "give me {list} from small to large",
    ),
)
DESCENDING = Phrasings(
    training=(
        "(sort|order|arrange)( the numbers| these:|) {list} (descending|in descending order)",
        "sort {list} from (largest to smallest|big to small|high to low)",
        "(sort|order)( these| these numbers|) (from (largest to smallest|big to small|high to low)|descending|in "
        "descending order): {list}",
        "(sort|order) {list} backwards",
        "sort {list}, (largest|biggest|highest) first",
    ),
    held_out=(
        "get {list} sorted in descending order",
        "~{list} in descending order",
        "give me {list} from large to small",
    ),
)
WHAT_WORDS = "( these words:| the words| these:| the list| this list:| words:|:|||)"
SORT_WORDS = Phrasings(
    training=(
        f"(sort|sort|order|arrange|alphabetize){WHAT_WORDS} {{list}}",
        "put {list} in( alphabetical|) order",
        "put (these|the words) in( alphabetical|) order: {list}",
        "(sort|order) {list} (alphabetically|by name|by alphabet|from a to z)",
        "(sort|order)( these| these words|) alphabetically: {list}",
        "~{list} sorted",
        "~can you sort {list}",
        "~i need {list} (sorted|in order)",
        "bring {list} into order",
        "~(sort|sorted|order): {list}",
        "~what is {list} sorted",
    ),
    held_out=(
        "get {list} sorted",
        "~in order please: {list}",
        "order {list} by letter",
        "~{list} in alphabetical order",
        "~what is the order of {list}",
        "give me {list} from a to z",
    ),
)
SPELL = Phrasings(
    training=(
        "spell( the word| out|) {word}",
        "~how (do you|do i|to) spell {word}",
        "~how is {word} spelled",
        "~(spelling|spell): {word}",
        "spell {word} letter by letter",
        "~what are the letters (of|in) {word}",
        "give me the letters of {word}",
        "~letters of {word}",
        "write {word} letter by letter",
        'spell "{word}"',
    ),
    held_out=(
        "~what is the spelling of {word}",
        "~{word}, letter by letter",
        "~how would you spell {word}",
        "list the letters in {word}",
    ),
)
REVERSE = Phrasings(
    training=(
        "reverse( the word| the letters of|) {word}",
        "(spell|write|say|turn|put) {word} backwards",
        "~{word} (backwards|reversed)",
        "~(reverse|backwards): {word}",
        "~what is {word} (backwards|reversed|in reverse)",
        "turn {word} around",
        "flip( the word|) {word}",
        "(write|spell|say) {word} in reverse",
        'reverse "{word}"',
        "~reverse this( word|): {word}",
        "~{word} (from back to front|in reverse order)",
        "mirror( the word|) {word}",
        "(read|show) me {word} (backwards|in reverse)",
        "~i (want|need) {word} (backwards|reversed)",
    ),
    held_out=(
        "~how does {word} look backwards",
        "give me {word} backwards",
        "read {word} from the end",
        "~the reverse of {word}",
        "~what do you get if you reverse {word}",
    ),
)


def sort_numbers(rng: random.Random, split: Split) -> Example:
    """Three to five different numbers below 100."""
    return _sort_numbers(rng, split, "sort_numbers", 3, 5)


def sort_many_numbers(rng: random.Random, split: Split) -> Example:
    """Six to ten."""
    return _sort_numbers(rng, split, "sort_many_numbers", 6, 10)


def _sort_numbers(rng: random.Random, split: Split, task: str, fewest: int, most: int) -> Example:
    top = rng.choice((9, 20, 99, 99, 99))
    while True:
        numbers = rng.sample(range(top + 1), rng.randint(fewest, most))
        if split.allows(" ".join(map(str, sorted(numbers)))):
            break
    descending = rng.random() < 0.2
    prompt, template = phrase(
        rng, DESCENDING if descending else SORT_NUMBERS, split, list=_joined(rng, list(map(str, numbers)))
    )
    return Example(task, prompt, ", ".join(map(str, sorted(numbers, reverse=descending))), template)


def sort_words(rng: random.Random, split: Split) -> Example:
    """Three or four words, mostly with different first letters, because lists rarely contain words like `pea` and
    `pear`.
    """
    count = rng.choice((3, 3, 4))
    distinct_initials = rng.random() < 0.9
    words: dict[str, str] = {}
    pool = rng.choices((THINGS, ANIMALS, COMMON, NAMES), (5, 2, 1, 1))[0]
    while len(words) < count:
        drawn = word(rng, pool, split, pseudo_share=0.3)
        if pool is NAMES:
            drawn = drawn.capitalize()
        words.setdefault(drawn[0] if distinct_initials else drawn, drawn)
    drawn_words = list(words.values())
    prompt, template = phrase(rng, SORT_WORDS, split, list=_joined(rng, drawn_words))
    return Example("sort_words", prompt, ", ".join(sorted(drawn_words)), template)


def spell(rng: random.Random, split: Split) -> Example:
    drawn = _short_word(rng, split)
    prompt, template = phrase(rng, SPELL, split, word=drawn)
    return Example("spell", prompt, " ".join(drawn), template)


def reverse(rng: random.Random, split: Split) -> Example:
    drawn = _short_word(rng, split)
    prompt, template = phrase(rng, REVERSE, split, word=drawn)
    return Example("reverse", prompt, f"{' '.join(drawn)} -> {' '.join(reversed(drawn))}", template)


def _short_word(rng: random.Random, split: Split) -> str:
    if rng.random() < 0.5:
        return pseudo_word(rng, split)
    if not split.slots_are_held_out and rng.random() < 0.4:
        return rng.choice(COMMON)
    return real_word(rng, THINGS if rng.random() < 0.7 else ANIMALS, split)


def _joined(rng: random.Random, items: list[str]) -> str:
    style = rng.random()
    if style < 0.5:
        return " ".join(items)
    if style < 0.8:
        return ", ".join(items)
    if style < 0.9:
        return ",".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]
