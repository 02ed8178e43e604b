"""/v1/responses with OpenAI's own client and its defaults: only the address and the key are set."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pydantic
import pytest
from fake_models import FakeExecutor, FakeModels
from fake_source import executor, reasoner
from live_server import LiveServer, live_server
from openai.types.responses import Response
from response_events import read_events
from waiting import wait_until

from nearfar.compiler.runtime.errors import DeviceError, QueueFull, RequestError
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.text.output import Output

KEY, OTHER = "sk-web-12345678", "sk-other-12345678"
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
HI: Any = {"model": "fake", "input": "hi"}


@pytest.fixture(scope="module")
def models() -> FakeModels:
    return FakeModels()


@pytest.fixture(scope="module")
def live(models: FakeModels) -> Iterator[LiveServer]:
    config = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": f"web={KEY},other={OTHER}"}))
    with live_server(models, config) as live:
        yield live


@pytest.fixture
def client(live: LiveServer, models: FakeModels) -> Iterator[openai.OpenAI]:
    models.fake = FakeExecutor()
    with openai.OpenAI(base_url=f"http://127.0.0.1:{live.port}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def chats(models: FakeModels) -> list[list[tuple[str, str]]]:
    """The roles and texts of the chats that the model has got."""
    requests = [request for request in models.fake.requests if isinstance(request, ChatCompletionRequest)]
    return [[(message.role, message.text) for message in request.messages] for request in requests]


def test_a_response_is_continued_read_listed_and_deleted(client: openai.OpenAI, models: FakeModels) -> None:
    first = client.responses.create(**HI, instructions="Be kind.", metadata={"a": "b"}, temperature=0.5)
    assert (first.output_text, first.status, first.metadata, first.temperature) == (
        "Hello!",
        "completed",
        {"a": "b"},
        0.5,
    )
    assert first.usage is not None
    assert first.usage.input_tokens_details.cached_tokens == 2
    again = client.responses.create(model="fake", input="and now?", previous_response_id=first.id)
    assert again.previous_response_id == first.id
    assert chats(models) == [
        [("system", "Be kind."), ("user", "hi")],
        [("user", "hi"), ("assistant", "Hello!"), ("user", "and now?")],
    ]
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    listed = client.responses.input_items.list(again.id, limit=2)
    texts = [cast(Any, item).content[0].text for item in listed]
    # Newest first, over two pages.
    assert texts == ["and now?", "Hello!", "hi"]
    assert [item.id for item in client.responses.input_items.list(again.id, order="asc")] == [
        item.id for item in client.responses.input_items.list(again.id)
    ][::-1]
    client.responses.delete(first.id)
    for work in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError) as error:
            work(first.id)
        assert error.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError) as error:
        client.responses.create(**HI, previous_response_id=again.id)
    assert (error.value.code, error.value.param) == ("previous_response_not_found", "previous_response_id")
    assert first.id in str(error.value)


def test_nothing_is_stored_without_store_and_nothing_of_another_client_is_read(
    client: openai.OpenAI, models: FakeModels
) -> None:
    hidden = client.responses.create(**HI, store=False)
    assert hidden.model_extra is not None
    assert hidden.model_extra["store"] is False
    mine = client.responses.create(**HI)
    reference: Any = [{"type": "item_reference", "id": mine.output[0].id}]
    other = client.with_options(api_key=OTHER)
    for reader, response in ((client, hidden), (other, mine)):
        for work in (reader.responses.retrieve, reader.responses.delete, reader.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                work(response.id)
        with pytest.raises(openai.NotFoundError):
            reader.responses.create(**HI, previous_response_id=response.id)
    with pytest.raises(openai.NotFoundError) as error:
        other.responses.create(model="fake", input=reference)
    assert (error.value.code, error.value.param) == ("item_not_found", "input[0].id")
    client.responses.create(model="fake", input=[*reference, {"role": "user", "content": "so?"}])
    assert chats(models)[-1] == [("assistant", "Hello!"), ("user", "so?")]


def test_references_take_no_more_room_than_their_items_in_a_body(client: openai.OpenAI, models: FakeModels) -> None:
    long = client.responses.create(model="fake", input="x" * 100_000)
    [item] = client.responses.input_items.list(long.id)
    reference: Any = {"type": "item_reference", "id": item.id}
    client.responses.create(model="fake", input=[reference] * 2)
    assert chats(models)[-1] == [("user", "x" * 100_000)] * 2
    with pytest.raises(openai.APIStatusError) as error:
        client.responses.create(model="fake", input=[reference] * 1000)
    assert (error.value.status_code, error.value.code, error.value.param) == (413, "body_too_large", "input[41]")


def test_streamed_events_add_up_to_the_response(client: openai.OpenAI) -> None:
    with client.responses.stream(**HI) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.type.removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * 3,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert (final.output_text, final.usage and final.usage.total_tokens) == ("Hello!", 8)
    assert client.responses.retrieve(final.id).output_text == "Hello!"
    with client.responses.with_streaming_response.create(**HI, stream=True) as raw:
        assert read_events(raw.read().decode())[-1].type == "response.completed"


def test_a_loop_over_calls_with_and_without_stored_items(client: openai.OpenAI, models: FakeModels) -> None:
    models.fake.pieces = ('{"city"', ': "Bern"}')
    first = client.responses.create(**HI, tools=[TOOL])
    [call] = first.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments), call.status) == ("weather", {"city": "Bern"}, "completed")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    models.fake.pieces = ("Rain.",)
    items: Any = [{"role": "user", "content": "hi"}, *first.output, result]
    whole = client.responses.create(model="fake", input=items)
    continued = client.responses.create(model="fake", input=[result], previous_response_id=first.id)
    assert whole.output_text == continued.output_text == "Rain."
    requests = cast(list[ChatCompletionRequest], models.fake.requests)
    assert requests[1].messages == requests[2].messages
    assert [message.role for message in requests[1].messages] == ["user", "assistant", "tool"]
    assert requests[1].messages[1].tool_calls is not None
    assert requests[0].tools is not None
    assert requests[0].tools[0].function.strict


class Answer(pydantic.BaseModel):
    text: str


class Weather(pydantic.BaseModel):
    city: str


def test_parse_reads_calls_and_structured_answers(client: openai.OpenAI, models: FakeModels, tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    local: Any
    local, _ = executor(tmp_path, call, '{"text": "Rain."}', '{"text": "Rain."}')
    models.fake = local
    tools: Any = [openai.pydantic_function_tool(Weather)["function"] | {"type": "function"}]
    called = client.responses.parse(model="fake", input="hi", tools=tools, text_format=Answer)
    [made] = called.output
    assert made.type == "function_call"
    assert made.parsed_arguments == Weather(city="Bern") or made.parsed_arguments == {"city": "Bern"}
    items: Any = [
        {"role": "user", "content": "hi"},
        *called.output,
        {"type": "function_call_output", "call_id": made.call_id, "output": "rain"},
    ]
    answered = client.responses.parse(model="fake", input=items, tools=tools, text_format=Answer)
    assert answered.output_parsed == Answer(text="Rain.")
    # Its message has what the client parsed, which it sends back.
    client.responses.create(model="fake", input=[*items, *answered.output, {"role": "user", "content": "so?"}])
    asyncio.run(local.close())


def test_reasoning_is_an_item_and_comes_back(client: openai.OpenAI, models: FakeModels, tmp_path: Path) -> None:
    models.fake, source = cast(Any, reasoner(tmp_path, "<think>\nHm, well.\n</think>\n\nYes."))
    first = client.responses.create(**HI, reasoning={"effort": "low"}, include=["reasoning.encrypted_content"])
    thought, message = first.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert (thought.content[0].text, thought.summary, first.output_text) == ("Hm, well.", [], "Yes.")
    assert first.usage is not None
    assert first.usage.output_tokens_details.reasoning_tokens > 0
    summarized = client.responses.create(**HI, reasoning={"summary": "auto"}).output[0]
    assert summarized.type == "reasoning"
    assert (summarized.summary[0].text, summarized.content) == ("Hm, well.", None)
    bare: Any = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
    for item in (thought, summarized, bare):
        client.responses.create(model="fake", input=cast(Any, [item, message, {"role": "user", "content": "so?"}]))
    [prompt] = {bytes(each for each in request.prompt_ids if each < 256) for request in source.requests[2:]}
    assert b"Hm, well." in prompt
    off = client.responses.create(**HI, reasoning={"effort": "none"})
    assert [item.type for item in off.output] == ["message"]


def test_an_answer_that_its_limit_cuts_off_is_incomplete(
    client: openai.OpenAI, models: FakeModels, tmp_path: Path
) -> None:
    models.fake = cast(Any, executor(tmp_path, "abcdef")[0])
    response = client.responses.create(**HI, max_output_tokens=3)
    assert (response.status, response.output_text) == ("incomplete", "abc")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    counted = client.responses.input_tokens.count(**HI)
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens


def test_errors_name_what_is_wrong_in_the_request(client: openai.OpenAI, models: FakeModels) -> None:
    def raised(kind: type[openai.APIStatusError], **request: Any) -> openai.APIStatusError:
        with pytest.raises(kind) as error:
            client.responses.create(**{**HI, **request})
        return error.value

    for tool in ("web_search", "custom", "mcp"):
        error = raised(openai.BadRequestError, tools=[TOOL, {"type": tool, "name": "x"}])
        assert (error.param, f"'{tool}'" in error.message) == ("tools[1]", True)
    assert raised(openai.BadRequestError, input=[{"type": "web_search_call", "id": "x"}]).param == "input[0]"
    assert raised(openai.BadRequestError, reasoning={"summary": "concise"}).param == "reasoning.summary"
    refused = raised(openai.BadRequestError, conversation="conv_1")
    assert (refused.param, "'conversation': only null" in str(refused)) == ("conversation", True)
    assert raised(openai.BadRequestError, extra_body={"x": 1}).code == "unknown_parameter"
    assert raised(openai.BadRequestError, background=True, store=False).param == "background"
    assert raised(openai.NotFoundError, model="gpt-9").code == "model_not_found"
    assert raised(openai.BadRequestError, input=[]).code == "missing_required_parameter"
    models.fake.error = RequestError("messages[0].content[1] is odd", param="messages[0].content[1]")
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:,"}]
    error = raised(openai.BadRequestError, input=[{"role": "user", "content": parts}])
    assert (error.param, "input[0].content[1] is odd" in error.message) == ("input[0].content[1]", True)
    models.fake.error = QueueFull("full", retry_after_seconds=7)
    assert raised(openai.RateLimitError).response.headers["retry-after"] == "7"


def test_a_stream_that_fails_ends_with_what_was_written(client: openai.OpenAI, models: FakeModels) -> None:
    models.fake.error, models.fake.error_at = DeviceError("lost"), 2
    last = list(client.responses.create(**HI, stream=True))[-1]
    assert last.type == "response.failed"
    assert (last.response.output_text, last.response.status) == ("Hello", "failed")
    assert last.response.error is not None
    assert last.response.error.message == "lost"


class Stepped(FakeExecutor):
    """Answers when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()

    async def answer(self, request: Any, call: Call, output: Output[Any]) -> None:
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await super().answer(request, call, output)


def test_a_response_in_the_background_is_polled(client: openai.OpenAI, models: FakeModels, live: LiveServer) -> None:
    models.fake = stepped = Stepped()
    begun = client.responses.create(**HI, background=True)
    assert (begun.status, begun.output) == ("queued", [])
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**HI, previous_response_id=begun.id)
    assert error.value.code == "response_running"
    live.loop.call_soon_threadsafe(stepped.may.set)
    wait_until(lambda: client.responses.retrieve(begun.id).status == "completed")
    assert client.responses.retrieve(begun.id).output_text == "Hello!"
    assert client.responses.cancel(begun.id).status == "completed"
    events = list(client.responses.retrieve(begun.id, stream=True))
    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert list(client.responses.retrieve(begun.id, stream=True, starting_after=4)) == events[5:]
    with pytest.raises(openai.BadRequestError) as error:
        list(client.responses.retrieve(begun.id, stream=True, starting_after=99))
    assert error.value.param == "starting_after"
    with pytest.raises(openai.BadRequestError) as error:
        list(client.responses.retrieve(client.responses.create(**HI).id, stream=True))
    assert error.value.param == "stream"


def test_a_stream_in_the_background_goes_on_without_its_reader(
    client: openai.OpenAI, models: FakeModels, live: LiveServer
) -> None:
    models.fake = stepped = Stepped()
    stream = client.responses.create(**HI, background=True, stream=True)
    # At once, before the model has said anything.
    first = [next(stream) for _ in range(3)]
    assert [event.type.removeprefix("response.") for event in first] == ["created", "queued", "in_progress"]
    stream.close()
    live.loop.call_soon_threadsafe(stepped.may.set)
    assert first[0].type == "response.created"
    rest = list(client.responses.retrieve(first[0].response.id, stream=True, starting_after=2))
    assert (rest[0].sequence_number, rest[-1].type) == (3, "response.completed")
    assert stepped.cancelled == 0


@pytest.mark.parametrize("deletes", [False, True])
def test_a_response_in_the_background_is_ended(client: openai.OpenAI, models: FakeModels, deletes: bool) -> None:
    models.fake = stepped = Stepped()
    begun = client.responses.create(**HI, background=True)
    if deletes:
        client.responses.delete(begun.id)
    else:
        assert client.responses.cancel(begun.id).status == "cancelled"
    wait_until(lambda: stepped.cancelled == 1)
    if deletes:
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(begun.id)
    else:
        assert client.responses.retrieve(begun.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(client_response(client, models).id)


def client_response(client: openai.OpenAI, models: FakeModels) -> Response:
    models.fake = FakeExecutor()
    return client.responses.create(**HI)


def test_a_failure_in_the_background_is_stored(client: openai.OpenAI, models: FakeModels) -> None:
    models.fake.error, models.fake.error_at = RequestError("messages: no", param="messages"), 1
    begun = client.responses.create(**HI, background=True)
    wait_until(lambda: client.responses.retrieve(begun.id).status == "failed")
    failed = client.responses.retrieve(begun.id)
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("invalid_prompt", "input: no")


def test_the_oldest_messages_make_room_if_the_request_allows_it(
    client: openai.OpenAI, models: FakeModels, tmp_path: Path
) -> None:
    local, source = executor(tmp_path, "Yes.")
    models.fake = cast(Any, local)
    items: Any = [{"role": "user", "content": text} for text in ("a" * 3000, "b" * 2000, "c" * 1000)]
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="fake", input=items)
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "input")
    client.responses.create(model="fake", input=items, truncation="auto")
    [request] = source.requests
    assert 3000 < len(request.prompt_ids) < 4096


def test_a_server_that_stores_nothing_says_so(models: FakeModels) -> None:
    models.fake = FakeExecutor()
    with live_server(models, ApiConfig(response_memory_bytes=0)) as live:
        url = f"http://127.0.0.1:{live.port}/v1/responses"
        response = httpx.post(url, json=HI)
        assert (response.status_code, response.json()["store"]) == (200, False)
        refused = httpx.post(url, json={**HI, "store": True})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "responses_not_stored")
