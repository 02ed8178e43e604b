"""A gateway whose policy masks: a finder of its own, and callers who are asked what may leave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from socket import socket
from typing import Any

import httpx
import openai
import pytest
from fake_openai import Reply, running, text_chunks
from fake_source import FakeEncoder, text_model
from fastapi import FastAPI
from hybrid_gateway import elsewhere, gateway
from hybrid_sides import FAR_USAGE, FakeFar, FakeNear, policy, run
from test_hybrid_masks import ASKED, ENTITIES, MASKS, SECRET, SENT, rules

from nearfar.compiler.ir.tasks import ClassifierSpec
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.cli import gateway as command
from nearfar.server_fallback.cli.options import Gateway
from nearfar.server_fallback.executors.encoder_executor import EncoderExecutor
from nearfar.server_fallback.executors.executor import CONFIRM_HEADER, Executor, Opening
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.router.sides.local_finder import finder_of, require_finder
from nearfar.server_fallback.schema.models import LoadRequest

BODY: Any = {"model": "tiny", "messages": ASKED}
ASKS = rules(masks={**MASKS, "then": "ask"})
LABELS = ClassifierSpec(labels=("O", "B-PER"), activation="softmax", per_token=True)


def far_server() -> FakeFar:
    return FakeFar(lambda _: Reply(chunks=text_chunks("to [EMAIL_1]", usage=FAR_USAGE)))


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


def test_a_caller_sees_what_would_leave_and_agrees_to_exactly_that() -> None:
    async def work() -> None:
        far = far_server()
        async with running(far), gateway(FakeNear(), Far(far.url), ASKS) as app, client_of(app) as http:
            client = openai.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="k", max_retries=0, http_client=http)

            async def ask(messages: Any = ASKED, **more: Any) -> Any:
                return await client.chat.completions.create(model="tiny", messages=messages, **more)

            with pytest.raises(openai.BadRequestError) as caught:
                await ask()
            body: Any = caught.value.body
            assert (caught.value.code, caught.value.param) == ("confirmation_required", CONFIRM_HEADER)
            assert body["masked"] == [SENT.model_dump()]
            assert far.generated == []
            agreed = {CONFIRM_HEADER: body["confirm"]}
            answer = await ask(extra_headers=agreed)
            assert (answer.choices[0].message.content, answer.route["side"]) == (f"to {SECRET}", "far")
            # The consent is to these texts, of this request: not of another one, nor for good.
            for messages, headers in (
                ([{"role": "user", "content": f"do not write to {SECRET}"}], agreed),
                (ASKED, {}),
                (ASKED, {CONFIRM_HEADER: "0" * 64}),
            ):
                with pytest.raises(openai.BadRequestError):
                    await ask(messages, extra_headers=headers)
            assert len(far.generated) == 1
            near = await ask(extra_body={"pin": "near"})
            assert near.route["side"] == "near"
            # Nothing private leaves, so nobody is asked.
            assert (await ask([{"role": "user", "content": "hi"}])).route["side"] == "far"

    run(work())


def test_a_stream_asks_before_it_begins() -> None:
    async def work() -> None:
        far = far_server()
        async with running(far), gateway(FakeNear(), Far(far.url), ASKS) as app, client_of(app) as client:
            refused = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (400, "confirmation_required")
            # For clients that show nothing else.
            assert error["confirm"] in error["message"]

    run(work())


def test_near_answers_without_a_question_if_far_would_only_stand_by() -> None:
    async def work() -> None:
        far = far_server()
        given = {**ASKS, "mode": "prefer-near", "escalation": {"then": "continue"}}
        async with running(far), gateway(FakeNear(), Far(far.url), given) as app, client_of(app) as client:
            route = (await client.post("/v1/chat/completions", json=BODY)).json()["route"]
            assert (route["side"], route["reason"]) == ("near", "private")
            assert far.generated == []

    run(work())


class Opener:
    """Opens a near model, and the finder of names that begin with a capital letter."""

    def __init__(self, folder: Path) -> None:
        def labelled(ids: Sequence[int], _: Sequence[int]) -> list[list[float]]:
            return [[0.0, 9.0] if 65 <= each <= 90 else [9.0, 0.0] for each in ids]

        self.models: dict[str, Executor] = {
            "near": FakeNear(),
            "names": EncoderExecutor(FakeEncoder(labelled), text_model(folder, classifier=LABELS)),
        }

    async def prepare(self, model: str, name: str | None) -> Opening:
        async def open_it() -> Executor:
            return self.models[model]

        return Opening(name or model, None, open_it)


def test_the_command_masks_what_its_finder_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_serve.py` runs it with the demo finder."""
    file, opener, far = tmp_path / "policy.json", Opener(tmp_path), far_server()
    file.write_text(json.dumps(rules(masks={"entities": [{"label": "PERSON", "kind": "PERSON"}]})))
    routes = []

    def serve(app: FastAPI, listener: socket, started: object) -> None:  # noqa: ARG001
        listener.close()

        async def work() -> None:
            async with client_of(app) as client:
                await app.state.service.models.load(LoadRequest(model="near", name="tiny"))
                asked = {"model": "tiny", "messages": [{"role": "user", "content": "where is Anna?"}]}
                routes.append((await client.post("/v1/chat/completions", json=asked)).json()["route"])
                await app.state.service.models.close(0.0)

        run(work())

    monkeypatch.setattr(command, "LocalOpener", lambda *_, **__: opener)
    monkeypatch.setattr(command, "run_server", serve)
    monkeypatch.setattr(command, "configure_logs", lambda _: None)
    with elsewhere(far):
        command.run(Gateway(near="near", far=far.url, policy=file, port=0, finder="names"))
    assert routes[0]["masked"] == [{"path": "messages[0].content", "text": "where is [PERSON_1]?"}]


def test_a_finder_must_fit_the_policy(tmp_path: Path) -> None:
    masks, plain = Policy.read(rules(masks=ENTITIES)), Policy.read(policy())
    require_finder(masks, "names")
    require_finder(plain, None)
    for given, model in ((masks, None), (plain, "names")):
        with pytest.raises(RequestError, match="--finder") as caught:
            require_finder(given, model)
        assert caught.value.details["code"] == "bad_policy"
    with pytest.raises(RequestError, match="labels no tokens"):
        finder_of("near", Opener(tmp_path).models["near"])
