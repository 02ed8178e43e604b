"""OpenAI's own clients in Python and in Node with their defaults: only the address and the key are set."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import openai
import pydantic
import pytest
from conftest import lacks
from fake_models import FakeExecutor, FakeModels
from fake_source import executor, reasoner
from live_server import live_server
from waiting import WAIT_SECONDS

from nearfar.compiler.runtime.errors import DeviceError, QueueFull
from nearfar.server_fallback.api import sse
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys

KEY = "sk-web-12345678"
HERE = Path(__file__).parent
WEB = HERE.parents[2] / "web"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def models() -> FakeModels:
    return FakeModels()


@pytest.fixture(scope="module")
def address(models: FakeModels) -> Iterator[str]:
    config = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": f"web={KEY}"}))
    with live_server(models, config) as live:
        yield f"http://127.0.0.1:{live.port}/v1"


@pytest.fixture
def client(address: str, models: FakeModels) -> Iterator[openai.OpenAI]:
    models.fake = FakeExecutor()
    with openai.OpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI, models: FakeModels) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=MESSAGES, logprobs=True, top_logprobs=1, seed=1, extra_body={"top_k": 5}
    )
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is not None
    assert [token.token for token in answer.choices[0].logprobs.content or ()] == ["Hel", "lo", "!"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer._request_id is not None
    assert models.fake.requests[0].model_dump(include={"top_k", "seed"}) == {"top_k": 5, "seed": 1}


def test_streamed_chat(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, logprobs=True
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello!"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8


def test_the_streaming_helper_puts_tool_calls_together(client: openai.OpenAI, models: FakeModels) -> None:
    models.fake.pieces = ('{"city"', ': "Bern"}')
    with client.chat.completions.stream(model="fake", messages=MESSAGES, tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    whole = client.chat.completions.create(model="fake", messages=MESSAGES, tools=TOOLS).choices[0]
    assert whole.finish_reason == "tool_calls"
    for calls in (message.tool_calls, whole.message.tool_calls):
        assert calls is not None
        assert calls[0].type == "function"
        assert (calls[0].function.name, json.loads(calls[0].function.arguments)) == ("weather", {"city": "Bern"})


class Weather(pydantic.BaseModel):
    degrees: int


class Answer(pydantic.BaseModel):
    text: str


def test_reasoning_is_a_separate_field_and_is_bounded(
    client: openai.OpenAI, models: FakeModels, tmp_path: Path
) -> None:
    models.fake, _ = cast(Any, reasoner(tmp_path, "<think>\nHm, well.\n</think>\n\nYes."))
    received: Any = {"model": "fake", "messages": MESSAGES}
    message = client.chat.completions.create(**received).choices[0].message
    assert (message.content, message.model_extra) == ("Yes.", {"reasoning_content": "Hm, well."})
    chunks = list(client.chat.completions.create(**received, stream=True, stream_options={"include_usage": True}))
    thought = "".join(
        (chunk.choices[0].delta.model_extra or {}).get("reasoning_content", "") for chunk in chunks if chunk.choices
    )
    assert (thought, "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)) == (
        "Hm, well.",
        "Yes.",
    )
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens_details is not None
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 13
    bounded = client.chat.completions.create(**received, extra_body={"thinking_token_budget": 3}).choices[0].message
    assert bounded.model_extra == {"reasoning_content": "Hm"}
    second = [*MESSAGES, message.model_dump(), {"role": "user", "content": "so?"}]
    off = client.chat.completions.create(model="fake", messages=second, reasoning_effort="none").choices[0].message
    assert off.model_extra == {}
    with pytest.raises(openai.BadRequestError, match="reasoning_content"):
        client.chat.completions.create(
            model="fake", messages=cast(Any, [{**message.model_dump(), "reasoning_content": 1}])
        )


def test_parse_with_tools_gives_calls_and_then_the_answer(
    client: openai.OpenAI, models: FakeModels, tmp_path: Path
) -> None:
    call, message = (
        '<tool_call>\n{"name": "Weather", "arguments": {"degrees": 7}}\n</tool_call>',
        '{"text": "7 degrees"}',
    )
    local: Any
    local, _ = executor(tmp_path, call, message)
    models.fake = local
    received: Any = {"model": "fake", "tools": [openai.pydantic_function_tool(Weather)], "response_format": Answer}
    called = client.chat.completions.parse(messages=MESSAGES, **received).choices[0]
    assert called.finish_reason == "tool_calls"
    assert called.message.parsed is None
    [made] = called.message.tool_calls or []
    assert made.function.parsed_arguments == Weather(degrees=7)
    turn: Any = [
        called.message.model_dump(exclude={"parsed"}),
        {"role": "tool", "tool_call_id": made.id, "content": "warm"},
    ]
    second = client.chat.completions.parse(messages=[*MESSAGES, *turn], **received).choices[0]
    assert (second.finish_reason, second.message.tool_calls) == ("stop", None)
    assert second.message.parsed == Answer(text="7 degrees")
    asyncio.run(local.close())


def test_completions_embeddings_and_models(client: openai.OpenAI) -> None:
    assert client.completions.create(model="fake", prompt="x").choices[0].text == "Hello!"
    assert [chunk.choices[0].text for chunk in client.completions.create(model="fake", prompt="x", stream=True)] == [
        "Hel",
        "lo",
        "!",
        "",
    ]
    # By default the client requests base64, and decodes it.
    assert client.embeddings.create(model="fake", input="x").data[0].embedding == [0.5, -1.0]
    assert client.embeddings.create(model="fake", input=["x"], encoding_format="float").data[0].embedding == [0.5, -1.0]
    assert [model.id for model in client.models.list()] == ["fake", "other/name"]
    assert client.models.retrieve("other/name").id == "other/name"


def test_errors_are_the_client_s_own_classes(client: openai.OpenAI, models: FakeModels) -> None:
    def raised(kind: type[openai.APIStatusError], **request: Any) -> openai.APIStatusError:
        with pytest.raises(kind) as error:
            client.chat.completions.create(**{"model": "fake", "messages": MESSAGES, **request})
        return error.value

    assert raised(openai.BadRequestError, temperature=3).param == "temperature"
    assert raised(openai.BadRequestError, extra_body={"x": 1}).code == "unknown_parameter"
    assert raised(openai.NotFoundError, model="gpt-9").code == "model_not_found"
    models.fake.error = QueueFull("full", retry_after_seconds=7)
    limited = raised(openai.RateLimitError)
    assert (limited.type, limited.response.headers["retry-after"]) == ("rate_limit_error", "7")
    models.fake.error = DeviceError("lost")
    assert raised(openai.InternalServerError).code == "device_error"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-wrong-123456").models.list()


def test_an_error_in_mid_stream_is_raised(client: openai.OpenAI, models: FakeModels) -> None:
    models.fake.error, models.fake.error_at = DeviceError("lost"), 2
    chunks = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
    assert [next(chunks).choices[0].delta.content for _ in range(3)] == ["", "Hel", "lo"]
    with pytest.raises(openai.APIError, match="lost") as error:
        next(chunks)
    assert error.value.code == "device_error"


def test_raw_responses_have_their_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="fake", messages=MESSAGES, extra_headers={"X-Request-Id": "mine"}
    )
    assert raw.headers["x-request-id"] == "mine"
    assert raw.parse().choices[0].message.content == "Hello!"
    with client.chat.completions.with_streaming_response.create(
        model="fake", messages=MESSAGES, stream=True
    ) as streamed:
        assert list(streamed.iter_lines())[-2:] == ["data: [DONE]", ""]


def test_the_async_client_streams_many_at_once(address: str, models: FakeModels) -> None:
    models.fake = FakeExecutor(delay_seconds=0.01)

    async def work() -> list[str]:
        async with openai.AsyncOpenAI(base_url=address, api_key=KEY, max_retries=0) as client:

            async def one() -> str:
                stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one() for _ in range(8)))

    assert asyncio.run(work()) == ["Hello!"] * 8


def test_the_node_client_passes_unchanged(address: str, models: FakeModels, monkeypatch: pytest.MonkeyPatch) -> None:
    node = shutil.which("node")
    if node is None or not (WEB / "node_modules" / "openai").is_dir():
        lacks("Node.js or the npm packages of web/ are missing")
    # This sends comments between the events.
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)
    models.fake = FakeExecutor(delay_seconds=0.03)
    environment = {**os.environ, "OPENAI_BASE_URL": address, "OPENAI_API_KEY": KEY, "NEARFAR_WEB": str(WEB)}
    done = subprocess.run(
        [node, HERE / "openai_client.mjs"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "whole": "Hello!",
        "streamed": "Hello!",
        "usage": 8,
        "tool": "weather",
        "completion": "Hello!",
        "responses": ["Hello!", "Hello!"],
        "embedding": [0.5, -1],
        "models": ["fake", "other/name"],
        "errors": ["BadRequestError temperature", "NotFoundError model", "AuthenticationError null"],
    }
