"""/v1/nearfar/prefill: who may ask, what is counted, and how an answer ends that fails or is not wanted any more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from asgi import ask, ask_of
from fake_models import FakeExecutor, FakeModels
from live_server import live_server
from waiting import wait_until

from nearfar.compiler.runtime.errors import DeviceError, NearfarError, Unavailable
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.far_prefill.blocks import Counts
from nearfar.server_fallback.schema.prefill import PrefillRequest

PATH = "/v1/nearfar/prefill"
BODY: dict[str, Any] = {"model": "fake", "tokenizer_sha256": "5ha", "prompt": [1, 2, 3, 4]}


@dataclass
class Prefilling(FakeExecutor):
    """Sends its pieces as blocks."""

    failure: NearfarError | None = None

    async def prefill(self, request: PrefillRequest, call: Call, counts: Counts) -> AsyncGenerator[bytes, None]:
        self.calls.append(call)
        if self.failure is not None and self.error_at == 0:
            raise self.failure
        counts.queue_seconds = 0.0
        counts.computed_tokens = len(request.prompt)
        self.open += 1
        try:
            for index, piece in enumerate(self.pieces):
                if self.failure is not None and index == self.error_at:
                    raise self.failure
                yield piece.encode()
        except GeneratorExit:
            self.cancelled += 1
            raise
        finally:
            self.open -= 1


def test_the_blocks_are_sent_as_they_are_made() -> None:
    executor = Prefilling()
    answer = ask_of(executor, PATH, BODY)
    assert (answer.status_code, answer.content) == (200, b"Hello!")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert (executor.open, executor.cancelled) == (0, 0)


def test_a_prompt_counts_for_its_key_and_in_the_metrics() -> None:
    config = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": "web=sk-web-12345678"}))
    with live_server(FakeModels(Prefilling()), config) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert httpx.post(url + PATH, json=BODY).status_code == 401
        allowed = httpx.post(url + PATH, json=BODY, headers={"Authorization": "Bearer sk-web-12345678"})
        assert allowed.content == b"Hello!"
        metrics = httpx.get(f"{url}/metrics").text
    assert 'vllm:prompt_tokens_total{model_name="fake"} 4.0' in metrics
    assert 'vllm:generation_tokens_total{model_name="fake"} 0.0' in metrics


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({**BODY, "model": "nobody"}, 404, None),
        ({**BODY, "prompt": []}, 400, None),
        ({**BODY, "start": -1}, 400, None),
        ({**BODY, "begin": 1}, 400, None),
        ({**BODY, "prompt": ["1"]}, 400, None),
    ],
)
def test_wrong_requests_are_refused(body: dict[str, Any], status: int, code: str | None) -> None:
    answer = ask("POST", PATH, body, models=FakeModels(Prefilling()))
    assert answer.status_code == status, answer.text
    if code is not None:
        assert answer.json()["error"]["code"] == code


def test_a_model_that_is_computed_elsewhere_has_no_pages_to_send() -> None:
    answer = ask_of(FakeExecutor(), PATH, BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "prefill_unavailable")


def test_a_failure_before_the_first_block_is_an_ordinary_error() -> None:
    answer = ask_of(Prefilling(failure=Unavailable("the cache is too small")), PATH, BODY)
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the cache is too small")


def test_a_failure_after_it_closes_the_connection_before_the_end() -> None:
    executor = Prefilling(failure=DeviceError("lost"), error_at=2)

    def read(url: str) -> None:
        with httpx.stream("POST", url, json=BODY) as answer:
            assert answer.status_code == 200
            for _ in answer.iter_bytes():
                pass

    with live_server(FakeModels(executor), ApiConfig()) as server:
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            read(f"http://127.0.0.1:{server.port}{PATH}")
        wait_until(lambda: executor.open == 0)
