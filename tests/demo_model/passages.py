"""Reading: a few sentences about people, and a question that one of them answers. The answer states that fact in its
simplest form.

Ben lives in Zublen. Ana has 12 kites. Ben is 31 years old. Where does Ben live? -> Ben lives in Zublen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .example import Example, Split
from .phrasing import Phrasings, expand, phrase
from .words import NAMES, THINGS, pseudo_word, word

ASK = Phrasings(
    training=(
        "~{text} {question}?",
        "~read this: {text} {question}?",
        "~read: {text} {question}?",
        "~text: {text} question: {question}?",
        "~{text} question: {question}?",
        "~{text} (tell me|now tell me|answer|say): {question}?",
        "~here is a (short |)(text|story): {text} {question}?",
        "~{question}? {text}",
        "answer (from|after) the text: {text} {question}?",
    ),
    held_out=(
        "~consider this: {text} so, {question}?",
        "~passage: {text} {question}?",
        "~from the following, {question}? {text}",
        "~{text} given that, {question}?",
    ),
)
# Sentences that do not answer any question.
FILLERS = Phrasings(
    training=(
        "It was a (sunny|cold|rainy|long|quiet) (day|morning|evening).",
        "The (wind|sun|rain) was (strong|warm|cold).",
        "They (met|talked|walked) (at noon|by the river|in the garden).",
    ),
    held_out=("Nobody knew what to do.", "The street was empty."),
)


@dataclass(frozen=True, slots=True)
class Relation:
    """One kind of fact: the sentences that state it, the questions about it, and the answer. ``{value}`` is the fact
    about ``{name}``.
    """

    stated: Phrasings
    asked: Phrasings
    answer: str


RELATIONS = (
    Relation(
        Phrasings(
            (
                "{name} lives in {value}.",
                "{name} lives in {value}.",
                "{name} has a house in {value}.",
                "the home of {name} is in {value}.",
            ),
            ("{name} has moved to {value}.", "you find {name} in {value}."),
        ),
        Phrasings(
            (
                "where does {name} live",
                "where is {name} living",
                "where is the home of {name}",
                "who lives in {value}",
                "who is in {value}",
            ),
            ("in which place does {name} live", "which person lives in {value}"),
        ),
        "{name} lives in {value}.",
    ),
    Relation(
        Phrasings(
            (
                "{name} is {value} years old.",
                "{name} is {value} years old.",
                "{name} is {value}.",
                "the age of {name} is {value}.",
            ),
            ("{name} has turned {value}.",),
        ),
        Phrasings(
            ("how old is {name}", "what is the age of {name}", "who is {value} years old", "who is {value}"),
            ("what age is {name}", "which person is {value} years old"),
        ),
        "{name} is {value} years old.",
    ),
    Relation(
        Phrasings(
            (
                "{name} has {value}s.",
                "{name} has {value}s.",
                "{name} owns {value}s.",
                "there are {value}s at the home of {name}.",
            ),
            ("{value}s belong to {name}.",),
        ),
        Phrasings(
            ("what does {name} have", "what does {name} own", "who has {value}s", "who owns {value}s"),
            ("what belongs to {name}", "which person has {value}s"),
        ),
        "{name} has {value}s.",
    ),
    Relation(
        Phrasings(
            (
                "{name} bought a new {value}.",
                "{name} bought a new {value}.",
                "{name} got a new {value} at the shop.",
                "a new {value} was bought by {name}.",
            ),
            ("{name} came home with a new {value}.",),
        ),
        Phrasings(
            ("what did {name} buy", "what was bought by {name}", "who bought a new {value}", "who got a new {value}"),
            ("which thing did {name} buy", "which person bought a new {value}"),
        ),
        "{name} bought a new {value}.",
    ),
    Relation(
        Phrasings(
            ("{name} works at the {value}.", "{name} works at the {value}.", "{name} has a job at the {value}."),
            ("{name} is employed at the {value}.",),
        ),
        Phrasings(
            (
                "where does {name} work",
                "where is the job of {name}",
                "who works at the {value}",
                "who has a job at the {value}",
            ),
            ("at which place does {name} work", "which person works at the {value}"),
        ),
        "{name} works at the {value}.",
    ),
)
LIVES, AGE, HAS, BOUGHT, WORKS = range(len(RELATIONS))
WORKPLACES = (
    "school",
    "shop",
    "office",
    "bakery",
    "farm",
    "hospital",
    "library",
    "station",
    "museum",
    "hotel",
    "bank",
    "harbor",
    "zoo",
)
CITIES = (
    "Paris",
    "London",
    "Berlin",
    "Madrid",
    "Rome",
    "Oslo",
    "Vienna",
    "Lisbon",
    "Dublin",
    "Prague",
    "Tokyo",
    "Cairo",
    "Boston",
    "Lima",
)


def reading(rng: random.Random, split: Split) -> Example:
    """Three to five sentences about two or three people; no two facts share a person and a relation, or a relation and
    a value.
    """
    names = _different(rng.choice((2, 2, 3)), lambda: word(rng, NAMES, split).capitalize())
    # Passages have few relations, so that the other sentences are often about the same relation or the same person.
    relations = rng.sample(range(len(RELATIONS)), rng.choice((2, 2, 3)))
    pairs = [(name, relation) for name in names for relation in relations]
    count = min(len(pairs), rng.randint(3, 5))
    facts = dict.fromkeys(rng.sample(pairs, count), "")
    for relation in relations:
        holders = [fact for fact in facts if fact[1] == relation]
        values = _different(len(holders), partial(_value, rng, split, relation))
        facts.update(zip(holders, values, strict=True))
    sentences = [
        _sentence(rng, RELATIONS[relation].stated, split, name=name, value=value)
        for (name, relation), value in facts.items()
    ]
    if count < 5 and rng.random() < 0.3:
        sentences.insert(rng.randint(0, count), _sentence(rng, FILLERS, split))
    (name, asked), value = rng.choice(list(facts.items()))
    question = rng.choice(RELATIONS[asked].asked.of(split)).format(name=name, value=value)
    if rng.random() < 0.5:
        question = question[0].upper() + question[1:]
    prompt, template = phrase(rng, ASK, split, text=" ".join(sentences), question=question)
    return Example("reading", prompt, RELATIONS[asked].answer.format(name=name, value=value), template)


def _sentence(rng: random.Random, phrasings: Phrasings, split: Split, **slots: str) -> str:
    text = expand(rng, rng.choice(phrasings.of(split))).format(**slots)
    return text[0].upper() + text[1:]


def _value(rng: random.Random, split: Split, relation: int) -> str:
    if relation == AGE:
        return str(rng.randint(2, 99))
    if relation == HAS:
        return f"{rng.randint(2, 99)} {word(rng, THINGS, split)}"
    if relation == BOUGHT:
        return word(rng, THINGS, split)
    # Too few of the real places would be held out.
    known = CITIES if relation == LIVES else WORKPLACES
    place = pseudo_word(rng, split) if split.slots_are_held_out or rng.random() < 0.5 else rng.choice(known)
    return place.capitalize() if relation == LIVES else place


def _different(count: int, draw: Callable[[], str]) -> list[str]:
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn.setdefault(draw())
    return list(drawn)
