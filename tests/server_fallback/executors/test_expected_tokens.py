"""What executors expect of a request's tokens before its first step."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answers import whole
from fake_openai import FakeOpenAI
from fake_source import executor
from local_requests import CALL, chat_request, run
from opened_upstreams import with_upstream

from nearfar.compiler.runtime.errors import Unavailable
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.expected_tokens import expected_text_tokens, expected_tokens
from nearfar.server_fallback.executors.upstream_executor import UpstreamExecutor
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.decide import DecideRequest
from nearfar.server_fallback.schema.embeddings import EmbeddingRequest
from nearfar.server_fallback.schema.rerank import RerankRequest
from nearfar.server_fallback.schema.score import ClassifyRequest, ScoreRequest


def test_our_own_executor_expects_exactly_what_the_answers_may_take(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "Hello")
    expected = list[tuple[int, float]]()

    async def expect(prompt: int, most: float) -> None:
        expected.append((prompt, most))

    call = replace(CALL, expect_tokens=expect)
    # "[user]hi[assistant]" has 19 bytes, each of them a token.
    run(whole(local, chat_request(max_completion_tokens=3, n=2), call))
    run(whole(local, chat_request(), call))
    run(whole(local, CompletionRequest(model="fake", prompt=["abc", "de"], max_tokens=7, n=2), call))
    assert expected == [(19, 6), (19, 4096 - 19 + 1), (5, 28)]
    # Nothing runs if a limit does not allow it.
    asked = len(source.requests)

    async def refuse(prompt: int, most: float) -> None:
        raise Unavailable(f"{prompt} and {most}")

    with pytest.raises(Unavailable, match="19 and 3"):
        run(whole(local, chat_request(max_completion_tokens=3), replace(CALL, expect_tokens=refuse)))
    assert len(source.requests) == asked


PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 4000}"}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d" * 400}}


@pytest.mark.parametrize(
    ("body", "context", "found"),
    [
        ({"messages": [("a" * 10, {})], "max_tokens": 7}, 100, (3, 7)),
        ({"messages": [("a" * 10, {})], "max_completion_tokens": 7, "n": 2}, None, (3, 14)),
        ({"messages": [("a" * 40, {})]}, 100, (10, 90)),
        ({"messages": [("a" * 800, {})]}, 100, (200, 0)),
        ({"messages": [("a" * 40, {})]}, 0, (10, math.inf)),
        ({"messages": [([{"type": "text", "text": "a" * 8}, PICTURE], {})], "max_tokens": 1}, 100, (2, 1)),
        ({"prompt": "a" * 40, "max_tokens": 5}, 100, (10, 5)),
        ({"prompt": ["a" * 40, "b" * 4], "max_tokens": 5, "n": 2}, 100, (11, 20)),
        ({"prompt": [1, 2, 3], "max_tokens": 5, "echo": True}, 100, (3, 5)),
        ({"prompt": [[1, 2, 3], [4]]}, 100, (4, 192)),
        ({"prompt": "a" * 4, "suffix": "b" * 4, "max_tokens": 5}, 100, (2, 5)),
    ],
)
def test_tokens_of_other_servers_are_estimated(body: dict[str, Any], context: int | None, found: Any) -> None:
    if "messages" in body:
        messages = [{"role": "user", "content": content, **more} for content, more in body["messages"]]
        request: Any = ChatCompletionRequest.model_validate({**body, "model": "m", "messages": messages})
    else:
        request = CompletionRequest.model_validate({**body, "model": "m"})
    assert expected_tokens(request, context) == found


def test_tools_and_calls_are_part_of_the_prompt() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "x" * 400}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    request = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": messages, "tools": [TOOL], "max_tokens": 1}
    )
    tokens, most = expected_tokens(request, None)
    assert 200 < tokens < 260
    assert most == 1


LONG = "a" * 40
QUESTION = {"type": "yes_no", "question": "b" * 4}


@pytest.mark.parametrize(
    ("kind", "body", "found"),
    [
        (EmbeddingRequest, {"input": LONG}, 10),
        (EmbeddingRequest, {"input": [LONG, "b"]}, 11),
        (EmbeddingRequest, {"input": [1, 2, 3]}, 3),
        (EmbeddingRequest, {"input": [[1, 2, 3], [4]]}, 4),
        (EmbeddingRequest, {"input": ["a" * 800, LONG], "truncate": True}, 110),
        (EmbeddingRequest, {"input": ["a" * 800, LONG], "truncate_prompt_tokens": -1}, 110),
        (EmbeddingRequest, {"input": [LONG, "b"], "truncate_prompt_tokens": 7}, 8),
        (RerankRequest, {"query": "b" * 4, "documents": [LONG, {"text": LONG, "other": "c" * 99}]}, 22),
        (ScoreRequest, {"text_1": "b" * 4, "text_2": [LONG, LONG]}, 22),
        (ScoreRequest, {"text_1": ["b" * 4, ""], "text_2": [LONG, LONG]}, 21),
        (ClassifyRequest, {"input": [LONG, LONG]}, 20),
        (ClassifyRequest, {"input": [LONG], "labels": ["b" * 4, "c" * 8], "hypothesis_template": "d {}"}, 25),
        (DecideRequest, {"context": LONG, "questions": {"one": QUESTION, "two": QUESTION}}, 40),
        (DecideRequest, {"messages": [{"role": "user", "content": LONG}], "questions": {"one": QUESTION}}, 20),
    ],
)
def test_texts_for_other_servers_are_estimated(kind: Any, body: dict[str, Any], found: int) -> None:
    assert expected_text_tokens(kind.model_validate({"model": "m", **body}), 100) == found


def test_nothing_is_sent_to_another_server_that_a_limit_does_not_allow() -> None:
    server = FakeOpenAI()

    async def refuse(prompt: int, most: float) -> None:
        raise Unavailable(f"{prompt} and {most}")

    async def check(executor: UpstreamExecutor) -> None:
        with pytest.raises(Unavailable, match="10 and 0"):
            await executor.embed(EmbeddingRequest(model="m", input=LONG), Call("r", expect_tokens=refuse))

    with_upstream(check, server)
    assert not server.received
