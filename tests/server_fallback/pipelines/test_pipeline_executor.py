"""A pipeline answers chats over HTTP under its own name, with the times of its steps."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from answers import chunks_of
from asgi import ask_app, events, run
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pipeline_models import ANSWER, make_store, registry_of, steps, write

from nearfar.compiler.runtime.errors import DeviceError
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.traces import Traces
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.models import LoadRequest

QUESTION = [{"role": "user", "content": "a"}]
PROMPT = "[system]Use:\n[1] ab.txt\nab\n\n[2] aaa.txt\naaa[user]a[assistant]"


def test_a_pipeline_streams_under_its_name_with_its_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(tmp_path)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def work() -> None:
        async with registry_of(tmp_path) as (registry, source):
            await registry.load(LoadRequest(model=str(write(tmp_path)), name="rag", aliases=["handbook"]))
            app = create_app(registry, ApiConfig(), Traces(provider))
            body: dict[str, Any] = {"model": "rag", "messages": QUESTION}
            with caplog.at_level(logging.INFO, "nearfar.server"):
                answer = (await ask_app(app, "POST", "/v1/chat/completions", body)).json()
            assert answer["model"] == "rag"
            assert answer["choices"][0]["message"]["content"] == ANSWER
            trace = answer["nearfar"]
            assert [step["name"] for step in trace["steps"]] == ["vector", "found", "best", "answer"]
            assert [step.get("model") for step in trace["steps"]] == ["embed", "docs", "rank", "chat"]
            assert sorted(each["text"] for each in trace["passages"]) == ["aaa", "ab"]
            request = source.requests[0]
            assert sorted(bytes(request.prompt_ids).decode()) == sorted(PROMPT)
            assert request.max_tokens == 20
            streamed = await ask_app(
                app, "POST", "/v1/chat/completions", {**body, "model": "handbook", "stream": True, "max_tokens": 5}
            )
            chunks = events(streamed)
            assert chunks[-1] == "[DONE]"
            texts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1] if chunk["choices"]]
            assert "".join(texts) == ANSWER[:5]
            traced = [chunk["nearfar"] for chunk in chunks[:-1] if "nearfar" in chunk]
            assert [len(each["steps"]) for each in traced] == [3, 4]
            assert [("passages" in each) for each in traced] == [True, False]
            assert source.requests[1].max_tokens == 5
            text = (await ask_app(app, "GET", "/metrics")).text
            assert 'nearfar:step_time_seconds_count{model_name="rag",step="best"} 1.0' in text
            refused = await ask_app(app, "POST", "/v1/embeddings", {"model": "rag", "input": "a"})
            assert refused.json()["error"]["message"].endswith("a pipeline answers only /v1/chat/completions")
            empty = {"model": "rag", "messages": [{"role": "user", "content": " "}]}
            assert (await ask_app(app, "POST", "/v1/chat/completions", empty)).status_code == 400
            await registry.unload("rank")
            gone = await ask_app(app, "POST", "/v1/chat/completions", body)
            assert (gone.status_code, registry.states()["rag"].detail) == (503, "its model rank is not loaded")

    run(work())
    spans = exporter.get_finished_spans()
    parents = [span for span in spans if span.parent is None]
    own = [span for span in spans if span.parent is not None and span.parent.span_id == parents[0].context.span_id]
    assert [span.name for span in own] == ["embed vector", "search found", "rerank best", "chat answer"]
    starts = [span.start_time or 0 for span in (parents[0], *own)]
    assert starts == sorted(starts)
    [line] = [record.fields for record in caplog.records if record.getMessage() == "request"]  # type: ignore[attr-defined]
    assert list(line["steps_ms"]) == ["vector", "found", "best", "answer"]
    assert "aaa" not in json.dumps(line)


def test_a_chat_writes_the_query_and_pipelines_contain_pipelines(tmp_path: Path) -> None:
    make_store(tmp_path)
    query = {"kind": "chat", "output": "query", "model": "chat", "prompt": "Query for: {question}"}
    write(tmp_path, steps=[query, *steps(vector={"input": "query"}, best={"query": "query"})])
    inner = {"kind": "pipeline", "output": "draft", "pipeline": "rag.json"}
    last = {"kind": "chat", "output": "answer", "model": "chat", "prompt": "Correct {draft}: {question}"}
    outer = write(tmp_path, {"name": "outer", "steps": [last, inner], "output": "answer"}, "outer.json")

    async def work() -> None:
        async with registry_of(tmp_path) as (registry, source):
            await registry.load(LoadRequest(model=str(outer), name="outer"))
            app = create_app(registry, ApiConfig())
            body = {"model": "outer", "messages": [{"role": "user", "content": "a {draft}"}], "temperature": 0.5}
            answer = (await ask_app(app, "POST", "/v1/chat/completions", body)).json()
            prompts = [bytes(request.prompt_ids).decode() for request in source.requests]
            assert prompts[0] == "[user]Query for: a {draft}[assistant]"
            assert prompts[1].startswith("[system]Use:\n[1] ")
            assert prompts[2] == f"[user]Correct {ANSWER}: a {{draft}}[assistant]"
            assert [request.sampling.temperature for request in source.requests] == [0.0, 0.0, 0.5]
            assert [step["kind"] for step in answer["nearfar"]["steps"]] == ["pipeline", "chat"]

    run(work())


def test_an_image_that_the_last_prompt_would_leave_out_is_refused(tmp_path: Path) -> None:
    make_store(tmp_path)
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    messages = [*QUESTION, {"role": "user", "content": [{"type": "text", "text": "a"}, image]}]

    async def error_of(path: Path) -> Any:
        async with registry_of(tmp_path) as (registry, _):
            await registry.load(LoadRequest(model=str(path), name="rag"))
            app = create_app(registry, ApiConfig())
            body = {"model": "rag", "messages": messages}
            return (await ask_app(app, "POST", "/v1/chat/completions", body)).json()["error"]

    path = write(tmp_path, steps=steps(answer={"prompt": "{question} {best}", "system": None}))
    error = run(error_of(path))
    assert error["message"].startswith("messages[1] has an image, but this pipeline answers a prompt of its own")
    assert error["param"] == "messages[1].content"
    # Without a prompt of its own, the last model gets the messages; this one reads texts only.
    assert "this model reads texts only" in run(error_of(write(tmp_path)))["message"]


def test_a_step_does_not_wait_for_one_that_it_does_not_need(tmp_path: Path) -> None:
    make_store(tmp_path)
    slow = {"kind": "chat", "output": "slow", "model": "chat", "prompt": "{question}"}
    path = write(tmp_path, steps=[slow, *steps(answer={"system": "{best} {slow}"})])

    async def work() -> None:
        async with registry_of(tmp_path) as (registry, _):
            await registry.load(LoadRequest(model=str(path), name="rag"))
            app = create_app(registry, ApiConfig())
            body = {"model": "rag", "messages": QUESTION}
            ended = (await ask_app(app, "POST", "/v1/chat/completions", body)).json()["nearfar"]["steps"]
            by_name = {step["name"]: step for step in ended}
            assert by_name["found"]["started_ms"] < by_name["slow"]["started_ms"] + by_name["slow"]["ms"]
            assert ended[-1]["name"] == "answer"

    run(work())


def test_a_step_that_fails_ends_the_answer_with_its_error(tmp_path: Path) -> None:
    make_store(tmp_path)

    async def work() -> None:
        async with registry_of(tmp_path) as (registry, source):
            await registry.load(LoadRequest(model=str(write(tmp_path)), name="rag"))
            app = create_app(registry, ApiConfig())
            engine = (await registry.executor("embed"))._engine  # type: ignore[attr-defined]

            async def fail(_: object) -> None:
                raise DeviceError("lost")

            engine.encode = fail
            answer = await ask_app(app, "POST", "/v1/chat/completions", {"model": "rag", "messages": QUESTION})
            assert (answer.status_code, answer.json()["error"]["message"]) == (500, "lost")
            assert source.requests == []

    run(work())


def test_a_client_that_leaves_ends_the_steps(tmp_path: Path) -> None:
    make_store(tmp_path)

    async def work() -> None:
        async with registry_of(tmp_path) as (registry, source):
            await registry.load(LoadRequest(model=str(write(tmp_path)), name="rag"))
            executor = await registry.executor("rag")
            request = ChatCompletionRequest.model_validate({"model": "rag", "messages": QUESTION})
            chunks = chunks_of(executor, request, Call("1"))
            await anext(chunks)
            assert (executor.state().running, source.running) == (1, 1)
            await chunks.aclose()
            assert (executor.state().running, source.running) == (0, 0)

    run(work())
