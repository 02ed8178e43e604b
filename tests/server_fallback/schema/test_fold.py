from __future__ import annotations

from typing import Any

import pytest
from answers import fold_chat, fold_completion

from nearfar.compiler.runtime.errors import Unavailable
from nearfar.server_fallback.schema.chat import ChatCompletionChunk
from nearfar.server_fallback.schema.completions import CompletionChunk

HEAD = {"id": "1", "created": 7, "model": "m"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def chat_chunks(*choices: dict[str, Any], usage: dict[str, int] | None = USAGE) -> list[ChatCompletionChunk]:
    chunks: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices] + [{"choices": [], "usage": usage}]
    return [ChatCompletionChunk.model_validate({**HEAD, **chunk}) for chunk in chunks]


def text_chunks(*choices: dict[str, Any], usage: dict[str, int] | None = USAGE) -> list[CompletionChunk]:
    chunks: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices] + [{"choices": [], "usage": usage}]
    return [CompletionChunk.model_validate({**HEAD, **chunk}) for chunk in chunks]


def test_the_deltas_of_interleaved_choices_add_up_in_the_order_of_their_indices() -> None:
    folded = fold_chat(
        chat_chunks(
            {"index": 1, "delta": {"role": "assistant", "content": ""}},
            {"index": 0, "delta": {"role": "assistant", "content": "a"}},
            {"index": 1, "delta": {"content": "b"}},
            {"index": 0, "delta": {"content": "c"}},
            {"index": 0, "delta": {}, "finish_reason": "length"},
            {"index": 1, "delta": {}, "finish_reason": "stop"},
        )
    )
    assert [(choice.index, choice.message.content, choice.finish_reason) for choice in folded.choices] == [
        (0, "ac", "length"),
        (1, "b", "stop"),
    ]
    assert folded.object == "chat.completion"
    assert folded.usage.total_tokens == 5
    assert folded.choices[0].logprobs is None
    assert folded.choices[0].message.tool_calls is None


def test_tool_calls_add_up_by_index_and_a_message_of_calls_alone_has_no_content() -> None:
    def call(index: int, **rest: Any) -> dict[str, Any]:
        return {"index": 0, "delta": {"tool_calls": [{"index": index, **rest}]}}

    folded = fold_chat(
        chat_chunks(
            {"index": 0, "delta": {"role": "assistant", "content": ""}},
            call(0, id="x", type="function", function={"name": "f", "arguments": ""}),
            call(0, function={"arguments": '{"a"'}),
            call(1, id="y", type="function", function={"name": "g", "arguments": "{}"}),
            call(0, function={"arguments": ": 1}"}),
            {"index": 0, "delta": {}, "finish_reason": "tool_calls"},
        )
    )
    [choice] = folded.choices
    assert choice.message.content is None
    assert [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()] == [
        ("x", "f", '{"a": 1}'),
        ("y", "g", "{}"),
    ]


def test_logprobs_add_up() -> None:
    def token(text: str) -> dict[str, Any]:
        return {"content": [{"token": text, "logprob": -1.0, "bytes": [65]}]}

    folded = fold_chat(
        chat_chunks(
            {"index": 0, "delta": {"content": "a"}, "logprobs": token("a")},
            {"index": 0, "delta": {"content": "b"}, "logprobs": token("b")},
            {"index": 0, "delta": {}, "finish_reason": "stop"},
        )
    )
    logprobs = folded.choices[0].logprobs
    assert logprobs is not None
    assert [entry.token for entry in logprobs.content or ()] == ["a", "b"]


def test_texts_and_their_logprobs_add_up() -> None:
    def part(text: str, offset: int) -> dict[str, Any]:
        logprobs = {"tokens": [text], "token_logprobs": [-0.5], "top_logprobs": [{text: -0.5}], "text_offset": [offset]}
        return {"index": 0, "text": text, "logprobs": logprobs}

    last = {"index": 0, "text": "!", "finish_reason": "stop"}
    folded = fold_completion(text_chunks(part("a", 0), part("b", 1), last))
    [choice] = folded.choices
    assert (choice.text, choice.finish_reason) == ("ab!", "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b"]
    assert choice.logprobs.text_offset == [0, 1]
    assert choice.logprobs.top_logprobs == [{"a": -0.5}, {"b": -0.5}]


def test_an_answer_that_is_cut_off_is_an_error() -> None:
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    for chunks in (chat_chunks(end, usage=None), chat_chunks({"index": 0, "delta": {"content": "a"}}), []):
        with pytest.raises(Unavailable, match="cut off"):
            fold_chat(chunks)
    for parts in (text_chunks({"index": 0, "text": "a"}), text_chunks(usage=None), []):
        with pytest.raises(Unavailable, match="cut off"):
            fold_completion(parts)
