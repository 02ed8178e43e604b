"""Completions that the local executor answers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from fake_source import END, FakeSource, alternatives_of, executor, text_model
from local_requests import complete, run

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.api.generation import answer_json
from nearfar.server_fallback.engine.request import GeneratedToken, PromptLogprobs, TokenLogprob, TokenRequest
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.text.prompt_tokens import named_logprobs


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


def test_an_echo_with_logprobs_lists_the_prompt_the_answer_and_its_end(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "b")
    [choice] = complete(local, prompt="xéy", echo=True, logprobs=1, max_tokens=2).choices
    listed = choice.logprobs
    assert listed is not None
    assert choice.text == "xéyb"
    assert listed.tokens == ["x", "\ufffd", "\ufffd", "y", "b", "</s>"]
    assert listed.text_offset == [0, 1, 1, 2, 3, 4]
    assert listed.token_logprobs == [None, -2.0, -2.0, -2.0, -1.0, -0.5]
    assert listed.top_logprobs is not None
    assert listed.top_logprobs[0] is None
    assert listed.top_logprobs[3:] == [{"y": -1.0}, {"b": -1.0}, {"</s>": -0.5}]
    assert [(each.prompt_logprobs, each.prompt_alternatives) for each in source.requests] == [(4, 1)]


def test_a_prompt_is_scored_without_an_answer(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "b")
    answer = complete(local, prompt=[[104, 105], [105]], echo=True, logprobs=0, max_tokens=0)
    assert [choice.logprobs and choice.logprobs.token_logprobs for choice in answer.choices] == [[None, -2.0], [None]]
    assert [(choice.text, choice.finish_reason) for choice in answer.choices] == [("hi", "length"), ("i", "length")]
    assert (answer.usage.completion_tokens, [each.max_tokens for each in source.requests]) == (0, [1, 1])


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"stop": "ol"}, ["h", "<to"]),
        ({"stop": "ol>b", "include_stop_str_in_output": True}, ["h", "<tool>", "b"]),
        ({"stop": "ol", "include_stop_str_in_output": True}, ["h", "<tool"]),
        ({"stop": ["b", "<tool>"]}, ["h"]),
        ({"stop": "ol", "echo": True}, ["x", "h", "<to"]),
        ({}, ["h", "<tool>", "b"]),
    ],
)
def test_the_names_of_tokens_join_to_the_text_before_a_stop_string(
    tmp_path: Path, given: dict[str, Any], names: list[str]
) -> None:
    local = LocalExecutor(FakeSource([104, 258, 98]), text_model(tmp_path))
    [choice] = complete(local, prompt="x", logprobs=1, **given).choices
    assert choice.logprobs is not None
    assert (choice.logprobs.tokens, choice.text) == (names, "".join(names))
    assert choice.logprobs.text_offset == [len("".join(names[:index])) for index in range(len(names))]
    assert choice.logprobs.top_logprobs is not None
    assert [list(top) for top in choice.logprobs.top_logprobs if top][-1][0] == names[-1]


def test_a_cut_token_has_one_name_among_its_alternatives(tmp_path: Path) -> None:
    token = GeneratedToken(258, -1.0, (TokenLogprob(258, -1.0), TokenLogprob(98, -2.0)))
    assert named_logprobs(text_model(tmp_path).vocabulary, token, 2, "<to") == {"<to": -1.0, "b": -2.0}


def test_the_rank_of_a_prompts_token_does_not_depend_on_the_number_that_is_listed(tmp_path: Path) -> None:
    class Ranked(FakeSource):
        """The prompt's tokens are the fourth likeliest of those that the device lists."""

        async def generate(self, request: TokenRequest) -> AsyncGenerator[Any, None]:
            async for item in super().generate(request):
                if not isinstance(item, PromptLogprobs):
                    yield item
                    continue
                listed = alternatives_of(105 - 3, request.prompt_alternatives, -1.0)
                yield PromptLogprobs(tuple(GeneratedToken(each.token_id, -4.0, listed) for each in item.tokens))

    for most in (0, 1, 5):
        local = LocalExecutor(Ranked("b"), text_model(tmp_path))
        [choice] = complete(local, prompt="hi", prompt_logprobs=most).choices
        assert choice.prompt_logprobs is not None
        _, listed = choice.prompt_logprobs
        assert listed is not None
        assert {key: each.rank for key, each in listed.items()} == {105: 4} | {
            102 + index: 1 + index for index in range(most)
        }


def test_prompt_logprobs_and_token_ids_have_vllms_form(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "b")
    [choice] = complete(local, prompt="hi", prompt_logprobs=2, return_token_ids=True).choices
    assert (choice.prompt_token_ids, choice.token_ids) == ([104, 105], [98, END])
    assert choice.prompt_logprobs is not None
    none, listed = choice.prompt_logprobs
    assert none is None
    assert listed is not None
    assert {key: (each.logprob, each.rank, each.decoded_token) for key, each in listed.items()} == {
        105: (-1.0, 1, "i"),
        106: (-2.0, 2, "j"),
    }
    assert choice.logprobs is None
    # Without them, the answer has none of these keys.
    body = json.loads(answer_json(complete(local, prompt="hi")))
    assert body["choices"] == [{"index": 0, "text": "b", "logprobs": None, "finish_reason": "stop"}]


def test_stop_strings_and_special_tokens_can_be_part_of_the_text(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "abcd")
    assert complete(local, prompt="x", stop="bc").choices[0].text == "a"
    assert complete(local, prompt="x", stop="bc", include_stop_str_in_output=True).choices[0].text == "abc"
    local, _ = executor(tmp_path, *["x"])
    given = {"prompt": "x", "include_stop_str_in_output": True}
    assert complete(local, **given).choices[0].text == "x"
    assert complete(local, **given, skip_special_tokens=False).choices[0].text == "x</s>"


def test_a_completion_can_have_a_format(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "no")
    given = {"response_format": {"type": "regex", "pattern": "(yes|nope)"}}
    assert complete(local, prompt="x", **given).choices[0].text == "nope"
    with pytest.raises(RequestError, match="both set the answer's form"):
        complete(local, prompt="x", **given, guided_regex="a")
    run(local.close())


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [260]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "a" * 4097}, "prompt"),
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
