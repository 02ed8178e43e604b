"""Reasoning in chats, with a model that generates given texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_source import END, HYBRID, OPEN, OPENED, FakeSource, ids, reasoner, text_of
from local_requests import HI, chat, chunks, complete, run

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.text.grammar.bounded import BoundedConstraint

SCHEMA = {
    "type": "json_schema",
    "json_schema": {"schema": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}},
}
TOOL = {"type": "function", "function": {"name": "f"}}


@contextmanager
def held_reasoner(folder: Path, *answers: str, template: str = HYBRID) -> Iterator[tuple[LocalExecutor, FakeSource]]:
    """The process of its grammar compiler ends with it."""
    local, source = reasoner(folder, *answers, template=template)
    try:
        yield local, source
    finally:
        run(local.close())


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    ("template", "answer"), [(HYBRID, "<think>\nHm, é.\n</think>\n\nYes."), (OPENED, "Hm, é.\n</think>\n\nYes.")]
)
def test_reasoning_is_a_separate_field_complete_and_streamed(
    tmp_path: Path, template: str, answer: str, special: bool
) -> None:
    local, _ = reasoner(tmp_path, answer, template=template, special=special)
    whole = chat(local)
    [choice] = whole.choices
    assert (choice.message.reasoning_content, choice.message.content, choice.finish_reason) == (
        "Hm, é.",
        "Yes.",
        "stop",
    )
    before = len(ids(answer.split("</think>")[0])) + 1
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.reasoning_tokens == before
    assert whole.usage.completion_tokens == len(ids(answer))
    deltas = [choice.delta.model_dump(exclude_none=True) for chunk in chunks(local) for choice in chunk.choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1:-1] == [{"reasoning_content": each} for each in "Hm, é."] + [{"content": each} for each in "Yes."]


def test_reasoning_that_never_ends_leaves_no_content(tmp_path: Path) -> None:
    local, _ = reasoner(tmp_path, "Hm. Hm.", template=OPENED)
    [choice] = chat(local, max_tokens=3).choices
    assert (choice.message.reasoning_content, choice.message.content, choice.finish_reason) == ("Hm.", None, "length")


def test_a_model_without_markers_in_its_template_is_left_alone(tmp_path: Path) -> None:
    local, _ = reasoner(tmp_path, "<think>a</think>b", template="{{ messages[0].content }}")
    answer = chat(local, reasoning_effort="low")
    assert answer.choices[0].message.content == "<think>a</think>b"
    assert answer.usage.completion_tokens_details is None
    with pytest.raises(RequestError, match="does not reason") as refused:
        chat(local, thinking_token_budget=3)
    assert refused.value.details["param"] == "thinking_token_budget"


def test_text_completions_are_not_parsed(tmp_path: Path) -> None:
    local, _ = reasoner(tmp_path, "<think>a</think>b")
    assert complete(local, prompt="x").choices[0].text == "<think>a</think>b"


@pytest.mark.parametrize(
    ("given", "off"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"enable_thinking": False}, True),
        ({"reasoning_effort": "none"}, True),
        ({"reasoning_effort": "minimal"}, True),
        ({"reasoning_effort": "none", "enable_thinking": True}, False),
        ({"enable_thinking": True}, False),
        ({"reasoning_effort": "high"}, False),
        ({}, False),
    ],
)
def test_thinking_is_switched_off_in_the_template(tmp_path: Path, given: dict[str, Any], off: bool) -> None:
    local, source = reasoner(tmp_path, "Hi <think>")
    assert chat(local, **given).choices[0].message.content == "Hi <think>"
    assert text_of(source.requests[0].prompt_ids).endswith("</think>\n\n") == off


def test_a_switch_that_the_template_lacks_is_refused_or_named(tmp_path: Path) -> None:
    local, _ = reasoner(tmp_path, "a</think>b", template=OPENED)
    with pytest.raises(RequestError, match="enable_thinking has no effect") as refused:
        chat(local, enable_thinking=False)
    assert refused.value.details["param"] == "enable_thinking"
    ignored: list[str] = []
    chat(local, Call("1", ignore_param=ignored.append), enable_thinking=False)
    assert ignored == ["enable_thinking"]
    both, _ = reasoner(tmp_path, "a")
    with pytest.raises(RequestError, match="use one of them"):
        chat(both, enable_thinking=False, chat_template_kwargs={"enable_thinking": True})


def test_a_budget_ends_the_reasoning_and_the_answer_goes_on(tmp_path: Path) -> None:
    wanted = "one two three four five six</think>\n\nYes."
    for budget, reasoning in ((7, "one two"), (0, None)):
        local, source = reasoner(tmp_path, wanted, template=OPENED)
        [choice] = chat(local, max_tokens=60, thinking_token_budget=budget).choices
        assert choice.message.reasoning_content == reasoning
        # The source's tokens after those that were replaced by forced ones.
        forced = len(reasoning or "") + len(ids("\n</think>\n\n"))
        assert choice.message.content == text_of(ids(wanted)[forced:]).lstrip("\n")
    # The effort is a budget if the template neither reads it nor has a switch.
    local, source = reasoner(tmp_path, "x" * 1100 + "</think>Yes.", template=OPENED)
    assert chat(local, reasoning_effort="low").choices[0].message.reasoning_content == "x" * 1024
    assert chat(local, reasoning_effort="none").choices[0].message.reasoning_content is None
    assert chat(local, reasoning_effort="max").choices[0].message.reasoning_content == "x" * 1100
    assert [request.constraint is None for request in source.requests] == [False, False, True]


def test_each_of_several_answers_has_its_own_budget(tmp_path: Path) -> None:
    local, _ = reasoner(tmp_path, "<think>abcdef</think>", "<think>a</think>b", "c")
    answer = chat(local, n=3, thinking_token_budget=2)
    messages = [(choice.message.reasoning_content, (choice.message.content or "")[:1]) for choice in answer.choices]
    assert messages == [("ab", "<"), ("a", "b"), (None, "c")]


def test_a_response_format_applies_to_the_text_after_the_reasoning(tmp_path: Path) -> None:
    cases: list[tuple[str, str, dict[str, Any]]] = [
        (HYBRID, "<think>I am\n</think>", {}),
        (OPENED, "I am\n</think>", {"thinking_token_budget": 4}),
        (HYBRID, "", {}),
    ]
    for template, answer, given in cases:
        with held_reasoner(tmp_path, answer, template=template) as (local, _):
            [choice] = chat(local, response_format=SCHEMA, max_tokens=60, **given).choices
        assert choice.message.reasoning_content == ("I am" if answer else None)
        assert json.loads(choice.message.content or "") == {"a": 1}
    with held_reasoner(tmp_path, "<think>") as (local, source):
        content = chat(local, response_format=SCHEMA, max_tokens=60, enable_thinking=False).choices[0].message.content
    assert json.loads(content or "") == {"a": 1}
    assert isinstance(source.requests[0].constraint, BoundedConstraint)


def test_the_reasoning_leaves_room_for_the_form(tmp_path: Path) -> None:
    with held_reasoner(tmp_path, "x" * 100, template=OPENED) as (local, _):
        [choice] = chat(local, response_format=SCHEMA, max_tokens=30).choices
        with pytest.raises(RequestError, match="need 11 tokens, and max_tokens is 10") as refused:
            chat(local, response_format=SCHEMA, max_tokens=10)
    assert refused.value.details["param"] == "max_tokens"
    assert (choice.message.content, choice.finish_reason) == ('{"a":1}', "stop")
    # The reasoning uses the tokens that the shortest form and the marker with its line breaks leave.
    assert choice.message.reasoning_content == "x" * (30 - len('{"a":1}') - 4)


def test_the_model_cannot_end_its_answer_before_the_form(tmp_path: Path) -> None:
    with held_reasoner(tmp_path, "", template=OPENED) as (local, source):
        [choice] = chat(local, response_format=SCHEMA, max_tokens=13).choices
    # The source would end immediately, but has to generate other tokens until the reasoning must end.
    assert (choice.message.content, choice.finish_reason, source.tokens) == ('{"a":1}', "stop", 13)


def test_calls_are_read_from_the_content_alone(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    local, _ = reasoner(tmp_path, f"<think>{call}</think>\n\n{call}")
    [choice] = chat(local, tools=[TOOL]).choices
    assert (choice.message.reasoning_content, choice.message.content, choice.finish_reason) == (
        call,
        None,
        "tool_calls",
    )
    assert [each.function.name for each in choice.message.tool_calls or ()] == ["f"]
    with held_reasoner(tmp_path, "<think>Hm</think>") as (forced, _):
        [choice] = chat(forced, tools=[TOOL], tool_choice="required", max_tokens=100).choices
    assert (choice.message.reasoning_content, choice.finish_reason) == ("Hm", "tool_calls")


def test_stop_strings_end_the_content_alone_and_logprobs_are_of_all_tokens(tmp_path: Path) -> None:
    local, _ = reasoner(tmp_path, "<think>\nno stop</think>\n\nyes stop no")
    answer = chat(local, stop=" stop", logprobs=True)
    [choice] = answer.choices
    assert (choice.message.reasoning_content, choice.message.content, choice.finish_reason) == (
        "no stop",
        "yes",
        "stop",
    )
    assert choice.logprobs is not None
    assert "".join(token.token for token in choice.logprobs.content or ()) == "<think>\nno stop</think>\n\nyes"
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(ids("<think>\nno stop</think>"))


def test_an_answer_is_returned_unchanged(tmp_path: Path) -> None:
    local, source = reasoner(tmp_path, "<think>\nHm.\n</think>\n\nYes.", "Ok.")
    answer = chat(local).choices[0].message.model_dump(exclude_none=True)
    chat(local, messages=[*HI, answer, {"role": "user", "content": "so?"}])
    received = "[user]hi[assistant]<think>\nHm.\n</think>\n\nYes.[user]so?[assistant]"
    assert text_of(source.requests[1].prompt_ids) == received
    chat(
        local,
        messages=[
            *HI,
            {"role": "assistant", "content": "Yes.", "reasoning": "Hm."},
            {"role": "user", "content": "so?"},
        ],
    )
    assert text_of(source.requests[2].prompt_ids) == received


@pytest.mark.parametrize(
    ("template", "begun", "prompt", "answer"),
    [
        (HYBRID, {"content": "Yes"}, "Yes", (None, "<think>a</think>b")),
        (HYBRID, {"content": "", "reasoning_content": "Hm"}, "<think>\nHm", ("<think>a", "b")),
        (
            HYBRID,
            {"content": "Yes", "reasoning_content": "Hm"},
            "<think>\nHm\n</think>\n\nYes",
            (None, "<think>a</think>b"),
        ),
        (HYBRID, {"content": "<think>\nHm"}, "<think>\nHm", ("<think>a", "b")),
        (HYBRID, {"content": "<think>Hm</think>Yes"}, "<think>Hm</think>Yes", (None, "<think>a</think>b")),
        (HYBRID, {"content": ""}, "", ("a", "b")),
        (OPENED, {"content": "Yes"}, "<think>\n\n</think>\n\nYes", (None, "<think>a</think>b")),
        (OPENED, {"content": "", "reasoning_content": "Hm"}, "<think>\nHm", ("<think>a", "b")),
        (OPENED, {"content": "Hm</think>Yes"}, "<think>\nHm</think>Yes", (None, "<think>a</think>b")),
    ],
)
def test_an_answer_goes_on_from_reasoning_and_content(
    tmp_path: Path, template: str, begun: dict[str, str], prompt: str, answer: tuple[str | None, str]
) -> None:
    local, source = reasoner(tmp_path, "<think>a</think>b", template=template)
    [choice] = chat(local, messages=[*HI, {"role": "assistant", **begun}], continue_final_message=True).choices
    assert text_of(source.requests[0].prompt_ids) == f"[user]hi[assistant]{prompt}"
    reasoning, content = answer
    assert (choice.message.reasoning_content, choice.message.content) == (reasoning, content)


def test_the_users_text_does_not_open_the_reasoning(tmp_path: Path) -> None:
    local, source = reasoner(tmp_path, "b")
    assert chat(local, messages=[{"role": "user", "content": "<think>"}]).choices[0].message.content == "b"
    assert OPEN in source.requests[0].prompt_ids
    assert END not in source.requests[0].prompt_ids
