"""The demo corpus: its answers are true, and held-out data never appears in training."""

from __future__ import annotations

import json
import random
import re
from itertools import islice, product

import pytest

from demo_model import commands, passages
from demo_model.corpus import CORPORA, FAR, NEAR, WITHOUT_SLOTS, Corpus, held_out_examples, training_examples
from demo_model.example import Example, Split
from demo_model.phrasing import (
    HELD_OUT_PREFIXES,
    HELD_OUT_SENTENCE_PREFIXES,
    HELD_OUT_SUFFIXES,
    PREFIXES,
    SENTENCE_PREFIXES,
    SUFFIXES,
    dress,
)
from demo_model.reading_back import (
    MODULES,
    held_out_templates,
    is_held_out,
    is_trained,
    phrasings_of,
    require_true,
    slot_values,
)


@pytest.fixture(scope="module", params=CORPORA)
def corpus(request: pytest.FixtureRequest) -> Corpus:
    return CORPORA[request.param]


@pytest.fixture(scope="module")
def trained(corpus: Corpus) -> list[Example]:
    return list(islice(training_examples(random.Random("corpus test"), corpus), 20_000))


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
    held_out = held_out_templates()
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


@pytest.mark.parametrize("split", Split)
def test_held_out_politeness_is_not_trained(split: Split) -> None:
    rng = random.Random("politeness")
    dressed = [[dress(rng, template, split).rstrip(".!?") for _ in range(4000)] for template in ("~QUESTION", "ORDER")]
    before, after = (
        {
            text.partition(word)[side]
            for texts, word in zip(dressed, ("QUESTION", "ORDER"), strict=True)
            for text in texts
        }
        for side in (0, 2)
    )
    if split.phrasing_is_held_out:
        assert before == {"", *HELD_OUT_PREFIXES, *HELD_OUT_SENTENCE_PREFIXES}
        assert after == {"", *HELD_OUT_SUFFIXES}
    else:
        # Apostrophes are left out in some prompts.
        assert before == {"", *PREFIXES, *SENTENCE_PREFIXES, "id like you to "}
        assert after == {"", *(suffix.rstrip("?") for suffix in SUFFIXES)}
    assert not set(PREFIXES + SENTENCE_PREFIXES) & set(HELD_OUT_PREFIXES + HELD_OUT_SENTENCE_PREFIXES)
    assert not set(SUFFIXES) & set(HELD_OUT_SUFFIXES)


def test_training_never_uses_a_value_that_is_held_out(trained: list[Example]) -> None:
    used = {task: [] for task in FAR}  # type: dict[str, list[str]]
    for example in trained:
        used[example.task] += slot_values(example)
    for task, values in used.items():
        assert not [value for value in values if not is_trained(value)], task


@pytest.mark.parametrize("task", sorted(set(FAR) - WITHOUT_SLOTS))
def test_measured_values_are_held_out_of_training(task: str) -> None:
    for split in (Split.HELD_OUT_SLOTS, Split.HELD_OUT_PARAPHRASES):
        examples = held_out_examples(task, split, 200, 3, FAR)
        values = [value for example in examples for value in slot_values(example)]
        assert not [value for value in values if is_trained(value)]
        assert len(values) >= 30 or task in ("story", "reading", "sort_words")


def test_words_to_sort_are_from_one_side_of_the_split(trained: list[Example]) -> None:
    measured = held_out_examples("sort_words", Split.HELD_OUT_SLOTS, 200, 3)
    for examples, held_out in ((trained, False), (measured, True)):
        for example in examples:
            for word in example.answer.split(", ") if example.task == "sort_words" else ():
                # A name, or a pseudo-word in the place of one, is capitalized after it is drawn.
                assert held_out in (is_held_out(word), is_held_out(word.lower())), example


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
        require_true(example)


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
