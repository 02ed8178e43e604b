"""A decode worker whose long prompts a prefill worker in another process computes: every request gets the same answer
as from one server alone, whatever happens to the prefill worker, its connection or its answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from answers import whole
from asgi import ask_of
from certificates import write_certificate
from served_demo import Served, start
from tiny_adapters import MLP, make_adapter
from waiting import until, wait_until

from nearfar.compiler.runtime.errors import NearfarError, RequestError, Unavailable
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import ENVIRONMENT
from nearfar.server_fallback.api.tls import tls_context
from nearfar.server_fallback.executors import prefill_client
from nearfar.server_fallback.executors.adaptable import AdaptableExecutor
from nearfar.server_fallback.executors.apart import ApartEngine
from nearfar.server_fallback.executors.executor import Call, ExecutorState, PrefillState
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.local_opener import open_executor
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.prefill_options import PrefillOptions
from nearfar.server_fallback.executors.prefill_workers import PrefillWorkers
from nearfar.server_fallback.executors.shared_pages import SharedReader, is_supported
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.pages import NOBODY, PAGES_ROUTE, VERSION

KEY = "prefill-key"
MODEL = "m"
Result = TypeVar("Result")
# Changes what the worker sends: the bytes, and how many were sent before. None stops the connection, and "" sends
# nothing more.
Fault = Callable[[bytes, int], bytes | None]


class Proxy:
    """A TCP proxy before the prefill worker, on the loop of the decode worker. ``fault`` counts from a request on.
    ``tls``: it decrypts what it forwards.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port, self._tls = port, tls
        self.fault: Fault | None = None
        self.port = 0
        self._connections = set[asyncio.Task[None]]()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers, sent = [writer], [0]

        async def ask(to_worker: asyncio.StreamWriter) -> None:
            while part := await reader.read(1 << 16):
                sent[0] = 0
                to_worker.write(part)

        async def answer(worker: asyncio.StreamReader) -> None:
            while part := await worker.read(1 << 16):
                changed = part if self.fault is None else self.fault(part, sent[0])
                if changed is None:
                    return
                sent[0] += len(part)
                writer.write(changed)

        try:
            worker, to_worker = await asyncio.open_connection("127.0.0.1", self._port)
            writers.append(to_worker)
            tasks = [asyncio.create_task(work) for work in (ask(to_worker), answer(worker))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass
        finally:
            self._connections.discard(task)
            for each_writer in writers:
                each_writer.transport.abort()


class Workers:
    """``alone`` answers by itself, ``apart`` with the prefill worker behind the proxy. All run on one loop."""

    def __init__(self, prefill: Served, bundle: Path, runner: asyncio.Runner) -> None:
        self.prefill, self._bundle, self.runner = prefill, bundle, runner
        self.proxy = Proxy(httpx.URL(prefill.url).port or 0)
        self.alone: LocalExecutor
        self.apart: LocalExecutor
        runner.run(self._open())

    async def _open(self) -> None:
        await self.proxy.open()
        self.alone = await self.opened(PrefillOptions())
        self.apart = await self.opened(self.options)

    @property
    def options(self) -> PrefillOptions:
        url = f"http://127.0.0.1:{self.proxy.port}"
        return PrefillOptions(role="decode", prefill_from=(url,), prefill_tokens=32, api_key=KEY)

    async def opened(self, prefill: PrefillOptions) -> LocalExecutor:
        limits: dict[str, Any] = {"max_sequences": 4, "kv_memory_bytes": 8 << 20}
        executor = await open_executor(str(self._bundle), LocalOptions(prefill=prefill, **limits))
        assert isinstance(executor, LocalExecutor)
        return executor

    def run(self, work: Awaitable[Result]) -> Result:
        async def limited() -> Result:
            async with asyncio.timeout(120):
                return await work

        return self.runner.run(limited())

    @property
    def state(self) -> PrefillState:
        state = self.apart.state().prefill
        assert state is not None
        return state

    @asynccontextmanager
    async def reaching(
        self, url: str, *, key: str = KEY, ca: Path | None = None, local_prefill: bool = False
    ) -> AsyncIterator[LocalExecutor]:
        """The decode worker, with another prefill worker."""
        engine = engine_of(self.apart)
        before, options = engine._workers, engine._options
        engine._workers, engine._options = PrefillWorkers([url], key, ca), replace(options, local_prefill=local_prefill)
        try:
            yield self.apart
        finally:
            await engine._workers.close()
            engine._workers, engine._options = before, options

    def fallbacks(self, reason: str) -> int:
        return self.state.fallbacks.get(reason, 0)

    def require_no_page_held(self) -> None:
        assert self.apart.state().engine.kv_usage == 0
        wait_until(lambda: self.metric("vllm:num_requests_running") == 0)
        wait_until(lambda: self.metric("vllm:kv_cache_usage_perc") == 0)

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.prefill.url}/metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


@pytest.fixture(scope="module")
def workers(compile_base: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    bundle = compile_base("qwen3", "f32", target="cpu", lora_rank=4)
    named = tmp_path_factory.mktemp("apart") / MODEL
    named.symlink_to(bundle)
    with asyncio.Runner() as runner:
        served = start(
            str(named), "--role", "prefill", "--socket", str(named.parent / "socket"), "--max-sequences", "4",
            folder=named.parent, env={ENVIRONMENT: f"decode={KEY}"},
        )()  # fmt: skip
        found = Workers(served, named, runner)
        yield found
        runner.run(found.apart.close())
        runner.run(found.proxy.close())
        runner.run(found.alone.close())
        served.end()


def prompt(seed: int, tokens: int = 150) -> list[int]:
    return [(seed * 31 + 7 * i * i + 3 * i + 5) % 250 for i in range(tokens)]


def completion(number: int, /, **given: Any) -> CompletionRequest:
    plain = {"model": MODEL, "prompt": prompt(number), "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    return CompletionRequest.model_validate({**plain, **given})


async def answer_of(executor: LocalExecutor, request: Any) -> list[Any]:
    answer = await whole(executor, request, Call("1"))
    return [choice.model_dump() for choice in answer.choices]


SCHEMA = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
REQUESTS: dict[str, Any] = {
    "greedy": completion(1),
    "sampled": completion(2, temperature=0.9, seed=7),
    "several": completion(3, temperature=0.9, seed=7, n=3),
    "logprobs": completion(4, logprobs=2),
    "schema": ChatCompletionRequest.model_validate(
        {
            "model": MODEL, "messages": [{"role": "user", "content": "a question " * 12}], "seed": 5, "max_tokens": 60,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        }
    ),
}  # fmt: skip


# Several answers are sampled, too.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name == "sampled")) for name in REQUESTS]
)
def test_every_kind_of_answer_is_that_of_one_server_alone(workers: Workers, name: str) -> None:
    before = workers.state
    expected = workers.run(answer_of(workers.alone, REQUESTS[name]))
    assert workers.run(answer_of(workers.apart, REQUESTS[name])) == expected
    after = workers.state
    assert after.transfers == before.transfers + 1
    assert after.tokens - before.tokens >= 96
    assert after.bytes > before.bytes
    assert after.fallbacks == before.fallbacks
    workers.require_no_page_held()


def test_the_usage_and_the_times_are_those_of_the_whole_work(workers: Workers) -> None:
    async def ends() -> tuple[Any, Any, Any]:
        answers = [await whole(executor, completion(5), Call("1")) for executor in (workers.alone, workers.apart)]
        return *(answer.usage for answer in answers), (await whole(workers.apart, completion(5), Call("1"))).usage

    alone, apart, again = workers.run(ends())
    assert apart.prompt_tokens_details == alone.prompt_tokens_details
    assert again.prompt_tokens_details.cached_tokens == 144


def test_short_known_and_excluded_prompts_are_computed_here(workers: Workers) -> None:
    before = workers.state.transfers
    echo = completion(6, echo=True, logprobs=1)
    for request in (completion(6, prompt=prompt(6, 40)[:30]), echo, completion(1)):
        assert workers.run(answer_of(workers.apart, request)) == workers.run(answer_of(workers.alone, request))
    call = Call("1", prefill_from=NOBODY)
    workers.run(whole(workers.apart, completion(7), call))
    assert workers.state.transfers == before
    with pytest.raises(RequestError, match="is not one of this server's prefill workers") as refused:
        workers.run(whole(workers.apart, completion(8), replace(call, prefill_from="http://elsewhere")))
    assert refused.value.details["code"] == "unknown_prefill_worker"
    with pytest.raises(RequestError, match="has no prefill workers"):
        workers.run(whole(workers.alone, completion(8), replace(call, prefill_from="http://elsewhere")))


def flip(part: bytes, sent: int) -> bytes:
    """Change a byte in the second half of the first block of pages."""
    at = 20_000 - sent
    return part if not 0 <= at < len(part) else part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :]


def lie(part: bytes, sent: int) -> bytes:  # noqa: ARG001
    """Send the hash of something else."""
    key = b'"sha256":"'
    return part.replace(key + part.partition(key)[2][:1], key + (b"0" if part.partition(key)[2][:1] != b"0" else b"1"))


def cut(part: bytes, sent: int) -> bytes | None:
    """End in the second block."""
    return None if sent > 60_000 else part


def stall(part: bytes, sent: int) -> bytes:
    return b"" if sent > 60_000 else part


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (flip, "damaged"),
        pytest.param(lie, "damaged", marks=pytest.mark.exhaustive),
        (cut, "broken"),
        (stall, "slow"),
    ],
)
def test_what_a_connection_damages_is_computed_here(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, fault: Fault, reason: str
) -> None:
    monkeypatch.setattr(prefill_client, "SILENT_SECONDS", 2.0)
    request = completion(100 + sum(fault.__name__.encode()))
    expected = workers.run(answer_of(workers.alone, request))
    for turn in range(2):
        before, workers.proxy.fault = workers.fallbacks(reason), fault if turn == 0 else None
        assert workers.run(answer_of(workers.apart, request)) == expected
        assert workers.fallbacks(reason) == before + (turn == 0)
        workers.require_no_page_held()
    settle_circuit(workers)


def settle_circuit(workers: Workers) -> None:
    """Let the worker have requests again after failures."""
    for worker in engine_of(workers.apart)._workers.all:
        worker.upstream.circuit.succeeded()


def engine_of(executor: LocalExecutor) -> ApartEngine:
    engine = executor._engine
    assert isinstance(engine, ApartEngine)
    return engine


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bundle": "0" * 64}, "serve the same bundle on both"),
        ({"activation": "float64"}, "devices with the same activations"),
    ],
)
def test_pages_of_another_model_are_refused(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    engine = engine_of(workers.apart)
    monkeypatch.setattr(engine, "_identity", replace(engine._identity, **change))
    request = completion(200 + len(message))
    before = workers.fallbacks("refused")
    assert workers.run(answer_of(workers.apart, request)) == workers.run(answer_of(workers.alone, request))
    assert workers.fallbacks("refused") == before + 1


def body(**given: Any) -> dict[str, Any]:
    plain = {"version": VERSION, "model": MODEL, "bundle": "", "activation": "", "prompt": prompt(9)}
    return {**plain, "start": 0, "end": 144, **given}


def test_a_prefill_worker_needs_its_key_and_refuses_everything_else_by_name(workers: Workers) -> None:
    url, keyed = workers.prefill.url, {"Authorization": f"Bearer {KEY}"}
    assert httpx.post(f"{url}{PAGES_ROUTE}", json=body()).status_code == 401
    for given, code in (({"version": 99}, "prefill_version"), ({}, "other_bundle")):
        answer = httpx.post(f"{url}{PAGES_ROUTE}", json=body(**given), headers=keyed)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    requests: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    )
    for path, asked in requests:
        answer = httpx.post(f"{url}{path}", json={"model": MODEL, **asked}, headers=keyed)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "prefill_worker")
        assert "decode workers" in answer.json()["error"]["message"]


def test_a_decode_worker_that_goes_away_leaves_no_page_on_the_prefill_worker(workers: Workers) -> None:
    identity = engine_of(workers.apart)._identity
    given = body(bundle=identity.bundle, activation=identity.activation, prompt=prompt(10, 250), end=240)
    with httpx.stream(
        "POST", f"{workers.prefill.url}{PAGES_ROUTE}", json=given, headers={"Authorization": f"Bearer {KEY}"}
    ) as answer:
        assert answer.status_code == 200
        next(answer.iter_raw(1))
    workers.require_no_page_held()


def observe_shared(monkeypatch: pytest.MonkeyPatch, observe: Callable[[int], None]) -> None:
    """Call ``observe`` with the size of each payload that arrives in shared memory."""
    take = SharedReader.take

    def taken(self: SharedReader, size: int) -> bytes:
        observe(size)
        return take(self, size)

    monkeypatch.setattr(SharedReader, "take", taken)


def test_a_unix_socket_and_a_wrong_key(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = workers.prefill.log.parent / "socket"
    assert socket.stat().st_mode & 0o077 == 0

    async def through(key: str, request: Any) -> list[Any]:
        async with workers.reaching(f"unix:{socket}", key=key, local_prefill=True) as executor:
            return await answer_of(executor, request)

    before, request, other = workers.state, completion(11), completion(13)
    shared = list[int]()
    observe_shared(monkeypatch, shared.append)
    assert workers.run(through(KEY, request)) == workers.run(answer_of(workers.alone, request))
    if is_supported():
        # All payloads, and not the frames.
        assert len(shared) == 3
        assert 0 < workers.state.bytes - before.bytes - sum(shared) < 1000
    assert (workers.state.transfers, workers.state.fallbacks) == (before.transfers + 1, before.fallbacks)
    assert workers.run(through("another-key", other)) == workers.run(answer_of(workers.alone, other))
    assert workers.fallbacks("refused") == before.fallbacks.get("refused", 0) + 1


def test_a_connection_with_tls_needs_the_authority_and_the_name_of_the_certificate(
    workers: Workers, tmp_path: Path
) -> None:
    cert, key = write_certificate(tmp_path, "prefill")
    (tmp_path / "other").mkdir()
    other, _ = write_certificate(tmp_path / "other", "another one")
    proxy = Proxy(httpx.URL(workers.prefill.url).port or 0, tls_context(ApiConfig(tls_cert=cert, tls_key=key)))
    workers.run(proxy.open())
    url, request = f"https://127.0.0.1:{proxy.port}", completion(20)

    async def through(url: str, ca: Path | None, *, checked: bool = False) -> list[Any]:
        async with workers.reaching(url, ca=ca) as executor:
            if checked:
                await until(lambda: not executor.state().ready)
            return await answer_of(executor, request)

    authority = (
        r"certificate is not accepted \(.*\); give the certificate of the authority that signed it: --tls-ca FILE"
    )
    for given, ca, message in (
        (url, None, authority),
        (url, other, authority),
        (url.replace("127.0.0.1", "localhost"), cert, "certificate is not accepted .*; write a name that it has"),
        (workers.prefill.url.replace("http:", "https:"), cert, "no connection with TLS could be made .* write http://"),
    ):
        # The request may come before the first check of the worker, or after it.
        for checked in (False, True):
            with pytest.raises(Unavailable, match=message) as refused:
                workers.run(through(given, ca, checked=checked))
            assert refused.value.details["reason"] == "unreachable"
            # The address is in it once.
            assert refused.value.message.count(given) == 1
    before = workers.state.transfers
    assert workers.run(through(url, cert)) == workers.run(answer_of(workers.alone, request))
    assert workers.state.transfers == before + 1
    workers.run(proxy.close())


def test_prompts_that_an_adapter_reads_are_computed_here(
    workers: Workers, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    make_adapter(tmp_path / "red", tiny_checkpoints["qwen3"], MLP, rank=4, alpha=8, seed=3)

    async def adapted(executor: LocalExecutor, request: Any) -> list[Any]:
        assert isinstance(executor, AdaptableExecutor)
        identity = await executor.load_adapter("red", str(tmp_path / "red"))
        try:
            return await answer_of(executor.with_adapter("red", identity), request)  # type: ignore[arg-type]
        finally:
            await executor.unload_adapter("red")

    request = completion(21)
    plain = workers.run(answer_of(workers.apart, request))
    before = workers.state
    # The pages of the model itself are in the cache, and are not those of the adapter.
    red = workers.run(adapted(workers.apart, request))
    assert red == workers.run(adapted(workers.alone, request))
    assert red != plain
    assert workers.state == before


def test_a_decode_worker_that_may_not_compute_prompts_fails_with_a_reason(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> NearfarError:
        async with workers.reaching("http://127.0.0.1:9") as executor:
            await until(lambda: not executor.state().ready)
            assert "none of 1 prefill workers answers" in executor.state().detail
            # A short prompt is computed here.
            await answer_of(executor, completion(12, prompt=prompt(12, 20)))
            with pytest.raises(Unavailable) as refused:
                await answer_of(executor, completion(12))
            return refused.value

    with caplog.at_level(logging.WARNING, "nearfar.server"):
        error = workers.run(work())
    assert error.details["code"] == "prefill_unavailable"
    assert error.details["reason"] == "unreachable"
    failed = [each for each in caplog.records if each.message == "prefill_worker_failed"]
    assert [each.fields["message"] for each in failed] == ["no connection could be made; check that it is running"]  # type: ignore[attr-defined]


def test_health_and_metrics_report_prefill_workers() -> None:
    class Fake:
        context = 8

        def state(self) -> ExecutorState:
            prefill = PrefillState(2, 0, required=False, transfers=3, tokens=96, fallbacks={"slow": 1})
            return ExecutorState(ready=True, detail="serving", prefill=prefill)

    ready = ask_of(Fake(), "/health/ready", method="GET")
    assert ready.status_code == 200
    assert "none of 2 prefill workers answers" in str(ready.json()["degraded"])
    metrics = ask_of(Fake(), "/metrics", method="GET").text
    assert 'nearfar:prefill_fallbacks_total{model_name="fake",reason="slow"} 1.0' in metrics
    assert 'nearfar:prefill_transfer_tokens_total{model_name="fake"} 96.0' in metrics


# The tests above have connections that stall, break and are refused, whatever ended the worker.
@pytest.mark.exhaustive
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_prefill_worker_that_is_stopped_or_killed_costs_no_answer(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of the worker."""
    monkeypatch.setattr(prefill_client, "SILENT_SECONDS", 1.0)
    process = workers.prefill.process
    request = completion(300)
    os.kill(process.pid, signal.SIGSTOP)
    assert workers.run(answer_of(workers.apart, request)) == workers.run(answer_of(workers.alone, request))
    os.kill(process.pid, signal.SIGCONT)
    assert workers.fallbacks("slow") > 0
    settle_circuit(workers)
    workers.require_no_page_held()
    observe_shared(monkeypatch, lambda _: process.kill())

    async def killed(request: Any) -> list[Any]:
        async with workers.reaching(f"unix:{workers.prefill.log.parent / 'socket'}", local_prefill=True) as executor:
            answer = asyncio.ensure_future(answer_of(executor, request))
            if not is_supported():
                process.kill()
            return await answer

    before, request = workers.state, completion(301, prompt=prompt(301, 250))
    assert workers.run(killed(request)) == workers.run(answer_of(workers.alone, request))
    process.wait()
    # What the worker had sent arrives, and that is nearly all where this process was slow to read.
    missing = 240 - (workers.state.tokens - before.tokens)
    assert workers.fallbacks("broken") - before.fallbacks.get("broken", 0) == (missing >= 32)
    request = completion(302)
    assert workers.run(answer_of(workers.apart, request)) == workers.run(answer_of(workers.alone, request))
    assert workers.state.transfers > before.transfers
    assert workers.fallbacks("unreachable") > 0
    assert workers.apart.state().engine.kv_usage == 0
    workers.run(until(lambda: workers.state.answering == 0))
    assert workers.apart.state().ready
