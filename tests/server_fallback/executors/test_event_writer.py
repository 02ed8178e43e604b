"""The events of our own engine's answers are those of its chunks, and most of them are written without a chunk."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_source import executor, reasoner
from local_requests import CALL, TOOL, chat_request, run

from nearfar.server_fallback.api.encode import chat_chunk_json, completion_chunk_json
from nearfar.server_fallback.executors.executor import EventBlock, Relays
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.schema.chat import ChatCompletionChunk
from nearfar.server_fallback.schema.completions import CompletionChunk, CompletionRequest

TEXT = 'Say "é\n\u2028\\" \U0001f600 and\x00 \x7f.'
CALLED = 'Well. <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
# These values are new in each answer.
FRESH = re.compile(rb'"(chatcmpl-|cmpl-|call_)[^"]*"|"created":\d+')


class Counted:
    """Writes events, and counts the chunks that it is called with."""

    def __init__(self, encode: Callable[[Any, bool], bytes | None], include_usage: bool) -> None:
        self._encode, self._include_usage = encode, include_usage
        self.calls = 0

    def __call__(self, chunk: ChatCompletionChunk | CompletionChunk) -> bytes | None:
        self.calls += 1
        written = self._encode(chunk, self._include_usage)
        return None if written is None else b"data: " + written + b"\n\n"


def anonymous(events: list[bytes]) -> bytes:
    return FRESH.sub(b"", b"".join(events))


async def compare_chat(local: LocalExecutor, **given: Any) -> tuple[list[EventBlock], Counted]:
    encode = Counted(chat_chunk_json, include_usage=True)
    request = chat_request(**given)
    blocks = [block async for block in local.relay_chat(request, CALL, encode)]
    calls = encode.calls
    chunks = [chunk async for chunk in local.chat(request, CALL)]
    assert anonymous([block.sent for block in blocks]) == anonymous([encode(chunk) or b"" for chunk in chunks])
    assert [block.texts for block in blocks] == [
        {each.index for each in chunk.choices if each.has_text} for chunk in chunks
    ]
    ends = [{each.index: each.finish_reason for each in chunk.choices if each.finish_reason} for chunk in chunks]
    assert [block.ends for block in blocks] == ends
    assert [block.usage is None for block in blocks] == [chunk.usage is None for chunk in chunks]
    encode.calls = calls
    return blocks, encode


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"n": 3},
        {"stop": "and"},
        {"logprobs": True, "top_logprobs": 2},
        {"tools": [TOOL]},
        {"max_tokens": 7},
    ],
)
def test_a_chats_events_are_those_of_its_chunks(tmp_path: Path, given: dict[str, Any]) -> None:
    for text in (TEXT, CALLED, ""):
        local, _ = executor(tmp_path, text)
        run(compare_chat(local, **given))


def test_reasoning_is_written_in_chunks_and_the_content_around_its_text(tmp_path: Path) -> None:
    local, _ = reasoner(tmp_path, "<think>\nHm, é.\n</think>\n\n" + "Yes. " * 20)
    blocks, encode = run(compare_chat(local))
    reasoned = sum(b"reasoning_content" in block.sent for block in blocks)
    # In addition, the role, the text that becomes a template, the end and the usage.
    assert encode.calls == reasoned + 4
    assert len(blocks) > reasoned + 50


def test_a_long_answer_needs_no_more_chunks_than_a_short_one(tmp_path: Path) -> None:
    for length in (5, 500):
        local, _ = executor(tmp_path, "x" * length)
        assert isinstance(local, Relays)
        blocks, encode = run(compare_chat(local))
        # The role, the first text, the template, the end and the usage.
        assert (len(blocks), encode.calls) == (length + 3, 5)


@pytest.mark.parametrize(
    "given", [{}, {"n": 2, "prompt": ["a", "b"]}, {"logprobs": 1}, {"echo": True}, {"stop": ["and"]}, {"max_tokens": 7}]
)
def test_a_completions_events_are_those_of_its_chunks(tmp_path: Path, given: dict[str, Any]) -> None:
    local, _ = executor(tmp_path, TEXT)
    request = CompletionRequest.model_validate({"model": "fake", "prompt": "p", **given})
    encode = Counted(completion_chunk_json, include_usage=False)

    async def read() -> None:
        blocks = [block async for block in local.relay_completion(request, CALL, encode)]
        if not given:
            assert encode.calls == 3
        chunks = [chunk async for chunk in local.complete(request, CALL)]
        assert anonymous([block.sent for block in blocks]) == anonymous([encode(chunk) or b"" for chunk in chunks])
        assert blocks[-1].usage == chunks[-1].usage

    run(read())
