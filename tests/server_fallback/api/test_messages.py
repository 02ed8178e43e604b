"""/v1/messages: how requests in Anthropic's form are read as chats, the order of events, and refusals by name."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from asgi import ask, ask_app, ask_of, run
from fake_models import FakeExecutor, FakeModels
from fake_source import executor, reasoner

from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.api.messages import MessageEvents
from nearfar.server_fallback.schema.chat import ChatCompletionChunk
from nearfar.server_fallback.schema.messages import MessagesRequest, RoutedMessagesRequest
from nearfar.server_fallback.schema.routed import RoutedChatRequest
from nearfar.server_fallback.text.messages_form import as_chat, renamed, translated

HI: dict[str, Any] = {"model": "fake", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Zürich"}}
FILED = {"type": "image", "source": {"type": "file", "file_id": "f"}}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
IMAGE = {"type": "image", "source": PIXEL}


def chat(messages: list[Any], **more: Any) -> Any:
    """The chat of a request, without what has no value."""
    request = MessagesRequest.model_validate({**HI, "messages": messages, **more})
    return as_chat(request).model_dump(mode="json", by_alias=True, exclude_none=True)


def refused(**more: Any) -> str:
    answer = ask("POST", "/v1/messages", {**HI, **more})
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    return str(error["error"]["message"])


def stream_of(executor: Any, **more: Any) -> list[Any]:
    answer = ask_of(executor, "/v1/messages", {**HI, "stream": True, **more})
    assert answer.status_code == 200, answer.text
    events = [part.split("\n") for part in answer.text.split("\n\n") if part]
    values = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert [name for name, _ in events] == [f"event: {value['type']}" for value in values]
    return values


def test_a_conversation_with_tools_is_read_as_a_chat() -> None:
    results = [
        {"type": "text", "text": "so?"},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "12", "cache_control": {"type": "ephemeral"}},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_2",
            "is_error": True,
            "content": [{"type": "text", "text": "no"}],
        },
        {"type": "tool_result", "tool_use_id": "toolu_3"},
    ]
    calls = [{**CALL, "id": f"toolu_{number}"} for number in (1, 2, 3)]
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "abc"}
    read = chat(
        [
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, *calls]},
            {"role": "user", "content": results},
        ],
        system=[{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
                {"type": "text", "text": " brief."}],
    )  # fmt: skip
    written = [
        {"id": each["id"], "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
        for each in calls
    ]
    assert read["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\n\nbc"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": written},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "12"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "[The tool failed]\nno"},
        {"role": "tool", "tool_call_id": "toolu_3", "content": ""},
        {"role": "user", "content": "so?"},
    ]


def test_images_and_documents_are_parts_and_those_of_results_follow_them() -> None:
    page = base64.b64encode(b"# Rent").decode()
    inner = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    read = chat(
        [
            {"role": "user", "content": [
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
                {"type": "document", "title": "rent.md", "context": "Of May.",
                 "source": {"type": "base64", "media_type": "text/markdown", "data": page}},
                {"type": "document", "title": "Two\nlines", "source": {"type": "content", "content": inner}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
            ]},
            {"role": "assistant", "content": [CALL]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [
                {"type": "text", "text": "see"}, IMAGE]}]},
        ]
    )  # fmt: skip
    first, _, result, images = read["messages"]
    assert [part.get("text") or part["type"] for part in first["content"]] == [
        "image_url", "Of May.\n", "file", "[Document: Two lines]\n", "A", "B", "\n[End of Document: Two lines]\n",
        "[Document]\n", "plain", "\n[End of Document]\n",
    ]  # fmt: skip
    assert first["content"][2]["file"] == {
        "filename": "rent.md",
        "file_data": f"data:text/markdown;base64,{page}",
    }
    assert result == {"role": "tool", "tool_call_id": "toolu_1", "content": "see"}
    assert images["content"][1]["image_url"] == {"url": "data:image/png;base64,iVBORw0KGgo="}


def test_parameters_have_the_names_of_chats() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"name": "weather", "description": "d", "input_schema": schema, "strict": True, "type": "custom",
            "input_examples": [{"city": "Bern"}], "eager_input_streaming": True}  # fmt: skip
    read = chat(
        HI["messages"],
        tools=[tool],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        metadata={"user_id": "u1"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": schema}},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
    )
    function = {"name": "weather", "description": "d", "strict": True}
    function["parameters"] = {"examples": [{"city": "Bern"}], **schema}
    del read["messages"]
    assert read == {
        "model": "fake", "max_tokens": 64, "stop": ["END"], "temperature": 0.5, "top_p": 0.9, "top_k": 7, "user": "u1",
        "tools": [{"type": "function", "function": function}], "tool_choice": "required", "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 1024, "reasoning_effort": "high",
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
    }  # fmt: skip
    named = chat(HI["messages"], tools=[tool], tool_choice={"type": "tool", "name": "weather"})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert chat(HI["messages"], tools=[tool], tool_choice={"type": "none"})["tool_choice"] == "none"
    assert chat(HI["messages"], thinking={"type": "disabled"})["reasoning_effort"] == "none"
    assert "reasoning_effort" not in chat(HI["messages"], thinking={"type": "adaptive"})


def test_an_assistant_s_turn_at_the_end_is_the_start_of_the_answer() -> None:
    begun = [*HI["messages"], {"role": "assistant", "content": "The best"}]
    assert chat(begun)["continue_final_message"] is True
    assert "messages[1] ends the messages and has tool_use" in refused(
        messages=[*HI["messages"], {"role": "assistant", "content": [CALL]}]
    )


def test_a_pair_of_sides_reads_labels() -> None:
    request = RoutedMessagesRequest.model_validate({**HI, "labels": ["private"], "pin": "near"})
    read = as_chat(request)
    assert isinstance(read, RoutedChatRequest)
    assert (read.labels, read.pin) == (["private"], "near")
    assert "labels" in refused(labels=["private"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"container": "c"}, "Unknown parameter: 'container'"),
        ({"context_management": {"edits": []}}, "Unknown parameter: 'context_management'"),
        ({"tools": [{"type": "web_search_20260209", "name": "web_search"}]}, "'web_search_20260209' is a tool that"),
        ({"tools": [{"name": "a", "input_schema": {}, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"speed": "fast"}, "speed"),
        ({"thinking": {"type": "between_tools"}}, "'thinking' is of type 'between_tools'; supported: enabled"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "'messages[0]' is of role 'tool'; supported: user"),
        ({"messages": [{"content": "x"}]}, "Missing required parameter: 'messages[0].role'"),
        (
            {"messages": [{"role": "user", "content": [FILED]}]},
            "'messages[0].content[0].source' is of type 'file'; supported: base64, url",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]},
            "'messages[0].content[0]' is a part of type 'redacted_thinking'; supported: text, thinking, tool_use;",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t9"}]}]},
            "messages[0].content[0].tool_use_id names no tool_use of an earlier assistant's message",
        ),
        (
            {"messages": [{"role": "user", "content": [
                {"type": "document", "citations": {"enabled": True},
                 "source": {"type": "text", "media_type": "text/plain", "data": "x"}}]}]},
            "messages[0].content[0].citations.enabled",
        ),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(more: dict[str, Any], message: str) -> None:
    assert message in refused(**more)


def test_errors_of_the_model_name_the_request_s_own_parameters(tmp_path: Path) -> None:
    local: Any
    local, _ = executor(tmp_path, "Yes.")

    def told(**more: Any) -> Any:
        return ask_of(local, "/v1/messages", {**HI, **more}).json()["error"]

    seen = [*HI["messages"], {"role": "assistant", "content": "and?"},
            {"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}]  # fmt: skip
    image = told(system="Be brief.", messages=seen)
    assert image["message"].startswith("messages[2].content[1] is an image, and this model reads texts only")
    assert image["details"] == {"error_code": "invalid_value", "param": "messages[2].content[1]"}
    assert told(thinking={"type": "enabled", "budget_tokens": 9})["message"].startswith("thinking.budget_tokens has no")
    assert told(stop_sequences=[""])["message"].startswith("stop_sequences holds an empty string")
    bad = told(tools=[{"name": "a b", "input_schema": {}}])
    assert bad["message"].startswith("tools[0].name must be of letters")
    long = told(messages=[{"role": "user", "content": "x" * 5000}])
    assert long["message"] == "prompt is too long: 5017 tokens > 4096 maximum"
    assert long["details"]["error_code"] == "context_length_exceeded"
    asyncio.run(local.close())


def test_an_unknown_parameter_s_error_stays_as_it_is() -> None:
    request = MessagesRequest.model_validate(HI)
    error = RequestError("seed is odd", param="seed")
    assert renamed(request, error) is error
    assert translated(request).paths["messages[0]"] == "messages[0]"


def test_a_text_is_one_block_and_the_usage_comes_last() -> None:
    values = stream_of(FakeExecutor())
    start = values[0]["message"]
    assert (start["id"], start["content"], start["stop_reason"]) == ("msg_1", [], None)
    assert [value["type"] for value in values[1:]] == [
        "content_block_start", *["content_block_delta"] * 3, "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert values[1]["content_block"] == {"type": "text", "text": ""}
    assert "".join(value["delta"]["text"] for value in values[2:5]) == "Hello!"
    assert values[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    usage = values[-2]["usage"]
    assert usage == {
        "input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 3,
    }  # fmt: skip


def test_our_engine_reports_the_prompt_at_the_start_and_a_stop_sequence_by_name(tmp_path: Path) -> None:
    local: Any
    local, source = executor(tmp_path, "one two three")
    values = stream_of(local, stop_sequences=["zzz", " th"])
    prompt = len(source.requests[0].prompt_ids)
    assert values[0]["message"]["usage"]["input_tokens"] == prompt
    assert values[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": " th"}
    whole = ask_of(local, "/v1/messages", {**HI, "stop_sequences": [" th"]}).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", " th")
    assert whole["content"] == [{"type": "text", "text": "one two"}]
    short = ask_of(local, "/v1/messages", {**HI, "max_tokens": 3}).json()
    assert (short["stop_reason"], short["usage"]["output_tokens"]) == ("max_tokens", 3)
    asyncio.run(local.close())


def test_reasoning_is_a_block_that_can_be_empty(tmp_path: Path) -> None:
    local: Any
    local, _ = reasoner(tmp_path, "<think>\nHm, well.\n</think>\n\nYes.")
    values = stream_of(local)
    kinds = [value.get("delta", {}).get("type") or value["type"] for value in values]
    assert list(dict.fromkeys(kinds)) == [
        "message_start", "content_block_start", "thinking_delta", "signature_delta", "content_block_stop", "text_delta",
        "message_delta", "message_stop",
    ]  # fmt: skip
    whole = ask_of(local, "/v1/messages", {**HI, "thinking": {"type": "adaptive", "display": "omitted"}}).json()
    assert whole["content"] == [
        {"type": "thinking", "thinking": "", "signature": "unsigned"},
        {"type": "text", "text": "Yes."},
    ]
    assert whole["usage"]["output_tokens_details"] == {"thinking_tokens": 13}
    asyncio.run(local.close())


def chunk(**more: Any) -> ChatCompletionChunk:
    delta = {name: more.pop(name) for name in ("content", "tool_calls", "reasoning_content") if name in more}
    choice = {"index": 0, "delta": delta, "finish_reason": more.pop("finish_reason", None)}
    base = {"id": "chatcmpl-7", "created": 1, "model": "m", "choices": [] if "usage" in more else [choice]}
    return ChatCompletionChunk.model_validate({**base, **more})


def test_blocks_of_text_and_calls_follow_one_another() -> None:
    events = MessageEvents(9, thinking_is_shown=True)

    def call(index: int, **function: str) -> list[Any]:
        return [{"index": index, "id": f"c{index}" if "name" in function else None, "function": function}]

    chunks = [
        chunk(content="I look."), chunk(tool_calls=call(0, name="a", arguments="")),
        chunk(tool_calls=call(0, arguments='{"x":')), chunk(tool_calls=call(0, arguments="1}")),
        chunk(tool_calls=call(1, name="b", arguments="{}")), chunk(finish_reason="tool_calls"),
        chunk(usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
    ]  # fmt: skip
    values = [value for each in chunks for value in events.add(each)]
    assert [(value["type"], value.get("index")) for value in values] == [
        ("message_start", None),
        ("content_block_start", 0), ("content_block_delta", 0), ("content_block_stop", 0),
        ("content_block_start", 1), ("content_block_delta", 1), ("content_block_delta", 1), ("content_block_stop", 1),
        ("content_block_start", 2), ("content_block_delta", 2), ("content_block_stop", 2),
        ("message_delta", None),
    ]  # fmt: skip
    assert values[4]["content_block"] == {"type": "tool_use", "id": "c0", "name": "a", "input": {}}
    assert values[-1]["delta"]["stop_reason"] == "tool_use"


def test_an_answer_shorter_than_its_limit_has_filled_the_context() -> None:
    events = MessageEvents(9, thinking_is_shown=True)
    events.add(chunk(content="x", finish_reason="length"))
    [last] = events.add(chunk(usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}))
    assert last["delta"]["stop_reason"] == "model_context_window_exceeded"


def test_input_that_is_not_json_is_marked() -> None:
    fake = FakeExecutor(pieces=('{"city": "Be',))
    body = {**HI, "tools": [{"name": "weather", "input_schema": {}}]}
    [block] = ask_of(fake, "/v1/messages", body).json()["content"]
    assert (block["type"], block["input"]) == ("tool_use", {"INVALID_JSON": '{"city": "Be'})


def test_an_error_in_a_stream_is_an_event() -> None:
    values = stream_of(FakeExecutor(error=DeviceError("lost"), error_at=2))
    assert values[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "lost", "details": {"error_code": "device_error"}},
    }


@pytest.mark.parametrize("lenient", [False, True])
def test_versions_betas_keys_and_unknown_parameters(lenient: bool) -> None:
    keys = read_keys(None, {"NEARFAR_API_KEYS": "web=sk-web-12345678"})
    app = create_app(FakeModels(), ApiConfig(keys=keys, lenient=lenient))

    def asked(body: Any = HI, **headers: str) -> Any:
        return run(ask_app(app, "POST", "/v1/messages", body, **{"x_api_key": "sk-web-12345678", **headers}))

    told = asked(anthropic_version="2023-06-01", anthropic_beta="claude-code-20250219,interleaved-thinking-2025-05-14")
    assert told.status_code == 200
    assert told.headers["request-id"] == told.headers["x-request-id"]
    assert asked(x_api_key="sk-wrong-1234567").json()["error"]["type"] == "authentication_error"
    assert asked(authorization="Bearer sk-web-12345678", x_api_key="").status_code == 200
    assert "anthropic-version is '2031-01-01'" in asked(anthropic_version="2031-01-01").json()["error"]["message"]
    unknown = asked(
        {**HI, "system": [{"type": "text", "text": "x", "later": 1}], "context_management": {"edits": []}},
        anthropic_beta="mcp-client-2025-11-20",
    )
    beta = asked(anthropic_beta="mcp-client-2025-11-20")
    if lenient:
        ignored = "context_management, system[0].later, anthropic-beta.mcp-client-2025-11-20"
        assert (unknown.status_code, unknown.headers["x-nearfar-ignored"]) == (200, ignored)
    else:
        assert "names 'mcp-client-2025-11-20'" in beta.json()["error"]["message"]
        assert unknown.json()["error"]["details"]["error_code"] == "unknown_parameter"


def test_a_model_that_is_not_there_is_a_404() -> None:
    answer = ask("POST", "/v1/messages/count_tokens", {"model": "x", "messages": HI["messages"]})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
