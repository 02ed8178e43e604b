"""Metrics, logs and traces. None of them contains a prompt, an answer or a key."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from asgi import HI, ask, ask_app, run
from fake_models import FakeExecutor, FakeModels
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from nearfar.compiler.runtime.errors import CheckpointError, DeviceError, RequestError
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import ApiKey, Keys, read_keys
from nearfar.server_fallback.api.log import JsonFormatter
from nearfar.server_fallback.api.model_changes import ModelChanges
from nearfar.server_fallback.api.traces import Traces, open_traces
from nearfar.server_fallback.engine.stats import EngineStats, RequestRecord, TierStats
from nearfar.server_fallback.executors.executor import Call, ExecutorState
from nearfar.server_fallback.log_event import LOGGER
from nearfar.server_fallback.schema.models import LoadRequest

CHAT = "/v1/chat/completions"
SECRET: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "SECRET"}]}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    LOGGER.addHandler(handler)
    level = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    yield stream
    LOGGER.setLevel(level)
    LOGGER.removeHandler(handler)


def scraped(app: Any) -> dict[str, float]:
    """Samples of the model "fake" and of HTTP, by name and their other labels."""
    samples = {}
    for family in text_string_to_metric_families(app.state.service.metrics.text().decode()):
        for sample in family.samples:
            rest = [value for name, value in sorted(sample.labels.items()) if name not in ("model_name", "le")]
            samples[" ".join([sample.name, *rest])] = sample.value
    return samples


def test_metrics_count_what_happened_under_vllm_s_names() -> None:
    async def work() -> dict[str, float]:
        models = FakeModels(FakeExecutor())
        engine = EngineStats(
            kv_usage=0.5,
            kv_waste=0.125,
            prefix_queries=100,
            prefix_hits=60,
            preemptions=4,
            drafted_tokens=40,
            accepted_tokens=30,
            steps=7,
            overhead_seconds=1.5,
            tiers=TierStats(900, 600, 1 << 30, 1 << 40, 30, 8, 5, 6, 1, 2, 3),
        )
        models.fake.current = ExecutorState(True, "", 3, 2, 1000, engine)
        app = create_app(models, ApiConfig())
        for body in (HI, {**HI, "stream": True}, {**HI, "n": 2}):
            await ask_app(app, "POST", CHAT, body)
        await ask_app(app, "POST", "/v1/completions", {"model": "fake", "prompt": "x"})
        await ask_app(app, "POST", "/v1/embeddings", {"model": "fake", "input": "x"})
        models.fake.error = RequestError("no")
        await ask_app(app, "POST", CHAT, HI)
        await ask_app(app, "GET", "/nowhere/1")
        return scraped(app)

    samples = run(work())
    assert (
        samples.items()
        >= {
            "vllm:num_requests_running": 3,
            "vllm:num_requests_waiting": 2,
            "vllm:kv_cache_usage_perc": 0.5,
            "nearfar:kv_cache_waste_perc": 0.125,
            "nearfar:engine_steps_total": 7,
            "nearfar:engine_overhead_seconds_total": 1.5,
            "nearfar:memory_bytes": 1000,
            "nearfar:model_ready": 1,
            "vllm:prefix_cache_queries_total": 100,
            "vllm:prefix_cache_hits_total": 60,
            "vllm:external_prefix_cache_queries_total": 900,
            "vllm:external_prefix_cache_hits_total": 600,
            "nearfar:kv_host_bytes": 1 << 30,
            "nearfar:kv_disk_bytes": 1 << 40,
            "nearfar:kv_host_hits_total": 30,
            "nearfar:kv_disk_hits_total": 8,
            "nearfar:kv_host_evictions_total": 5,
            "nearfar:kv_disk_evictions_total": 6,
            "nearfar:kv_disk_damaged_total": 1,
            "nearfar:kv_disk_failures_total": 2,
            "nearfar:kv_dropped_total": 3,
            "vllm:num_preemptions_total": 4,
            "vllm:spec_decode_num_draft_tokens_total": 40,
            "vllm:spec_decode_num_accepted_tokens_total": 30,
            "vllm:prompt_tokens_total": 5 * 4 + 3,
            "vllm:generation_tokens_total": 3 * 3 + 6,
            "vllm:request_success_total stop": 4,
            "vllm:request_success_total length": 1,
            "vllm:request_success_total error": 1,
            "vllm:time_to_first_token_seconds_count": 4,
            "vllm:e2e_request_latency_seconds_count": 4,
            "vllm:request_queue_time_seconds_sum": 0.25 * 5,
            f"http_requests_total {CHAT} POST 200": 3,
            f"http_requests_total {CHAT} POST 400": 1,
            "http_requests_total none GET 404": 1,
        }.items()
    )
    # Two pieces after the first, in five answers.
    assert samples["vllm:inter_token_latency_seconds_count"] == 2 * 5


def test_an_engines_answers_and_its_cache_have_vllm_s_names_and_buckets() -> None:
    record = RequestRecord()
    record.step(5)
    record.ended(10, 20, 0.25, 1.5)
    record.ended(1000, 1, 0.125, 0.0)
    models = FakeModels(FakeExecutor())
    engine = EngineStats(
        requests=record.snapshot(), page_size=16, num_pages=512, max_adapters=4,
        running_adapters=("green", "red"), waiting_adapters=("red",),
    )  # fmt: skip
    models.fake.current = ExecutorState(True, "", engine=engine)
    text = create_app(models, ApiConfig()).state.service.metrics.text().decode()
    for line in (
        'vllm:iteration_tokens_total_bucket{le="8.0",model_name="fake"} 1.0',
        'vllm:iteration_tokens_total_sum{model_name="fake"} 5.0',
        'vllm:request_prompt_tokens_bucket{le="10.0",model_name="fake"} 1.0',
        'vllm:request_prompt_tokens_sum{model_name="fake"} 1010.0',
        'vllm:request_generation_tokens_count{model_name="fake"} 2.0',
        'vllm:request_prefill_time_seconds_sum{model_name="fake"} 0.375',
        'vllm:request_decode_time_seconds_sum{model_name="fake"} 1.5',
        'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",model_name="fake",num_gpu_blocks="512"} 1',
    ):
        assert line in text
    adapters = 'max_lora="4",model_name="fake",running_lora_adapters="green,red",waiting_lora_adapters="red"'
    assert re.search(rf"^vllm:lora_requests_info\{{{adapters}\}} 1\.\d+e\+09$", text, re.MULTILINE)


def test_tokens_of_answers_count_for_the_limit_of_their_key() -> None:
    digest = hashlib.sha256(b"key-of-web").digest()
    # Each answer has 5 + 3 tokens.
    config = ApiConfig(keys=Keys((ApiKey("web", digest, tokens_per_minute=9),)))
    authorization = {"authorization": "Bearer key-of-web"}
    app = create_app(FakeModels(), config)
    first = run(ask_app(app, "POST", CHAT, HI, **authorization))
    assert (first.status_code, first.headers["x-ratelimit-remaining-tokens"]) == (200, "9")
    second = run(ask_app(app, "POST", CHAT, {**HI, "stream": True}, **authorization))
    assert second.headers["x-ratelimit-remaining-tokens"] == "1"
    refused = run(ask_app(app, "POST", CHAT, HI, **authorization))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    # 7 tokens more than there were, and one to begin with, at 9 a minute.
    assert 50 < int(refused.headers["Retry-After"]) <= 54


def test_a_broken_answer_counts_its_prompt_and_its_pieces() -> None:
    class Broken(FakeExecutor):
        async def _said(self, request: Any, call: Call) -> AsyncGenerator[str, None]:
            await call.expect(100)
            async for piece in super()._said(request, call):
                yield piece

    digest = hashlib.sha256(b"key-of-web").digest()
    config = ApiConfig(keys=Keys((ApiKey("web", digest, tokens_per_minute=300),)))
    app = create_app(FakeModels(Broken(error=DeviceError("torn"), error_at=2)), config)
    authorization = {"authorization": "Bearer key-of-web"}
    for remaining in (200, 98):
        broken = run(ask_app(app, "POST", CHAT, {**HI, "stream": True}, **authorization))
        assert int(broken.headers["x-ratelimit-remaining-tokens"]) == pytest.approx(remaining, abs=1)
        assert "torn" in broken.text


def test_each_app_has_metrics_of_its_own() -> None:
    assert b"vllm:num_requests_running" in create_app(FakeModels(), ApiConfig()).state.service.metrics.text()
    response = ask("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert 'vllm:num_requests_running{model_name="fake"} 0.0' in response.text


def test_a_request_is_a_line_of_json(log: io.StringIO) -> None:
    config = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": "web=sk-web-12345678"}))
    ask(
        "POST",
        CHAT,
        {**SECRET, "stream": True},
        config=config,
        authorization="Bearer sk-web-12345678",
        x_request_id="my-1",
    )
    ask("GET", "/metrics", config=config)
    (line,) = map(json.loads, log.getvalue().splitlines())
    assert (
        line.items()
        >= {
            "level": "info",
            "event": "request",
            "request_id": "my-1",
            "method": "POST",
            "route": CHAT,
            "status": 200,
            "key": "web",
            "model": "fake",
            "stream": True,
            "finish_reason": "stop",
            "prompt_tokens": 5,
            "completion_tokens": 3,
        }.items()
    )
    assert line["seconds"] >= line["first_token_seconds"] >= 0
    assert line["time"].endswith("Z")


def test_requesters_and_changes_of_models_are_logged(log: io.StringIO) -> None:
    config = ApiConfig(
        keys=read_keys(None, {"NEARFAR_API_KEYS": "admin=sk-admin-12345678"}), trusted_proxies=("127.0.0.0/8",)
    )
    received: dict[str, str] = {"authorization": "Bearer sk-admin-12345678", "x_forwarded_for": "192.0.2.1"}

    async def work() -> None:
        models = FakeModels()
        app = create_app(models, config)
        await ask_app(app, "POST", "/v1/models/load", {"model": "/bundles/m", "name": "new"}, **received)
        await ask_app(app, "POST", "/v1/models/unload", {"model": "new"}, **received)
        await ask_app(
            app, "POST", "/v1/load_lora_adapter", {"lora_name": "poet", "lora_path": "/adapters/poet"}, **received
        )
        await ask_app(app, "POST", "/v1/unload_lora_adapter", {"lora_name": "poet"}, **received)
        models.load_error = CheckpointError("/bundles/m: is missing")
        await ask_app(app, "POST", "/v1/models/load", {"model": "/bundles/m"}, **received)
        await ModelChanges(FakeModels()).load(LoadRequest(model="demo"))

    run(work())
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert {line["address"] for line in lines if line["event"] == "request"} == {"192.0.2.1"}
    changes = [line for line in lines if line["event"] != "request"]
    assert [(line["event"], line["name"], line["by"]) for line in changes] == [
        ("model_loaded", "new", "key admin"),
        ("model_unloaded", "new", "key admin"),
        ("adapter_loaded", "poet", "key admin"),
        ("adapter_unloaded", "poet", "key admin"),
        ("model_change_failed", "/bundles/m", "key admin"),
        ("model_loaded", "demo", "command line"),
    ]
    assert {"model": "/bundles/m", "memory_bytes": 1000, "address": "192.0.2.1"}.items() <= changes[0].items()
    assert changes[0]["seconds"] >= 0
    assert {
        "change": "model_loaded",
        "error": "checkpoint_error",
        "message": "/bundles/m: is missing",
    }.items() <= changes[4].items()


def test_no_prompt_and_no_key_is_logged(log: io.StringIO) -> None:
    config = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": "web=SECRET-12345678"}))
    models = FakeModels(FakeExecutor(pieces=["SECRET"] * 2, error_at=1))
    app = create_app(models, config)
    for error in (RequestError("SECRET"), ZeroDivisionError("SECRET")):
        models.fake.error = error
        for body in (
            SECRET,
            {**SECRET, "stream": True},
            {**SECRET, "n": "SECRET"},
            b"{SECRET",
            {**SECRET, "SECRET": "SECRET"},
        ):
            run(ask_app(app, "POST", CHAT, body, authorization="Bearer SECRET-12345678"))
            run(ask_app(app, "POST", CHAT + "?SECRET=SECRET", body, authorization="Bearer SECRET-1234567"))
    ask("GET", "/SECRET")
    text = log.getvalue()
    assert "SECRET" not in text
    bugs = [json.loads(line) for line in text.splitlines() if '"bug"' in line]
    assert [bug["error"] for bug in bugs] == ["ZeroDivisionError"] * 2
    assert "fake_models.py" in bugs[0]["stack"][-1]


def test_an_exception_that_others_log_keeps_its_text_to_itself(log: io.StringIO) -> None:
    try:
        raise ValueError("SECRET")
    except ValueError:
        LOGGER.exception("failed")
    line = json.loads(log.getvalue())
    assert (line["event"], line["error"]) == ("failed", "ValueError")
    assert "SECRET" not in log.getvalue()


def test_a_span_is_below_its_caller_s_and_above_the_next_server_s() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    models = FakeModels()
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

    async def work() -> None:
        app = create_app(models, ApiConfig(), Traces(provider))
        async with app.router.lifespan_context(app):
            await ask_app(app, "POST", CHAT, SECRET, traceparent=f"00-{trace}-{caller}-01", x_request_id="my-1")
            models.fake.error = ZeroDivisionError("SECRET")
            await ask_app(app, "POST", CHAT, SECRET)

    run(work())
    good, bad = exporter.get_finished_spans()
    assert good.context is not None
    assert good.parent is not None
    assert good.name == f"POST {CHAT}"
    assert f"{good.context.trace_id:032x}" == trace
    assert f"{good.parent.span_id:016x}" == caller
    assert models.fake.calls[0].headers == {"traceparent": f"00-{trace}-{good.context.span_id:016x}-01"}
    assert dict(good.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "gen_ai.request.model": "fake",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 3,
        "nearfar.request_id": "my-1",
    }
    assert not bad.status.is_ok
    assert "SECRET" not in bad.to_json()


def test_traces_are_made_only_if_an_endpoint_is_set() -> None:
    assert open_traces({}) is None
    traces = open_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    assert traces is not None
    traces.close()


def test_opentelemetry_is_not_imported_without_an_endpoint() -> None:
    # FastAPI itself imports the library's interface if it is installed.
    heavy = "{'opentelemetry.sdk', 'opentelemetry.exporter', 'torch', 'tvm', 'xgrammar'}"
    code = f"import sys, nearfar.server_fallback.api.server; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
