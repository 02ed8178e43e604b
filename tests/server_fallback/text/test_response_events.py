"""The items and the events that the chunks of a chat become, for chunks as other servers send them, too."""

from __future__ import annotations

from typing import Any

import pytest
from response_events import read_events

from nearfar.compiler.runtime.errors import Unavailable
from nearfar.server_fallback.api.response_turn import begun_response, response_json
from nearfar.server_fallback.schema.chat import ChatCompletionChunk
from nearfar.server_fallback.schema.responses import ResponseRequest
from nearfar.server_fallback.text.response_events import ResponseWriter
from nearfar.server_fallback.text.response_reasoning import encoded_reasoning

KEY = "0" * 32
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def writer(**options: Any) -> ResponseWriter:
    request = ResponseRequest.model_validate({"model": "m", "input": "hi"})
    return ResponseWriter(begun_response(request, f"resp_{KEY}", stores=True), KEY, **options)


def chunk(*deltas: dict[str, Any], finish_reason: str | None = None, **more: Any) -> ChatCompletionChunk:
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta} for delta in deltas]
    if finish_reason is not None:
        choices.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
    return ChatCompletionChunk.model_validate({"id": "c", "created": 1, "model": "m", "choices": choices, **more})


def call(index: int, arguments: str = "", **head: str) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": head["name"]} if "name" in head else {})}
    given = {"index": index, "function": function, **({"id": head["id"]} if "id" in head else {})}
    return {"tool_calls": [given]}


def written(writing: ResponseWriter, *chunks: ChatCompletionChunk) -> list[Any]:
    body = b"".join([*(writing.event(each) for each in chunks), writing.end()])
    return read_events(body.decode())


def ended(finish_reason: str = "stop") -> list[ChatCompletionChunk]:
    return [chunk(finish_reason=finish_reason), chunk(usage=USAGE)]


def test_reasoning_a_text_and_calls_are_items_in_their_order() -> None:
    writing = writer(encodes=True)
    chunks = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "Hm, "}),
        chunk({"reasoning_content": "well."}),
        chunk({"content": "Let me"}, {"content": " look."}),
        chunk(call(0, id="a", name="weather")),
        chunk(call(0, '{"city":')),
        chunk(call(0, '"Bern"}')),
        chunk(call(1, "{}", id="b", name="time")),
        *ended("tool_calls"),
    ]
    events = written(writing, *chunks)
    assert [event.type.removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    response = events[-1].response
    reasoning, message, *calls = response.output
    assert (reasoning.content[0].text, reasoning.summary) == ("Hm, well.", [])
    assert reasoning.encrypted_content == encoded_reasoning("Hm, well.")
    assert response.output_text == message.content[0].text == "Let me look."
    assert [(each.call_id, each.name, each.arguments) for each in calls] == [
        ("a", "weather", '{"city":"Bern"}'),
        ("b", "time", "{}"),
    ]
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.item for event in done] == response.output
    assert {event.output_index: event.item.id for event in done} == dict(enumerate(each.id for each in response.output))
    assert response.usage.model_dump() == {
        "input_tokens": 5,
        "input_tokens_details": {
            "cached_tokens": 4, "cache_write_tokens": 0, "cache_write_tokens_details": None,
        },
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 8,
    }  # fmt: skip
    folding = writer(encodes=True)
    for each in chunks:
        folding.add(each)
    left_out = {"completed_at": True, "created_at": True}
    assert folding.answer().model_dump(exclude=left_out) == writing.answer().model_dump(exclude=left_out)


def test_parts_of_two_calls_may_alternate() -> None:
    chunks = [
        chunk(call(0, id="a", name="f")),
        chunk(call(1, id="b", name="g")),
        chunk(call(0, "{}")),
        chunk(call(1, "[]")),
    ]
    response = written(writer(), *chunks, *ended("tool_calls"))[-1].response
    assert [(each.call_id, each.arguments) for each in response.output] == [("a", "{}"), ("b", "[]")]


def test_a_call_of_a_namespace_has_its_own_name() -> None:
    known = {"agents__close": ("agents", "close")}
    chunks = [chunk(call(0, "{}", id="a", name="agents__close")), chunk(call(1, "{}", id="b", name="f"))]
    events = written(writer(namespaces=known), *chunks, *ended("tool_calls"))
    assert [(each.namespace, each.name) for each in events[-1].response.output] == [("agents", "close"), (None, "f")]
    assert events[2].item.namespace == "agents"


def test_a_requested_summary_is_the_reasoning() -> None:
    events = written(writer(summarizes=True), chunk({"reasoning_content": "Hm."}), chunk({"content": "Yes."}), *ended())
    assert [event.type.removeprefix("response.") for event in events[2:8]] == [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
    ]  # fmt: skip
    reasoning = events[-1].response.output[0]
    assert (reasoning.summary[0].text, reasoning.content) == ("Hm.", None)


@pytest.mark.parametrize(
    ("finish_reason", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_what_a_limit_cuts_off_is_incomplete(finish_reason: str, reason: str) -> None:
    events = written(writer(), chunk({"content": "a"}), chunk(call(0, '{"x', id="a", name="f")), *ended(finish_reason))
    assert events[-1].type == "response.incomplete"
    response = events[-1].response
    assert response.incomplete_details.reason == reason
    assert [each.status for each in response.output] == ["completed", "incomplete"]


def test_an_answer_without_text_is_an_empty_message() -> None:
    response = written(writer(), *ended())[-1].response
    assert (response.status, response.output_text, len(response.output)) == ("completed", "", 1)


def test_an_answer_that_far_begins_again_replaces_that_of_near() -> None:
    near = {"side": "near", "reason": "policy", "scores": {}}
    far = {"side": "far", "reason": "failed", "scores": {}, "switched_at": 0}
    chunks = [chunk({"content": "Wro"}, route=near), chunk({"content": "Right."}, route=far), *ended()]
    events = written(writer(), *chunks)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(each.status, each.content[0].text) for each in done] == [("incomplete", "Wro"), ("completed", "Right.")]
    response = events[-1].response
    assert (response.output, response.route["side"]) == ([done[1]], "far")


def test_citations_are_flat_and_belong_to_the_text() -> None:
    cited = {"type": "url_citation", "url_citation": {"url": "u", "title": "t", "start_index": 0, "end_index": 1}}
    events = written(writer(), chunk({"content": "a"}), chunk({"annotations": [cited]}), *ended())
    [added] = [event for event in events if event.type == "response.output_text.annotation.added"]
    [annotation] = events[-1].response.output[0].content[0].annotations
    assert added.annotation.model_dump() == annotation.model_dump()
    assert (annotation.type, annotation.url, annotation.end_index) == ("url_citation", "u", 1)


def test_log_probabilities_are_those_of_the_text() -> None:
    token = {"token": "a", "bytes": None, "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.0}]}
    delta = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [token]}}
    thought = {"index": 0, "delta": {"reasoning_content": "x"}, "logprobs": {"content": [token]}}
    events = written(writer(), chunk(choices=[thought, delta]), *ended())
    [said] = [event for event in events if event.type == "response.output_text.delta"]
    assert [each.token for each in said.logprobs] == ["a"]
    [logprob] = events[-1].response.output[-1].content[0].logprobs
    assert (logprob.bytes, logprob.top_logprobs[0].bytes) == ([], [])


def test_an_answer_that_breaks_off_fails_with_what_was_written() -> None:
    writing = writer()
    body = writing.event(chunk({"content": "a"}))
    with pytest.raises(Unavailable):
        writing.end()
    error = b'{"error": {"message": "lost", "type": "server_error", "param": null, "code": "device_error"}}'
    events = read_events((body + writing.failed_event(error)).decode())
    assert events[-1].type == "response.failed"
    response = events[-1].response
    assert (response.status, response.error.code, response.error.message) == ("failed", "server_error", "lost")
    assert response.output[0].status == "incomplete"
    assert b'"failed"' in response_json(writing.failed({"message": "x", "type": "t", "code": None}))
