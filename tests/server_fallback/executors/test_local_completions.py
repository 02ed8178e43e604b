"""Completions that the local executor answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_source import executor
from local_requests import complete

from nearfar.compiler.errors import RequestError


def test_several_prompts_each_get_n_answers(tmp_path: Path) -> None:
    local, source = executor(tmp_path, *"abcd")
    answer = complete(local, prompt=["xx", "y"], n=2, seed=5, echo=True, max_tokens=3)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [
        (0, "xxa", "stop"),
        (1, "xxb", "stop"),
        (2, "yc", "stop"),
        (3, "yd", "stop"),
    ]
    assert [request.sampling.seed for request in source.requests] == [5, 6, 5, 6]
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 4)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 6


def test_control_tokens_of_a_prompt_are_split_by_default(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "x", "x")
    complete(local, prompt="a</s>")
    complete(local, prompt="a</s>", split_special_tokens=False)
    assert [list(request.prompt_ids) for request in source.requests] == [list(b"a</s>"), [97, 257]]


def test_token_ids_are_prompts_too(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "a")
    assert complete(local, prompt=[104, 105], echo=True).choices[0].text == "hia"
    assert len(complete(local, prompt=[[104], [105, 258]]).choices) == 2
    assert [list(request.prompt_ids) for request in source.requests] == [[104, 105], [104], [105, 258]]


def test_completion_logprobs_have_offsets_in_the_answer(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "aéb")
    [choice] = complete(local, prompt="x", logprobs=1).choices
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "\ufffd", "\ufffd", "b"]
    assert choice.logprobs.text_offset == [0, 1, 1, 2]
    assert choice.logprobs.token_logprobs == [-1.0] * 4
    assert choice.logprobs.top_logprobs == [{"a": -1.0}, {"\ufffd": -1.0}, {"\ufffd": -1.0}, {"b": -1.0}]


def test_no_tokens_is_an_answer_without_the_engine(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "a")
    [choice] = complete(local, prompt="hi", echo=True, max_tokens=0).choices
    assert (choice.text, choice.finish_reason, source.requests) == ("hi", "length", [])


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [260]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "a" * 4097}, "prompt"),
        ({"prompt": "a", "echo": True, "logprobs": 0}, "echo"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": ["a"] * 9, "n": 128}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
    ],
)
def test_a_completion_that_cannot_be_answered_is_refused(tmp_path: Path, given: dict[str, Any], param: str) -> None:
    local, source = executor(tmp_path, "x")
    with pytest.raises(RequestError) as error:
        complete(local, **given)
    assert error.value.details["param"] == param
    assert source.requests == []
