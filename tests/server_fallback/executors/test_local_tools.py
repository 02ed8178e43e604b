"""Tool calls and response formats of the local executor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_source import TEMPLATE, FakeSource, executor
from local_requests import ANSWER, STRICT, TOOL, chat, chunks, prompt_text, run

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.local import LocalExecutor


def test_an_answer_that_ends_with_a_complete_call_at_max_tokens_is_not_cut(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    for text, limit, reason in (
        (call + "!", len(call), "tool_calls"),
        (call, len(call) - 20, "length"),
        (call + " So", len(call) + 2, "length"),
    ):
        local, _ = executor(tmp_path, text)
        assert chat(local, tools=[TOOL], max_tokens=limit).choices[0].finish_reason == reason


CALLED = (
    'Well. <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>{"name": "g", '
    '"arguments": '
    "{}}</tool_call>"
)


def test_tool_calls_are_read_out_of_the_answer(tmp_path: Path) -> None:
    local, source = executor(tmp_path, CALLED, template=TEMPLATE + "{{ tools | tojson }}")
    [choice] = chat(local, tools=[TOOL]).choices
    assert '"name": "f"' in prompt_text(source)
    calls = choice.message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [("f", '{"a": 1}'), ("g", "{}")]
    assert calls[0].id.startswith("call_")
    assert len({call.id for call in calls}) == 2
    assert (choice.message.content, choice.finish_reason) == ("Well. ", "tool_calls")


def test_without_parallel_tool_calls_only_the_first_call_is_emitted(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, CALLED)
    [choice] = chat(local, tools=[TOOL], parallel_tool_calls=False).choices
    assert len(choice.message.tool_calls or []) == 1


ONE_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@contextmanager
def grammar_executor(folder: Path, *answers: str) -> Iterator[tuple[LocalExecutor, FakeSource]]:
    """The process of its grammar compiler ends with it. The prompts show the tools."""
    local, source = executor(folder, *answers, template=TEMPLATE + "{{ tools | tojson }}")
    try:
        yield local, source
    finally:
        run(local.close())


def test_beside_tools_a_form_holds_messages_and_its_text_is_never_read_as_a_call(tmp_path: Path) -> None:
    unlike_json = {"type": "regex", "pattern": "x: [^]*"}
    for form, message in ((ANSWER, json.dumps({"said": ONE_CALL})), (unlike_json, f"x: {ONE_CALL}")):
        with grammar_executor(tmp_path, message) as (local, source):
            [choice] = chat(local, tools=[TOOL], response_format=form).choices
            assert '"name": "f"' in prompt_text(source)
            assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (message, None, "stop")
            texts = [
                chunk.choices[0].delta.content
                for chunk in chunks(local, tools=[TOOL], response_format=form)
                if chunk.choices
            ]
            assert "".join(text or "" for text in texts) == message
            assert len(texts) > len(message), "the form's text is streamed as it comes"


def test_with_a_response_format_calls_follow_strict_schemas(tmp_path: Path) -> None:
    other = {"type": "function", "function": {"name": "g"}}
    second = '\n<tool_call>\n{"name": "g", "arguments": {"any": null}}\n</tool_call>'
    with grammar_executor(tmp_path, ONE_CALL + second, ONE_CALL.replace("1", '"x"')) as (local, _):
        for expected in ([("f", '{"a": 1}'), ("g", '{"any": null}')], None):
            [choice] = chat(local, tools=[STRICT, other], response_format=ANSWER, max_tokens=300).choices
            called = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
            assert expected in (None, called)
            assert isinstance(json.loads(called[0][1]).get("a", 0), int)


def test_if_a_call_is_required_a_form_has_no_effect_and_without_calls_only_the_form_has_one(tmp_path: Path) -> None:
    with grammar_executor(tmp_path, '{"said": "no"}', ONE_CALL) as (local, source):
        for choice in ("required", {"type": "function", "function": {"name": "f"}}):
            answer = chat(local, tools=[TOOL], tool_choice=choice, response_format=ANSWER, max_tokens=200)
            assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("tool_calls", None)
        [none] = chat(local, tools=[TOOL], tool_choice="none", response_format=ANSWER, max_tokens=60).choices
        assert list(json.loads(none.message.content or "")) == ["said"]
        assert prompt_text(source, 2).endswith("null")


def test_beside_tools_a_form_that_may_begin_as_a_call_is_refused(tmp_path: Path) -> None:
    with grammar_executor(tmp_path, "x") as (local, source):
        with pytest.raises(RequestError, match="may begin with '<tool_call>") as error:
            chat(local, tools=[TOOL], response_format={"type": "regex", "pattern": "[^]*"})
        assert error.value.details["param"] == "response_format"
        assert source.requests == []


def test_with_tool_choice_none_the_prompt_has_no_tools_and_calls_are_text(tmp_path: Path) -> None:
    local, source = executor(tmp_path, CALLED, template=TEMPLATE + "{{ tools | tojson }}")
    [choice] = chat(local, tools=[TOOL], tool_choice="none").choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALLED, None, "stop")
    assert prompt_text(source).endswith("null")


def test_tools_need_a_template_that_knows_them_and_chats_need_a_template(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "x", template="{{ messages }}")
    with pytest.raises(RequestError, match="chat template has no tools, or writes calls in an unknown format"):
        chat(local, tools=[TOOL])
    local, _ = executor(tmp_path, "x", template=None)
    with pytest.raises(RequestError, match="no chat template"):
        chat(local)
    local, _ = executor(tmp_path, "x", template="{{ raise_exception('odd') }}")
    with pytest.raises(RequestError, match="odd") as error:
        chat(local)
    assert error.value.details["param"] == "messages"
