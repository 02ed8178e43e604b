"""Streams whose events are written to their connection without a task: the client receives all in order, and one that
does not read is not written to.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from asgi import HI
from fake_models import FakeExecutor, FakeModels
from live_server import live_server
from prometheus_client import CollectorRegistry, Histogram
from waiting import WAIT_SECONDS, wait_until

from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.latencies import ManyHistogram
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.schema.common import Usage
from nearfar.server_fallback.schema.completions import AnswerRequest
from nearfar.server_fallback.text.output import Output


class Counting(FakeExecutor):
    """Streams ``count`` numbers, each followed by ``padding``. Counts those that are written at once, and those for
    which it waits.
    """

    def __init__(self, count: int, padding: bytes = b"") -> None:
        super().__init__()
        self.count, self.padding = count, padding
        self.written = self.awaited = 0

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:  # noqa: ARG002
        for number in range(self.count):
            self.written += output.has_room
            self.awaited += not output.has_room
            output.block(b'data: {"number":%d}%b\n\n' % (number, self.padding), frozenset((0,)))
            await output.room()
            await asyncio.sleep(0)
        usage = Usage(prompt_tokens=1, completion_tokens=1, total_tokens=2)
        output.block(b"", frozenset(), {0: "stop"}, usage)


@pytest.fixture(scope="module")
def models() -> FakeModels:
    return FakeModels()


@pytest.fixture(scope="module")
def port(models: FakeModels) -> Iterator[int]:
    with live_server(models, ApiConfig()) as live:
        yield live.port


def test_a_client_receives_all_events_in_their_order_and_they_are_counted(port: int, models: FakeModels) -> None:
    models.fake = counting = Counting(200)
    url = f"http://127.0.0.1:{port}"
    answer = httpx.post(f"{url}/v1/chat/completions", json={**HI, "stream": True}, timeout=WAIT_SECONDS)
    *events, done = answer.text.split("\n\n")[:-1]
    assert [json.loads(event[6:])["number"] for event in events] == list(range(200))
    assert done == "data: [DONE]"
    # The stream itself sends the first event, with the headers.
    assert (counting.awaited, counting.written) == (1, 199)
    metrics = httpx.get(f"{url}/metrics", timeout=WAIT_SECONDS).text
    assert 'vllm:inter_token_latency_seconds_count{model_name="fake"} 199.0' in metrics
    assert 'vllm:request_success_total{finished_reason="stop",model_name="fake"} 1.0' in metrics


def test_a_client_that_does_not_read_is_not_written_to_and_misses_nothing(port: int, models: FakeModels) -> None:
    models.fake = counting = Counting(400, b" " * 50_000)
    body = json.dumps({**HI, "stream": True}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS) as sock:
        sock.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: counting.written > 0)
        # The answer stops at a full buffer.
        before = 0
        while before < counting.written + counting.awaited:
            before = counting.written + counting.awaited
            time.sleep(0.1)
        assert counting.written + counting.awaited < counting.count
        sock.settimeout(WAIT_SECONDS)
        parts = list(iter(lambda: sock.recv(1 << 20), b""))
    answer = b"".join(parts)
    numbers = [int(part.partition(b"}")[0]) for part in answer.split(b'{"number":')[1:]]
    assert numbers == list(range(400))
    assert answer.endswith(b"0\r\n\r\n")


def test_observations_that_are_added_together_are_those_that_are_added_one_by_one() -> None:
    amounts = [0.0, 0.05, 0.1, 0.11, 0.5, 7.0]
    texts = []
    for kind in (Histogram, ManyHistogram):
        registry = CollectorRegistry()
        child = kind("h", "text", ["model"], buckets=(0.1, 0.5), registry=registry).labels("m")
        if isinstance(child, ManyHistogram):
            child.observe_all(amounts)
        else:
            for amount in amounts:
                child.observe(amount)
        texts.append([sample[:3] for metric in registry.collect() for sample in metric.samples][:-1])
    assert texts[0] == texts[1]
