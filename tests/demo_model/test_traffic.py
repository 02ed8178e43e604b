"""The router's demo traffic: its shares, its two parts, and the file that `nearfar router log` reads."""

from __future__ import annotations

import random
import zlib
from itertools import islice
from pathlib import Path

import pytest

from demo_model.corpus import HARD, NEAR
from demo_model.example import Example
from demo_model.reading_back import held_out_templates, is_held_out, is_trained, slot_values
from demo_model.talk import FAR_ANSWERS, FAR_TOO_HARD_ANSWER, TOO_HARD_ANSWER, UNKNOWN_ANSWER
from demo_model.traffic import HANDWRITTEN, Part, as_prompt, demo_prompts, examples, main
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.router.fitting.prompts import Prompt


def test_a_third_is_hard_and_the_parts_share_no_prompt() -> None:
    fit, held_out = demo_prompts("fit", 600), demo_prompts("eval", 300)
    assert fit == demo_prompts("fit", 600)
    assert fit != demo_prompts("fit", 600, seed=1)
    texts = {prompt.prompt for prompt in fit}
    assert len(texts) == 600
    # The hash decides, so prompts of any number and seed are in one part.
    assert all(zlib.crc32(prompt.prompt.encode()) % 3 > 0 for prompt in fit)
    assert all(zlib.crc32(prompt.prompt.encode()) % 3 == 0 for prompt in held_out)
    hard = sum(prompt.task in HARD for prompt in (*fit, *held_out)) / 900
    # Within three standard deviations.
    assert hard == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("part", ["fit", "eval"])
def test_a_fifth_has_new_phrasings_and_the_values_of_known_ones_depend_on_the_part(part: Part) -> None:
    drawn = list(islice(examples(part, random.Random(part)), 3000))
    held_out = held_out_templates()
    new = [example for example in drawn if example.phrasing in held_out]
    known = [example for example in drawn if example.phrasing not in held_out]
    # Within five standard deviations.
    assert len(new) == pytest.approx(600, abs=110)
    values = [value for example in known for value in slot_values(example)]
    assert len(values) > 1000
    assert all(map(is_trained if part == "fit" else is_held_out, values))
    assert all(is_held_out(value) for example in new for value in slot_values(example))


def test_the_file_reads_back_as_the_same_prompts_with_their_right_answers(tmp_path: Path) -> None:
    file = tmp_path / "new" / "prompts.jsonl"
    main(["eval", "--count", "100", "--seed", "3", "-o", str(file)])
    read = Prompt.read(file)
    assert read == demo_prompts("eval", 100, seed=3)
    assert all((prompt.expected is None) != (prompt.accepted is None) for prompt in read)


@pytest.mark.parametrize(
    ("prompt", "answers"),
    [
        ("4500 plus 21.", ("4500 + 21 = 4521", "4500 + 21 -> 1254 -> 4521")),
        ("21 - 4500", ("21 - 4500 = -4479",)),
        ("12.5 + 3", ()),
        ("7 * 8", ()),
    ],
)
def test_a_calculation_may_be_refused_in_the_words_of_either_model_or_done(
    prompt: str, answers: tuple[str, ...]
) -> None:
    graded = as_prompt(Example("refusal", prompt, TOO_HARD_ANSWER, "{a}"))
    for answer in (TOO_HARD_ANSWER, FAR_TOO_HARD_ANSWER, *answers):
        assert graded.is_right(answer), answer
    for answer in (UNKNOWN_ANSWER, "4500 + 21 = 4520", "12.5 + 3 = 15.5", "5 + 3 = 8", "7 * 8 = 56"):
        assert not graded.is_right(answer), answer


def test_small_talk_is_right_in_the_words_of_either_model() -> None:
    for near, far in FAR_ANSWERS.items():
        graded = as_prompt(Example("small_talk", "who are you", near, "who are you"))
        assert graded.is_right(near)
        assert graded.is_right(far)
        assert not graded.is_right("Goodbye!")


def test_every_prompt_has_the_group_of_its_phrasing() -> None:
    fit = demo_prompts("fit", 300)
    assert all(prompt.group is not None and prompt.group.startswith(f"{prompt.task}: ") for prompt in fit)
    assert len({prompt.group for prompt in fit}) > 100


def test_handwritten_prompts_are_foreign_to_the_traffic_and_have_a_right_answer() -> None:
    handwritten = Prompt.read(HANDWRITTEN)
    assert len({prompt.prompt for prompt in handwritten}) == len(handwritten) >= 200
    assert all((prompt.expected is None) != (prompt.accepted is None) for prompt in handwritten)
    assert {prompt.task for prompt in handwritten} == {*NEAR, *HARD, "none"} - {"refusal"}
    known = {prompt.prompt.lower() for part in ("fit", "eval") for prompt in demo_prompts(part, 500)}
    assert known.isdisjoint(prompt.prompt.lower() for prompt in handwritten)
    graded = {prompt.prompt: prompt for prompt in handwritten}
    change = graded["50 euro note, the bill was 32, what's my change?"]
    assert change.is_right("50 - 32 = 18")
    assert not change.is_right("32 - 50 = -18")
    capital = graded["what's the capital of Australia"]
    assert capital.is_right(UNKNOWN_ANSWER)
    assert capital.is_right("It is Canberra.")
    assert not capital.is_right("Sydney")


def test_more_prompts_than_the_tasks_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demo_model.traffic.DRAWS", 1)
    with pytest.raises(RequestError, match="request fewer than 50"):
        demo_prompts("fit", 50)
