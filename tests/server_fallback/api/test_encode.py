"""Chunks as JSON: text chunks are encoded with a template, with the same keys and values as other chunks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.server_fallback.api.generation import chunk_json
from nearfar.server_fallback.schema.chat import ChatCompletionChunk, ChunkChoice, Delta
from nearfar.server_fallback.schema.completions import CompletionChunk, CompletionChunkChoice

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT, TEXT, st.integers(0, 3), st.booleans())
def test_a_chunk_of_text_is_the_json_of_its_fields(text: str, model: str, index: int, include_usage: bool) -> None:
    choice = ChunkChoice(index=index, delta=Delta(content=text))
    chunk = ChatCompletionChunk(id="chatcmpl-1", created=7, model=model, choices=[choice])
    body = chunk_json(chunk, include_usage)
    assert body is not None
    usage = {"usage": None} if include_usage else {}
    assert json.loads(body) == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": model,
        "choices": [{"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
        **usage,
    }
    completion = CompletionChunk(
        id="cmpl-1", created=7, model=model, choices=[CompletionChunkChoice(index=index, text=text)]
    )
    body = chunk_json(completion, include_usage)
    assert body is not None
    assert json.loads(body) == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 7,
        "model": model,
        "choices": [{"index": index, "text": text, "logprobs": None, "finish_reason": None}],
        **usage,
    }


@pytest.mark.parametrize("extra", [{"role": "assistant"}, {"reasoning_content": "hm"}])
def test_a_chunk_with_more_than_text_keeps_all_of_it(extra: dict[str, str]) -> None:
    choice = ChunkChoice(index=0, delta=Delta.model_validate({"content": "a", **extra}))
    body = chunk_json(ChatCompletionChunk(id="1", created=7, model="m", choices=[choice]), include_usage=False)
    assert body is not None
    assert json.loads(body)["choices"][0]["delta"] == {"content": "a", **extra}
