"""The demo corpus: its answers are true, and held-out data never appears in training."""

from __future__ import annotations

import json
import random
import re
from itertools import islice, product
from types import ModuleType

import pytest

from demo_model import (
    arithmetic,
    command_lists,
    commands,
    extraction,
    home_phrasings,
    lists,
    long_arithmetic,
    passages,
    talk,
)
from demo_model.corpus import CORPORA, FAR, NEAR, WITHOUT_SLOTS, Corpus, held_out_examples, training_examples
from demo_model.example import Example, Split
from demo_model.phrasing import (
    HELD_OUT_PREFIXES,
    HELD_OUT_SENTENCE_PREFIXES,
    HELD_OUT_SUFFIXES,
    PREFIXES,
    SENTENCE_PREFIXES,
    SUFFIXES,
    Phrasings,
)

MODULES = (arithmetic, command_lists, extraction, home_phrasings, lists, long_arithmetic, passages, talk)


@pytest.fixture(scope="module", params=CORPORA)
def corpus(request: pytest.FixtureRequest) -> Corpus:
    return CORPORA[request.param]


@pytest.fixture(scope="module")
def trained(corpus: Corpus) -> list[Example]:
    return list(islice(training_examples(random.Random("corpus test"), corpus), 20_000))


def phrasings_of(module: ModuleType) -> list[Phrasings]:
    found = [value for value in vars(module).values() if isinstance(value, Phrasings)]
    if module is talk:
        found += [phrasings for _, phrasings in talk.INTENTS]
    if module is long_arithmetic:
        found += long_arithmetic.STORIES.values()
    if module is passages:
        found += [phrasings for relation in passages.RELATIONS for phrasings in (relation.stated, relation.asked)]
    return found


def expansions(template: str) -> set[str]:
    """All expansions of a template, with unfilled slots."""
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


def test_held_out_paraphrases_never_appear_in_training_examples(corpus: Corpus, trained: list[Example]) -> None:
    held_out = {template for module in MODULES for phrasings in phrasings_of(module) for template in phrasings.held_out}
    for task in corpus:
        measured = held_out_examples(task, Split.HELD_OUT_PARAPHRASES, 100, 1, corpus)
        assert {example.phrasing for example in measured} <= held_out
        assert not {example.prompt.lower() for example in measured} & {example.prompt.lower() for example in trained}
    # "get the numbers sorted" is held out for numbers and for words, so phrasings are compared within a task.
    for task in corpus:
        used = {example.phrasing for example in trained if example.task == task}
        assert not used & {
            example.phrasing for example in held_out_examples(task, Split.HELD_OUT_PARAPHRASES, 200, 2, corpus)
        }


def test_held_out_politeness_is_not_trained() -> None:
    assert not set(PREFIXES + SENTENCE_PREFIXES) & set(HELD_OUT_PREFIXES + HELD_OUT_SENTENCE_PREFIXES)
    assert not set(SUFFIXES) & set(HELD_OUT_SUFFIXES)


def test_number_pairs_held_out_of_sums_are_trained_in_neither_order(trained: list[Example]) -> None:
    two_numbers = ("sum", "sum_3_digits", "sum_5_digits")
    pairs = {frozenset(re.findall(r"\d+", example.answer)[:2]) for example in trained if example.task in two_numbers}
    for task in two_numbers:
        for example in held_out_examples(task, Split.HELD_OUT_SLOTS, 200, 3, FAR):
            assert frozenset(re.findall(r"\d+", example.answer)[:2]) not in pairs


def test_held_out_place_names_are_never_trained(trained: list[Example]) -> None:
    calls = [json.loads(example.answer) for example in trained if example.task == "home"]
    places = {call[key] for call in calls for key in ("room", "door", "genre", "item") if key in call}
    assert not places & {*commands.HELD_OUT_ROOMS, *commands.HELD_OUT_GENRES}
    for example in held_out_examples("home", Split.HELD_OUT_SLOTS, 200, seed=4):
        call = json.loads(example.answer)
        named = [str(call[key]) for key in ("room", "door", "genre", "item") if key in call]
        assert call["tool"] == "set_timer" or named
        assert not set(named) & places


@pytest.mark.parametrize("task", FAR)
def test_held_out_examples_are_different_prompts(task: str) -> None:
    for split in (Split.HELD_OUT_SLOTS, Split.HELD_OUT_PARAPHRASES):
        if split is Split.HELD_OUT_SLOTS and task in WITHOUT_SLOTS:
            continue
        examples = held_out_examples(task, split, 200, 5, FAR)
        assert len({example.prompt for example in examples}) == len(examples) >= 100


def test_answers_are_true(trained: list[Example]) -> None:
    for example in trained:
        assert_true(example)


def assert_true(example: Example) -> None:
    prompt, answer = example.prompt.lower(), example.answer
    if example.task.startswith(("sum", "difference", "story_problem")):
        assert_arithmetic(example)
    elif example.task in ("home", "command_list"):
        calls = json.loads(answer)
        for call in calls if example.task == "command_list" else [calls]:
            assert call["tool"]
            assert all(str(value) in prompt for key, value in call.items() if key == "item")
    elif example.task == "sort_words":
        words = answer.split(", ")
        assert words == sorted(words)
        assert all(word.lower() in prompt for word in words)
    elif example.task in ("sort_numbers", "sort_many_numbers"):
        numbers = [int(number) for number in answer.split(", ")]
        assert numbers in (sorted(numbers), sorted(numbers, reverse=True))
        assert sorted(numbers) == sorted(map(int, re.findall(r"\d+", prompt)))
    elif example.task == "email":
        assert answer.lower() in prompt
    elif example.task == "reverse":
        forward, backward = answer.split(" -> ")
        assert forward == backward[::-1]
    elif example.task == "story":
        assert re.fullmatch(example.accepted, answer)


def assert_arithmetic(example: Example) -> None:
    """Every expression of the answer has the value of its last number, and its operands are those of the prompt."""
    expressions = re.split(r" = | -> ", example.answer)
    if "5_digits" in example.task:
        assert expressions.pop(1) == expressions[-1][::-1]
    result = int(expressions[-1])
    for expression in expressions:
        assert sum(int(sign + number) for sign, number in re.findall(r"(?:(-|\+) ?)?(\d+)", expression)) == result
    assert sorted(re.findall(r"\d+", expressions[0])) == sorted(re.findall(r"\d+", example.prompt))


def test_one_sentence_of_a_passage_and_only_one_answers_its_question() -> None:
    for example in held_out_examples("reading", Split.HELD_OUT_SLOTS, 300, 6, FAR):
        (relation,) = (
            relation for relation in passages.RELATIONS if as_pattern(relation.answer).fullmatch(example.answer)
        )
        name, value = as_pattern(relation.answer).fullmatch(example.answer).groups()  # type: ignore[union-attr]
        stated = {re.escape(text.format(name=name, value=value)) for text in relation.stated.training}
        # "Ana is 7." is part of "The age of Ana is 7." and not a separate statement there.
        assert len(re.findall(rf"(?<!of )\b(?:{'|'.join(stated)})", example.prompt, re.IGNORECASE)) == 1, example
        asked = [text.format(name=name, value=value) for text in relation.asked.training]
        assert any(f"{text}?" in example.prompt.lower() for text in map(str.lower, asked)), example


def as_pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\{name\}", "(.+)").replace(r"\{value\}", "(.+)"))


def test_the_far_model_does_what_the_near_one_does_and_more() -> None:
    assert set(NEAR) < set(FAR)


def test_every_task_is_trained_in_its_share(corpus: Corpus, trained: list[Example]) -> None:
    total = sum(share for _, share in corpus.values())
    for task, (_, share) in corpus.items():
        expected = len(trained) * share / total
        # Five standard deviations of a count.
        assert sum(example.task == task for example in trained) == pytest.approx(expected, abs=5 * expected**0.5)
