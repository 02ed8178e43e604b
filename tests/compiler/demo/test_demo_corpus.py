"""The demo's language: its answers are true, and what is held out stays out of training."""

from __future__ import annotations

import json
import random
import re
from itertools import islice, product
from types import ModuleType

import pytest

from nearfar.compiler.demo import arithmetic, commands, extraction, home_phrasings, lists, talk
from nearfar.compiler.demo.corpus import SHARES, TASKS, WITHOUT_SLOTS, held_out_examples, training_examples
from nearfar.compiler.demo.example import Example, Split
from nearfar.compiler.demo.phrasing import (
    HELD_OUT_PREFIXES,
    HELD_OUT_SENTENCE_PREFIXES,
    HELD_OUT_SUFFIXES,
    PREFIXES,
    SENTENCE_PREFIXES,
    SUFFIXES,
    Phrasings,
)

MODULES = (arithmetic, extraction, home_phrasings, lists, talk)


@pytest.fixture(scope="module")
def trained() -> list[Example]:
    return list(islice(training_examples(random.Random("corpus test")), 20_000))


def phrasings_of(module: ModuleType) -> list[Phrasings]:
    found = [value for value in vars(module).values() if isinstance(value, Phrasings)]
    return found + [phrasings for _, phrasings in talk.INTENTS] if module is talk else found


def expansions(template: str) -> set[str]:
    """Everything that a template can say, slots left open."""
    parts = [part.split("|") if index % 2 else [part] for index, part in enumerate(re.split(r"\(([^()]*)\)", template))]
    texts = {"".join(choice) for choice in product(*parts)}
    return set().union(*map(expansions, texts)) if any("(" in text for text in texts) else texts


def test_no_held_out_phrasing_can_be_said_by_a_training_phrasing_of_the_same_kind() -> None:
    checked = 0
    for module in MODULES:
        for phrasings in phrasings_of(module):
            said = set().union(*(expansions(template.removeprefix("~")) for template in phrasings.training))
            for template in phrasings.held_out:
                assert not said & expansions(template.removeprefix("~")), template
                checked += 1
    assert checked > 100


def test_held_out_paraphrases_never_appear_in_training_examples(trained: list[Example]) -> None:
    held_out = {template for module in MODULES for phrasings in phrasings_of(module) for template in phrasings.held_out}
    for task in TASKS:
        measured = held_out_examples(task, Split.HELD_OUT_PARAPHRASES, 100, seed=1)
        assert {example.phrasing for example in measured} <= held_out
        assert not {example.prompt.lower() for example in measured} & {example.prompt.lower() for example in trained}
    # "get the numbers sorted" is held out for numbers and for words, so phrasings are compared within a task.
    for task in TASKS:
        used = {example.phrasing for example in trained if example.task == task}
        assert not used & {example.phrasing for example in held_out_examples(task, Split.HELD_OUT_PARAPHRASES, 200, seed=2)}


def test_held_out_politeness_is_not_trained() -> None:
    assert not set(PREFIXES + SENTENCE_PREFIXES) & set(HELD_OUT_PREFIXES + HELD_OUT_SENTENCE_PREFIXES)
    assert not set(SUFFIXES) & set(HELD_OUT_SUFFIXES)


def test_number_pairs_held_out_of_sums_are_trained_in_neither_order(trained: list[Example]) -> None:
    pairs = {frozenset(re.findall(r"\d+", example.answer)[:2]) for example in trained if example.task.startswith("sum")}
    for task in ("sum", "sum_3_digits"):
        for example in held_out_examples(task, Split.HELD_OUT_SLOTS, 200, seed=3):
            assert frozenset(re.findall(r"\d+", example.answer)[:2]) not in pairs


def test_held_out_places_are_never_trained(trained: list[Example]) -> None:
    calls = [json.loads(example.answer) for example in trained if example.task == "home"]
    places = {call[key] for call in calls for key in ("room", "door", "genre", "item") if key in call}
    assert not places & {*commands.HELD_OUT_ROOMS, *commands.HELD_OUT_GENRES}
    for example in held_out_examples("home", Split.HELD_OUT_SLOTS, 200, seed=4):
        call = json.loads(example.answer)
        named = [str(call[key]) for key in ("room", "door", "genre", "item") if key in call]
        assert call["tool"] == "set_timer" or named
        assert not set(named) & places


@pytest.mark.parametrize("task", TASKS)
def test_held_out_examples_are_different_prompts(task: str) -> None:
    for split in (Split.HELD_OUT_SLOTS, Split.HELD_OUT_PARAPHRASES):
        if split is Split.HELD_OUT_SLOTS and task in WITHOUT_SLOTS:
            continue
        examples = held_out_examples(task, split, 200, seed=5)
        assert len({example.prompt for example in examples}) == len(examples) >= 100


def test_answers_are_true(trained: list[Example]) -> None:
    for example in trained:
        if example.task.startswith(("sum", "difference")):
            a, operator, b, result = re.fullmatch(r"(\d+) ([+-]) (\d+) = (-?\d+)", example.answer).groups()  # type: ignore[union-attr]
            assert int(result) == (int(a) + int(b) if operator == "+" else int(a) - int(b))
        elif example.task == "home":
            assert all(str(value) in example.prompt.lower() for key, value in json.loads(example.answer).items() if key == "item")
        elif example.task == "sort_words":
            words = example.answer.split(", ")
            assert words == sorted(words)
            assert all(word.lower() in example.prompt.lower() for word in words)
        elif example.task == "email":
            assert example.answer.lower() in example.prompt.lower()
        elif example.task == "reverse":
            forward, backward = example.answer.split(" -> ")
            assert forward == backward[::-1]
        elif example.task == "story":
            assert re.fullmatch(example.accepted, example.answer)


def test_every_task_is_trained_in_its_share(trained: list[Example]) -> None:
    total = sum(share for _, share in SHARES.values())
    for task, (_, share) in SHARES.items():
        assert sum(example.task == task for example in trained) / len(trained) == pytest.approx(share / total, rel=0.2)
