"""Behaviour of all routes: keys, hosts, origins, errors, models, health."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from asgi import HI, Held, ask, ask_app, run
from fake_models import FakeExecutor, FakeModels
from waiting import until

from nearfar.compiler.runtime.errors import CheckpointError, Unavailable
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import Keys, read_keys
from nearfar.server_fallback.executors.executor import ExecutorState

CHAT = "/v1/chat/completions"
WEB: dict[str, Any] = {"authorization": "Bearer sk-web-12345678"}
ADMIN: dict[str, Any] = {"authorization": "Bearer sk-admin-12345678"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    file = tmp_path / "keys.toml"
    file.write_text('[[keys]]\nname = "web"\nkey = "sk-web-12345678"\nrequests_per_minute = 3\nmax_concurrent = 1\n')
    return read_keys(file, {"NEARFAR_API_KEYS": "admin=sk-admin-12345678"})


def code(response: Any) -> tuple[int, str | None]:
    return response.status_code, response.json()["error"]["code"] if response.status_code >= 400 else None


def test_with_keys_all_but_health_and_metrics_needs_one(keys: Keys) -> None:
    app = create_app(FakeModels(), ApiConfig(keys=keys))
    for path in (
        CHAT,
        "/v1/completions",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
        "/v1/models",
        "/v1/models/fake",
    ):
        response = run(ask_app(app, "GET" if "models" in path else "POST", path, HI))
        assert code(response) == (401, "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
    assert run(ask_app(app, "POST", CHAT, HI, **WEB)).status_code == 200
    for path in ("/health/live", "/health/ready", "/metrics", "/openapi.json"):
        assert run(ask_app(app, "GET", path)).status_code == 200


def test_without_a_key_no_body_is_read(keys: Keys) -> None:
    assert code(ask("POST", CHAT, b"\xff", config=ApiConfig(keys=keys))) == (401, "invalid_api_key")


def test_a_key_s_rate_and_concurrency_are_kept_apart_from_other_keys(keys: Keys) -> None:
    async def work() -> None:
        models = FakeModels(FakeExecutor(delay_seconds=0.02))
        app = create_app(models, ApiConfig(keys=keys))
        first, second = await asyncio.gather(
            ask_app(app, "POST", CHAT, HI, **WEB), ask_app(app, "POST", CHAT, HI, **WEB)
        )
        assert code(first) == (200, None)
        assert first.headers["x-ratelimit-remaining-requests"] == "2"
        assert code(second) == (429, "concurrency_limit_exceeded")
        # A stream counts until its end.
        streamed = {**HI, "stream": True}
        assert (await ask_app(app, "POST", CHAT, streamed, **WEB)).status_code == 200
        assert (await ask_app(app, "POST", CHAT, streamed, **WEB)).status_code == 200
        limited = await ask_app(app, "POST", CHAT, HI, **WEB)
        assert code(limited) == (429, "rate_limit_exceeded")
        assert 1 <= int(limited.headers["retry-after"]) <= 20
        assert (await ask_app(app, "POST", CHAT, HI, **ADMIN)).status_code == 200

    run(work())


def test_only_admins_load_and_unload(keys: Keys) -> None:
    async def work() -> None:
        models = FakeModels()
        app = create_app(models, ApiConfig(keys=keys))
        load = ("POST", "/v1/models/load", {"model": "/bundle", "name": "new", "aliases": ["n"]})
        assert code(await ask_app(app, *load, **WEB)) == (403, "admin_key_required")
        loaded = await ask_app(app, *load, **ADMIN)
        assert (loaded.status_code, loaded.json()["id"]) == (200, "new")
        assert [card["id"] for card in (await ask_app(app, "GET", "/v1/models", **ADMIN)).json()["data"]] == [
            "fake",
            "other/name",
            "new",
        ]
        assert (await ask_app(app, "POST", CHAT, {**HI, "model": "new"}, **WEB)).status_code == 200
        unload = ("POST", "/v1/models/unload", {"model": "new"})
        assert (await ask_app(app, *unload, **ADMIN)).json() == {"id": "new", "unloaded": True}
        assert code(await ask_app(app, *unload, **ADMIN)) == (404, "model_not_found")
        adapter = {"lora_name": "poet", "lora_path": "/adapters/poet", "model": "fake"}
        assert (await ask_app(app, "POST", "/v1/load_lora_adapter", adapter, **ADMIN)).json()["parent"] == "fake"
        assert (
            await ask_app(app, "POST", "/v1/unload_lora_adapter", {"lora_name": "poet"}, **ADMIN)
        ).status_code == 200
        models.load_error = Unavailable("it needs 8 GB, 2 GB are free")
        assert code(await ask_app(app, *load, **ADMIN)) == (503, "unavailable")
        models.load_error = CheckpointError("config.json is missing")
        assert code(await ask_app(app, *load, **ADMIN)) == (400, "checkpoint_error")
        # For a model that is already served, this is not the client's fault.
        models.fake.error = CheckpointError("tokenizer.json is missing")
        assert code(await ask_app(app, "POST", CHAT, HI, **WEB)) == (503, "checkpoint_error")

    run(work())
    assert code(ask("POST", "/v1/models/load", {"model": "/bundle"})) == (403, "admin_key_required")


def test_models_are_listed_and_found_by_names_with_slashes() -> None:
    cards = ask("GET", "/v1/models").json()
    assert cards["object"] == "list"
    assert cards["data"][1] == ask("GET", "/v1/models/other/name").json()
    changing = ask("GET", "/v1/models/load")
    assert (changing.status_code, changing.headers["Allow"]) == (405, "POST")
    missing = ask("GET", "/v1/models/gpt-9")
    assert code(missing) == (404, "model_not_found")
    assert "available: fake, other/name" in missing.json()["error"]["message"]
    received = ask("POST", CHAT, {**HI, "model": "gpt-9"})
    assert (code(received), received.json()["error"]["param"]) == ((404, "model_not_found"), "model")


def test_unknown_routes_are_errors_in_openais_form() -> None:
    assert code(ask("GET", "/nothing")) == (404, "unknown_url")
    assert code(ask("GET", "/v1/chat")) == (404, "unknown_url")
    assert code(ask("GET", "/docs")) == (404, "unknown_url")
    wrong = ask("GET", CHAT)
    assert code(wrong) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("body", "status", "wrong"),
    [
        (b"", 400, "invalid_json"),
        (b'{"model": "fake", "messages": [}', 400, "invalid_json"),
        (b'{"model": "\xff"}', 400, "invalid_json"),
        (b"null", 400, "invalid_type"),
        (b"[]", 400, "invalid_type"),
        ({**HI, "stop": ["a"] * 60_000}, 400, "invalid_type"),
        ({**HI, "stop": ["a"] * 500_000}, 400, "invalid_json"),
        ({**HI, "stop": ["a"] * 1_000_000}, 413, "body_too_large"),
        ({**HI, "best": 1}, 400, "unknown_parameter"),
        ({**HI, "messages": [{"role": "user", "content": "x" * (4 << 20)}]}, 413, "body_too_large"),
    ],
)
def test_bad_bodies_are_refused(body: Any, status: int, wrong: str | None) -> None:
    response = ask("POST", CHAT, body)
    assert response.status_code == status
    assert wrong is None or code(response)[1] == wrong
    assert len(response.text) < 1000


def test_pages_of_other_sites_may_not_call_unless_they_are_listed() -> None:
    origin: dict[str, Any] = {"origin": "https://example.org"}
    preflight = {
        **origin,
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,x-stainless-os",
    }
    closed = ask("POST", CHAT, HI, **origin)
    assert not [name for name in closed.headers if name.startswith("access-control")]
    assert ask("OPTIONS", CHAT, **preflight).status_code == 405

    config = ApiConfig(cors_origins=("https://example.org",))
    allowed = ask("OPTIONS", CHAT, config=config, **preflight)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://example.org"
    assert allowed.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    for response in (ask("POST", CHAT, HI, config=config, **origin), ask("POST", CHAT, b"{", config=config, **origin)):
        assert response.headers["access-control-allow-origin"] == "https://example.org"
        assert "X-Request-Id" in response.headers["access-control-expose-headers"]
    other = ask("POST", CHAT, HI, config=config, origin="https://evil.example")
    assert "access-control-allow-origin" not in other.headers


def test_a_name_that_points_here_is_not_enough() -> None:
    app = create_app(FakeModels(), ApiConfig(allowed_hosts=("localhost", "127.0.0.1", "::1")))
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000"):
        assert run(ask_app(app, "GET", "/v1/models", host=host)).status_code == 200
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "", "[::1"):
        assert code(run(ask_app(app, "GET", "/v1/models", host=host))) == (403, "host_not_allowed")


def test_readiness_follows_the_models() -> None:
    models = FakeModels()
    assert ask("GET", "/health/ready", models=models).json() == {
        "status": "ready",
        "models": {"fake": True},
        "not_ready": {},
    }
    healthy = ask("GET", "/health", models=models)
    assert (healthy.status_code, healthy.content) == (200, b"")
    # A model that loads or failed to load does not affect models that answer.
    models.loaded["new"] = FakeExecutor(current=ExecutorState(ready=False, detail="loading"))
    one_of_two = ask("GET", "/health/ready", models=models)
    assert one_of_two.json() == {
        "status": "ready",
        "models": {"fake": True, "new": False},
        "not_ready": {"new": "loading"},
    }
    assert one_of_two.status_code == 200
    models.fake.current = ExecutorState(ready=False, detail="closed")
    waiting = ask("GET", "/health/ready", models=models)
    assert (waiting.status_code, waiting.json()["status"]) == (503, "not ready")
    assert ask("GET", "/health", models=models).status_code == 503
    assert ask("GET", "/health/live", models=models).status_code == 200
    assert ask("GET", "/health/ready", models=FakeModels()).status_code == 200


@pytest.mark.parametrize("config", [ApiConfig(transcriber="whisper"), ApiConfig(near_transcriber="whisper")])
def test_a_server_is_not_ready_before_its_transcriber_is(config: ApiConfig) -> None:
    """It is loaded after the other models. One that was unloaded later does not count."""

    async def work() -> None:
        models = FakeModels()
        app = create_app(models, config)

        async def ready() -> tuple[int, Any, int]:
            found = await ask_app(app, "GET", "/health/ready")
            kserve = await ask_app(app, "GET", "/v2/health/ready")
            assert (await ask_app(app, "GET", "/health")).status_code == found.status_code
            return found.status_code, found.json(), kserve.status_code

        waits = {
            "status": "not ready",
            "models": {"fake": True, "whisper": False},
            "not_ready": {"whisper": "loading"},
        }
        assert await ready() == (503, waits, 503)
        models.loaded["whisper"] = FakeExecutor(current=ExecutorState(ready=False, detail="loading"))
        assert await ready() == (503, waits, 503)
        models.loaded["whisper"].current = ExecutorState(ready=True, detail="cpu")
        assert (await ready())[::2] == (200, 200)
        del models.loaded["whisper"]
        assert await ready() == (200, {"status": "ready", "models": {"fake": True}, "not_ready": {}}, 200)

    run(work())


def test_the_version_is_reported_as_in_vllm() -> None:
    assert ask("GET", "/version").json() == {"version": version("nearfar")}


def test_one_client_does_not_shut_out_others_nor_health() -> None:
    async def work() -> None:
        models = FakeModels(FakeExecutor(pieces=["a"] * 1000, delay_seconds=0.01), most_answers=8)
        app = create_app(models, ApiConfig(max_concurrent_requests=4, trusted_proxies=("127.0.0.1",)))
        greedy, other = {"x-forwarded-for": "192.0.2.1"}, {"x-forwarded-for": "192.0.2.2"}
        held = [Held(app, CHAT, {**HI, "stream": True}, greedy) for _ in range(2)]
        while models.fake.open < 2:
            await asyncio.sleep(0.001)
        assert code(await ask_app(app, "POST", CHAT, HI, **greedy)) == (429, "client_limit_exceeded")
        models.fake.pieces = ["a"]
        assert code(await ask_app(app, "POST", CHAT, {**HI, "n": 4}, **other)) == (200, None)
        # Five answers never fit, so this is not a temporary error.
        assert code(await ask_app(app, "POST", CHAT, {**HI, "n": 5}, **other)) == (400, "invalid_value")
        held += [Held(app, CHAT, {**HI, "stream": True}, other) for _ in range(2)]
        await asyncio.sleep(0)
        assert code(await ask_app(app, "POST", CHAT, HI, x_forwarded_for="192.0.2.3")) == (429, "server_full")
        for path in ("/health", "/health/live", "/health/ready", "/version", "/metrics"):
            assert (await ask_app(app, "GET", path, **greedy)).status_code == 200
        for each in held:
            each.go()
        await asyncio.gather(*(each.task for each in held))
        limiter = app.state.service.limits
        assert (limiter.running, limiter.body_bytes) == (0, 0)

    run(work())


def test_bodies_of_one_client_take_a_share_of_the_memory() -> None:
    async def work() -> None:
        models = FakeModels(FakeExecutor(pieces=["a"] * 1000, delay_seconds=0.01))
        app = create_app(models, ApiConfig(body_memory_bytes=4000))
        long = {**HI, "user": "x" * 1500}
        held = Held(app, CHAT, long)
        while not models.fake.open:
            await asyncio.sleep(0.001)
        assert code(await ask_app(app, "POST", CHAT, long)) == (429, "client_limit_exceeded")
        models.fake.pieces = ["a"]
        assert code(await ask_app(app, "POST", CHAT, HI)) == (200, None)
        held.go()
        await held.task
        assert code(await ask_app(app, "POST", CHAT, long)) == (200, None)

    run(work())


def test_embeddings_and_tokens() -> None:
    numbers = ask("POST", "/v1/embeddings", {"model": "fake", "input": ["a"]}).json()
    assert numbers["data"][0]["embedding"] == [0.5, -1.0]
    assert ask("POST", "/v1/embeddings", {"model": "fake", "input": "a", "encoding_format": "base64"}).json()["data"][
        0
    ]["embedding"] == ("AAAAPwAAgL8=")
    tokens = ask("POST", "/tokenize", {"model": "fake", "prompt": "ab"}).json()
    assert tokens == {"tokens": [97, 98], "count": 2, "max_model_len": 256}
    assert ask("POST", "/detokenize", {"model": "fake", "tokens": [97, 98]}).json() == {"prompt": "ab"}
    wrong = ask("POST", "/tokenize", {"model": "fake"})
    assert (code(wrong), wrong.json()["error"]["param"]) == ((400, "invalid_value"), "prompt")


def test_a_load_goes_on_when_its_client_leaves(keys: Keys) -> None:
    async def work() -> None:
        models = FakeModels()
        begun, may_end = asyncio.Event(), asyncio.Event()
        change = models.change

        async def slow(request: Any) -> Any:
            begun.set()
            await may_end.wait()
            return await change(request)

        models.change = slow  # type: ignore[method-assign,assignment]
        app = create_app(models, ApiConfig(keys=keys))
        held = Held(app, "/v1/models/load", {"model": "new"}, ADMIN)
        await begun.wait()
        held.task.cancel()
        may_end.set()
        await asyncio.gather(held.task, return_exceptions=True)
        await until(lambda: "new" in models.loaded)

    run(work())


def test_the_end_of_the_app_s_life_closes_the_models() -> None:
    async def work() -> None:
        models = FakeModels()
        app = create_app(models, ApiConfig())
        async with app.router.lifespan_context(app):
            assert models.closed_after is None
        assert models.closed_after is not None
        assert code(await ask_app(app, "POST", CHAT, HI)) == (503, "unavailable")

    run(work())
