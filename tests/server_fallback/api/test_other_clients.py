"""Anthropic's own client, and Hugging Face's for Text Generation Inference, with their defaults: only the address and
the key are set.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pydantic
import pytest
from asgi import ask_of
from conftest import lacks
from fake_models import FakeExecutor, FakeModels
from fake_source import FakeSource, executor, reasoner, text_model
from live_server import live_server

from nearfar.compiler.runtime.errors import DeviceError, QueueFull
from nearfar.server_fallback.api import sse
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.executors.local import LocalExecutor

KEY = "sk-web-12345678"
ASK: dict[str, Any] = {"model": "fake", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
WEATHER = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def models() -> FakeModels:
    return FakeModels()


@pytest.fixture(scope="module")
def address(models: FakeModels) -> Iterator[str]:
    config = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": f"web={KEY}"}))
    with live_server(models, config) as live:
        yield f"http://127.0.0.1:{live.port}"


@pytest.fixture(scope="module")
def anthropic() -> Any:
    # Not at the top: each process that collects tests would need seconds for the import.
    try:
        import anthropic
    except ModuleNotFoundError:
        lacks("the package anthropic is not installed")
    return anthropic


@pytest.fixture(scope="module")
def shared(address: str, anthropic: Any) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def client(shared: Any, models: FakeModels) -> Any:
    models.fake = FakeExecutor()
    return shared


def test_create_and_stream(client: Any) -> None:
    message = client.messages.create(**ASK, system="Be brief.")
    assert ([block.text for block in message.content], message.stop_reason) == (["Hello!"], "end_turn")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (3, 2, 3)
    assert message._request_id is not None
    with client.messages.stream(**ASK) as stream:
        assert list(stream.text_stream) == ["Hel", "lo", "!"]
        assert stream.get_final_message().to_dict() == message.to_dict()
    events = [event.type for event in client.messages.create(**ASK, stream=True)]
    assert (events[0], events[-1]) == ("message_start", "message_stop")


def test_a_loop_of_tools(client: Any, models: FakeModels, tmp_path: Path) -> None:
    called = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    local: Any
    local, source = executor(tmp_path, f"I look.{called}\n{called}", "It is 12 degrees.")
    models.fake = local
    turn: dict[str, Any] = {**ASK, "max_tokens": 400, "tools": [WEATHER]}
    with client.messages.stream(**turn) as stream:
        message = stream.get_final_message()
    text, *calls = message.content
    assert (text.type, text.text.strip(), message.stop_reason) == ("text", "I look.", "tool_use")
    assert [(call.name, call.input) for call in calls] == [("weather", {"city": "Bern"})] * 2
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": f"{call.input['city']}: 12"} for call in calls
    ]
    turn["messages"] = [
        *ASK["messages"],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    counted = client.messages.count_tokens(**{name: turn[name] for name in ("model", "messages", "tools")})
    answer = client.messages.create(**turn)
    assert answer.content[0].text == "It is 12 degrees."
    assert "[tool]Bern: 12[tool]Bern: 12[assistant]" in bytes(source.requests[1].prompt_ids).decode()
    # Three are cached, in the fake.
    assert counted.input_tokens == len(source.requests[1].prompt_ids) == answer.usage.input_tokens + 3
    asyncio.run(local.close())


def test_thinking_is_sent_back_and_counted(client: Any, models: FakeModels, tmp_path: Path) -> None:
    models.fake, source = reasoner(tmp_path, "<think>\nHm, well.\n</think>\n\nYes.")  # type: ignore[assignment]
    thought, said = client.messages.create(**ASK, thinking={"type": "enabled", "budget_tokens": 1024}).content
    assert (thought.type, thought.thinking, said.text) == ("thinking", "Hm, well.", "Yes.")
    turns = [*ASK["messages"], {"role": "assistant", "content": [thought, said]}, {"role": "user", "content": "so?"}]
    for more in ({}, {"thinking": {"type": "disabled"}}, {"system": [{"type": "text", "text": "Be brief."}]}):
        asked: Any = {"model": "fake", "messages": turns, **more}
        counted = client.messages.count_tokens(**asked).input_tokens
        answer = client.messages.create(**asked, max_tokens=100)
        assert counted == len(source.requests[-1].prompt_ids) == answer.usage.input_tokens + 3
    ended = [*turns, {"role": "assistant", "content": "Well"}]
    counted = client.messages.count_tokens(model="fake", messages=ended).input_tokens
    client.messages.create(model="fake", messages=ended, max_tokens=9)
    assert counted == len(source.requests[-1].prompt_ids)


class Weather(pydantic.BaseModel):
    degrees: int


def test_parse_gives_the_form(client: Any, models: FakeModels, tmp_path: Path) -> None:
    local: Any
    local, _ = executor(tmp_path, '{"degrees": 7}')
    models.fake = local
    assert client.messages.parse(**ASK, output_format=Weather).parsed_output == Weather(degrees=7)
    asyncio.run(local.close())


# The comment identifies a template that writes calls in Hermes' form.
WITH_TOOLS = (
    "{# tools: <tool_call> #}[tools]{{ tools | tojson }}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
)


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string", "description": "a leaf", "enum": ["a", "b"]}
    for level in range(depth):
        inner = {
            "type": "object",
            "description": f"level {level}",
            "properties": {"items": {"type": "array", "items": inner}, "name": {"type": ["string", "null"]}},
            "required": ["items"],
            "additionalProperties": False,
        }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **inner}


class LongSource(FakeSource):
    context = 1 << 20


def test_the_first_turn_of_a_coding_agent_streams(client: Any, models: FakeModels, tmp_path: Path) -> None:
    called = '<tool_call>\n{"name": "tool_7", "arguments": {"items": [], "name": "é"}}\n</tool_call>'
    source = LongSource(f"I look.\n{called}")
    local: Any = LocalExecutor(source, text_model(tmp_path, WITH_TOOLS))
    models.fake = local
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [{"type": "text", "text": "You edit code.\n" * 4000, **cached}, {"type": "text", "text": "cwd: /src"}]
    tools: list[Any] = [
        {"name": f"tool_{n}", "description": "Edits. " * 99, "input_schema": nested(8)} for n in range(20)
    ]
    tools[-1] |= cached
    content = [{"type": "text", "text": "<reminder/>"}, {"type": "text", "text": "Fix the test.", **cached}]
    asked: Any = {"model": "fake", "system": system, "tools": tools, "messages": [{"role": "user", "content": content}]}
    betas = ["claude-code-20250219", "interleaved-thinking-2025-05-14", "fine-grained-tool-streaming-2025-05-14"]
    with client.beta.messages.stream(
        **asked, max_tokens=32_000, metadata={"user_id": "user_1"}, thinking={"type": "adaptive"}, betas=betas
    ) as stream:
        message = stream.get_final_message()
    text, call = message.content
    assert (text.text.strip(), call.name, call.input) == ("I look.", "tool_7", {"items": [], "name": "é"})
    assert message.stop_reason == "tool_use"
    prompt = bytes(source.requests[0].prompt_ids).decode()
    assert prompt.endswith("cwd: /src[user]<reminder/>Fix the test.[assistant]")
    written, _, _ = prompt.removeprefix("[tools]").partition("[system]You edit code.\n")
    functions = [tool["function"] for tool in json.loads(written)]
    assert [each["name"] for each in functions] == [tool["name"] for tool in tools]
    assert functions[19]["parameters"] == nested(8)
    assert client.messages.count_tokens(**asked).input_tokens == len(prompt.encode()) > 100_000
    asyncio.run(local.close())


def test_errors_are_the_client_s_own_classes(client: Any, models: FakeModels, anthropic: Any) -> None:
    def raised(kind: Any, **more: Any) -> Any:
        with pytest.raises(kind) as error:
            client.messages.create(**{**ASK, **more})
        return error.value

    assert "temperature" in str(raised(anthropic.BadRequestError, extra_body={"temperature": 3}))
    assert raised(anthropic.BadRequestError, extra_body={"x": 1}).error_code == "unknown_parameter"
    assert raised(anthropic.NotFoundError, model="claude-9").type == "not_found_error"
    models.fake.error = QueueFull("full", retry_after_seconds=7)
    limited = raised(anthropic.RateLimitError)
    assert (limited.type, limited.response.headers["retry-after"]) == ("rate_limit_error", "7")
    models.fake.error = DeviceError("lost")
    assert raised(anthropic.InternalServerError).type == "api_error"
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="sk-wrong-123456").messages.create(**ASK)
    models.fake.error_at = 2
    with pytest.raises(anthropic.APIStatusError, match="lost"), client.messages.stream(**ASK) as stream:
        stream.until_done()


@pytest.mark.usefixtures("client")
def test_the_async_client_streams_beside_pings(
    address: str, models: FakeModels, anthropic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)
    models.fake = FakeExecutor(delay_seconds=0.03)

    async def work() -> str:
        client = anthropic.AsyncAnthropic(base_url=address, api_key=KEY, max_retries=0)
        async with client, client.messages.stream(**ASK) as stream:
            return json.dumps([text async for text in stream.text_stream])

    assert asyncio.run(work()) == '["Hel", "lo", "!"]'


@pytest.fixture
def tgi(address: str, models: FakeModels, tmp_path: Path) -> Iterator[Any]:
    local: Any
    local, _ = executor(tmp_path, "one two three")
    models.fake = local
    yield huggingface_hub.InferenceClient(model=address, token=KEY, provider="hf-inference")
    asyncio.run(local.close())


def test_hugging_face_s_client_generates(tgi: Any) -> None:
    assert tgi.text_generation("x") == "one two three"
    assert tgi.text_generation("x", return_full_text=True, stop=[" th"], temperature=0.5, top_k=5) == "xone two"
    whole = tgi.text_generation(
        "xyz", details=True, max_new_tokens=3, decoder_input_details=True, seed=7, do_sample=True
    )
    assert (whole.generated_text, whole.details.finish_reason, whole.details.generated_tokens) == ("one", "length", 3)
    assert [(token.id, token.text, token.logprob) for token in whole.details.tokens] == [
        (ord("o"), "o", -1.0), (ord("n"), "n", -1.0), (ord("e"), "e", -1.0),
    ]  # fmt: skip
    assert [(token.id, token.text, token.logprob) for token in whole.details.prefill] == [
        (ord("x"), "x", None), (ord("y"), "y", -2.0), (ord("z"), "z", -2.0),
    ]  # fmt: skip
    assert whole.details.seed == 7
    assert [tgi.health_check(), tgi.get_endpoint_info()["max_total_tokens"]] == [True, 4096]


def test_the_routes_of_text_generation_inference_differ_in_their_answers(tmp_path: Path) -> None:
    local: Any
    local, source = executor(tmp_path, "one")
    body = {"inputs": "x", "parameters": {"max_new_tokens": 9}}
    assert ask_of(local, "/generate", body).json() == {"generated_text": "one"}
    assert ask_of(local, "/", body).json() == [{"generated_text": "one"}]
    streams = [ask_of(local, *asked).text for asked in (("/generate_stream", body), ("/", {**body, "stream": True}))]
    assert streams[0] == streams[1]
    assert streams[0].count("data: ") == 3
    assert not any(each.watermark for each in source.requests)
    assert ask_of(local, "/generate", {"inputs": "x", "parameters": {"watermark": True}}).status_code == 200
    assert source.requests[-1].watermark
    error = ask_of(local, "/generate", {"inputs": 1})
    assert (error.status_code, error.json()["error_type"]) == (400, "validation")
    error = ask_of(local, "/info?colour=red", method="GET")
    assert (error.status_code, error.json().keys()) == (400, {"error", "error_type"})
    asyncio.run(local.close())


def test_hugging_face_s_client_streams(tgi: Any) -> None:
    assert "".join(tgi.text_generation("x", stream=True)) == "one two three"
    *_, last = events = list(tgi.text_generation("x", stream=True, details=True, stop=["ee"]))
    assert "".join(event.token.text for event in events) == last.generated_text == "one two thr"
    assert [event.index for event in events] == list(range(1, len(events) + 1))
    assert last.details.finish_reason == "stop_sequence"
    assert {event.generated_text for event in events[:-1]} == {None}
    [only] = tgi.text_generation("x", stream=True, details=True, stop=["o"])
    assert (only.token.text, only.generated_text, only.details.generated_tokens) == ("", "", 1)


def test_hugging_face_s_client_gets_a_grammar_and_its_own_errors(tgi: Any) -> None:
    grammar = {"type": "regex", "value": "[a-c]{2}"}
    assert len(tgi.text_generation("x", grammar=grammar)) == 2
    with pytest.raises(huggingface_hub.errors.ValidationError, match="inputs has 5000 tokens"):
        tgi.text_generation("x" * 5000)
    with pytest.raises(huggingface_hub.errors.ValidationError, match="typical_p"):
        tgi.text_generation("x", typical_p=0.5)
