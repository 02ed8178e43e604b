"""The older form of tools, functions and function_call, with OpenAI's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from asgi import HI, ask, run
from fake_models import FakeModels
from fake_source import executor

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.dialect import DIALECTS, generation_body
from nearfar.server_fallback.router.sides.texts import texts_of
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.routed import RoutedChatRequest
from nearfar.server_fallback.schema.tokenize import TokenizeRequest

CHATS = "/v1/chat/completions"
WEATHER: Any = {"name": "weather", "description": "Of a city", "parameters": {"type": "object"}}
CALLED: Any = {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}}
HISTORY: Any = [*HI["messages"], CALLED, {"role": "function", "name": "weather", "content": "warm"}]


def test_a_model_calls_a_function_and_reads_its_result(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    models = FakeModels()
    local, _ = executor(tmp_path, call + call, call, "It is warm.")
    models.fake = cast(Any, local)

    async def converse() -> None:
        transport = httpx.ASGITransport(create_app(models, ApiConfig()))
        http_client = httpx.AsyncClient(transport=transport)
        async with openai.AsyncOpenAI(base_url="http://test/v1", api_key="k", http_client=http_client) as client:
            received: Any = {"model": "fake", "functions": [WEATHER]}
            [choice] = (await client.chat.completions.create(messages=HI["messages"], **received)).choices
            assert (choice.finish_reason, choice.message.content) == ("function_call", None)
            assert choice.message.tool_calls is None
            assert choice.message.function_call is not None
            assert choice.message.function_call.model_dump() == CALLED["function_call"]
            chunks = [
                chunk.choices[0]
                async for chunk in await client.chat.completions.create(
                    messages=HI["messages"], stream=True, function_call="auto", **received
                )
            ]
            deltas = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call is not None]
            assert [delta.name for delta in deltas if delta.name] == ["weather"]
            assert "".join(delta.arguments or "" for delta in deltas) == "{}"
            assert not any(chunk.delta.tool_calls for chunk in chunks)
            assert chunks[-1].finish_reason == "function_call"
            turn: Any = [
                choice.message.model_dump(),
                {"role": "function", "name": "weather", "content": "warm"},
            ]
            second = await client.chat.completions.create(messages=[*HI["messages"], *turn], **received)
            assert (second.choices[0].finish_reason, second.choices[0].message.content) == ("stop", "It is warm.")
        await local.close()

    run(converse())


def test_sides_and_servers_receive_tools_only() -> None:
    request = ChatCompletionRequest.model_validate(
        {**HI, "messages": HISTORY, "functions": [WEATHER], "function_call": {"name": "weather"}}
    )
    for dialect in DIALECTS:
        body = generation_body(request, "m", dialect, priority=None)
        assert not {"functions", "function_call"} & body.keys()
        assert body["tools"] == [{"type": "function", "function": WEATHER}]
        assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
        _, called, result = body["messages"]
        [call] = called["tool_calls"]
        assert (call["function"], "function_call" in called) == (CALLED["function_call"], False)
        assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", call["id"], "warm")


def test_results_belong_to_the_last_call_of_their_name() -> None:
    other = {"role": "assistant", "content": None, "function_call": {"name": "time", "arguments": "{}"}}
    result = {"role": "function", "name": "weather", "content": "cold"}
    given = TokenizeRequest.model_validate({"model": "m", "messages": [*HISTORY, CALLED, other, result]})
    messages = given.messages or []
    ids = [message.tool_calls[0].id for message in messages if message.tool_calls]
    assert len(set(ids)) == 3
    assert [message.tool_call_id for message in messages if message.role == "tool"] == ids[:2]


def test_functions_are_private_texts() -> None:
    secret = {"name": "weather", "description": "secret 1", "parameters": {"title": "secret 2"}}
    call = {"role": "assistant", "function_call": {"name": "weather", "arguments": '{"a": "secret 3"}'}}
    request = RoutedChatRequest.model_validate({**HI, "messages": [*HI["messages"], call], "functions": [secret]})
    texts = texts_of(request)[1]
    assert {"weather", "secret 1", "secret 2", "secret 3"} <= set(texts)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"functions": [WEATHER], "tools": [{"type": "function", "function": WEATHER}]}, "functions"),
        ({"functions": [WEATHER], "tool_choice": "auto"}, "functions"),
        ({"functions": [WEATHER], "function_call": {"name": "time"}}, "function_call"),
        ({"function_call": {"name": "weather"}}, "function_call"),
        ({"functions": [WEATHER], "function_call": "required"}, "function_call"),
        ({"functions": [{"description": "no name"}]}, "functions[0].name"),
        ({"functions": [{**WEATHER, "strict": True}]}, "functions[0].strict"),
        (
            {"messages": [{**CALLED, "tool_calls": [{"id": "a", "function": CALLED["function_call"]}]}]},
            "messages[0].function_call",
        ),
    ],
)
def test_wrong_functions_are_refused_by_name(given: dict[str, Any], param: str) -> None:
    response = ask("POST", CHATS, {**HI, **given})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_without_a_call_the_answer_has_text() -> None:
    answer = ask("POST", CHATS, {**HI, "functions": [], "function_call": "none"}).json()["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("Hello!", "stop")
