"""Requests of /v1/responses as chats."""

from __future__ import annotations

from typing import Any

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.schema.responses import ResponseRequest, RoutedResponseRequest
from nearfar.server_fallback.schema.routed import RoutedChatRequest
from nearfar.server_fallback.text.response_prompt import items_of, namespaces, translated
from nearfar.server_fallback.text.response_reasoning import encoded_reasoning
from nearfar.server_fallback.text.translated_chat import TranslatedChat, tokenize_request

PNG = "data:image/png;base64,AA=="
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "a", "output": "4"}


def translate(given: Any, **more: Any) -> TranslatedChat:
    request = ResponseRequest.model_validate({"model": "m", "input": given, **more})
    return translated(request, [], items_of(request.input))


def messages(given: Any, **more: Any) -> list[dict[str, Any]]:
    chat = translate(given, **more).chat
    return [message.model_dump(exclude_none=True) for message in chat.messages]


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_text_and_instructions() -> None:
    assert messages("hi", instructions="Be kind.") == [said("system", "Be kind."), said("user", "hi")]


def test_system_messages_at_the_beginning_become_one() -> None:
    items = [said("developer", "In Latin."), said("user", "hi"), said("developer", "Now in Greek.")]
    assert messages(items, instructions="Be kind.") == [
        said("system", "Be kind.\n\nIn Latin."),
        said("user", "hi"),
        said("system", "Now in Greek."),
    ]


def test_reasoning_text_and_calls_of_one_turn_are_one_message() -> None:
    thought = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    text = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [
        {"type": "output_text", "text": "Let me", "annotations": [], "logprobs": []},
        {"type": "output_text", "text": " look."},
    ]}  # fmt: skip
    other = {**CALL, "call_id": "b"}
    call_a, call_b = (
        {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ("a", "b")
    )
    assert messages([said("user", "hi"), thought, text, CALL, other, RESULT, {**RESULT, "call_id": "b"}, thought]) == [
        said("user", "hi"),
        {**said("assistant", "Let me look."), "reasoning_content": "Hm.", "tool_calls": [call_a, call_b]},
        {**said("tool", "4"), "tool_call_id": "a"},
        {**said("tool", "4"), "tool_call_id": "b"},
        {"role": "assistant", "reasoning_content": "Hm."},
    ]


def test_messages_of_an_assistant_that_follow_each_other_stay_apart() -> None:
    assert messages([said("assistant", "a"), said("assistant", "b"), said("user", "c")]) == [
        said("assistant", "a"),
        said("assistant", "b"),
        said("user", "c"),
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"summary": [{"type": "summary_text", "text": "Hm."}]},
        {"summary": [], "encrypted_content": encoded_reasoning("Hm.")},
        {"summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}], "encrypted_content": "of another"},
    ],
)
def test_reasoning_comes_back_in_each_of_its_forms(given: dict[str, Any]) -> None:
    [message] = messages([{"type": "reasoning", **given}])
    assert message == {"role": "assistant", "reasoning_content": "Hm."}


def test_parts_are_those_of_chats_and_pictures_of_results_are_the_users() -> None:
    parts = [
        {"type": "input_text", "text": "See"},
        {"type": "input_image", "image_url": PNG, "detail": "low"},
        {"type": "input_file", "filename": "a.txt", "file_data": "QQ=="},
        {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}},
    ]
    result = {**RESULT, "output": [{"type": "input_text", "text": "4"}, parts[1]]}
    user, _, tool, pictures = messages([{"role": "user", "content": parts}, CALL, result])
    image = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
    assert user["content"] == [
        {"type": "text", "text": "See"},
        image,
        {"type": "file", "file": {"filename": "a.txt", "file_data": "QQ=="}},
        parts[3],
    ]
    assert (tool["content"], pictures["role"], pictures["content"][1]) == ("4", "user", image)


def test_parameters() -> None:
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}, "strict": True} for name in "fgh"]
    chat = translate(
        "hi",
        tools=tools,
        tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=7,
        top_logprobs=2,
        temperature=0.5,
        top_k=3,
        parallel_tool_calls=False,
    ).chat
    assert chat.model_dump(exclude_unset=True, exclude={"messages"}, by_alias=True) == {
        "model": "m",
        "tools": [
            {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}, "strict": True}},
        ],
        "tool_choice": "required",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "verbosity": "low",
        "reasoning_effort": "low",
        "max_completion_tokens": 7,
        "logprobs": True,
        "top_logprobs": 2,
        "temperature": 0.5,
        "top_k": 3,
        "parallel_tool_calls": False,
    }
    counted = tokenize_request(chat)
    assert counted.chat_template_kwargs == {"enable_thinking": True, "reasoning_effort": "low", "verbosity": "low"}
    named = translate("hi", tools=tools, tool_choice={"type": "function", "name": "h"}).chat
    assert named.model_dump()["tool_choice"] == {"type": "function", "function": {"name": "h"}}


def test_functions_of_a_namespace_have_its_name() -> None:
    function = {"type": "function", "name": "close", "description": "Close one.", "parameters": {"type": "object"}}
    group = {"type": "namespace", "name": "agents", "description": "Sub-agents.", "tools": [function]}
    called = {**CALL, "name": "close", "namespace": "agents"}
    request = ResponseRequest.model_validate(
        {"model": "m", "input": [called], "tools": [{**function, "name": "f"}, group]}
    )
    chat = translated(request, [], items_of(request.input))
    assert chat.chat.tools is not None
    [tool, grouped] = chat.chat.tools
    assert (tool.function.name, grouped.function.name) == ("f", "agents__close")
    assert grouped.function.description == "Sub-agents.\nClose one."
    calls = chat.chat.messages[0].tool_calls
    assert calls is not None
    assert [call.function.name for call in calls] == ["agents__close"]
    assert namespaces(request) == {"agents__close": ("agents", "close")}
    assert chat.name_of("tools[1].function.parameters") == "tools[1].tools[0].parameters"


def test_a_request_to_two_sides_keeps_what_decides_between_them() -> None:
    request = RoutedResponseRequest.model_validate({"model": "m", "input": "hi", "labels": ["health"], "pin": "near"})
    chat = translated(request, [], items_of(request.input)).chat
    assert isinstance(chat, RoutedChatRequest)
    assert (chat.labels, chat.pin) == (["health"], "near")


@pytest.mark.parametrize(
    ("given", "more", "param"),
    [
        ([], {}, "input"),
        ([said("user", "hi"), RESULT], {}, "input[1].call_id"),
        ([{"role": "user", "content": [{"type": "input_file", "file_url": "https://a"}]}], {},
         "input[0].content[0].file_url"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}], {}, "input[0].content[0]"),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}], {}, "input[0].encrypted_content"),
        ("hi", {"tools": [], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "x"}]}}, "tool_choice"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(given: Any, more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        translate(given, **more)
    assert error.value.details["param"] == param
    assert param in error.value.message


@pytest.mark.parametrize(
    ("param", "name"),
    [
        ("messages[1].content[1].image_url", "input[0].content[1].image_url"),
        ("messages[1].content[0]", "input[0].content[0]"),
        ("messages[2].tool_calls[0].function.arguments", "input[1].arguments"),
        ("messages[3].content", "input[2].output"),
        ("messages[0].content", "instructions"),
        ("messages", "input"),
        ("max_tokens", "max_output_tokens"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("tools[0].function.parameters", "tools[1].parameters"),
        ("temperature", "temperature"),
    ],
)
def test_errors_name_the_parameters_of_the_request(param: str, name: str) -> None:
    content = [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": PNG}]
    chat = translate(
        [{"role": "user", "content": content}, CALL, RESULT],
        instructions="x",
        tools=[{"type": "function", "name": name} for name in "fg"],
        tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
    )
    renamed = chat.renamed(RequestError(f"{param} is wrong", param=param))
    assert (renamed.message, renamed.details["param"]) == (f"{name} is wrong", name)
