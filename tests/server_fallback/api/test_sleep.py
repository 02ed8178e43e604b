"""vLLM's routes for operators: sleep, waking up, and the prefix cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from asgi import ask_app, run
from fake_models import FakeExecutor, FakeModels
from fastapi import FastAPI

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import ApiKey, Keys
from nearfar.server_fallback.executors.executor import ExecutorState, ModelChange, SleepRequest, WakeRequest
from nearfar.server_fallback.executors.model_table import ASLEEP
from nearfar.server_fallback.schema.models import ModelCard

KEYS = Keys(tuple(ApiKey(name, hashlib.sha256(f"key-of-{name}".encode()).digest(), admin=name == "ops")
                  for name in ("ops", "web")))  # fmt: skip


@dataclass
class Caching(FakeExecutor):
    resets: int = 0

    async def reset_prefix_cache(self) -> None:
        self.resets += 1


@dataclass
class Models(FakeModels):
    asleep: set[str] = field(default_factory=set)

    def states(self) -> Mapping[str, ExecutorState]:
        return {name: ASLEEP if name in self.asleep else state for name, state in super().states().items()}

    async def change(self, change: ModelChange) -> ModelCard | None:
        match change:
            case SleepRequest(model):
                self.asleep.add(model)
            case WakeRequest(model):
                self.asleep.discard(model)
        return None


def ask(app: FastAPI, method: str, path: str, key: str = "ops") -> httpx.Response:
    return run(ask_app(app, method, path, None, authorization=f"Bearer key-of-{key}"))


@pytest.fixture
def models() -> Models:
    models = Models(Caching())
    models.loaded["second"] = FakeExecutor()
    return models


def test_all_models_sleep_and_wake_or_one(models: Models) -> None:
    app = create_app(models, ApiConfig(keys=KEYS))

    def sleeping(query: str = "") -> Any:
        return ask(app, "GET", f"/is_sleeping{query}").json()

    assert sleeping() == {"is_sleeping": False}
    assert ask(app, "POST", "/sleep?level=2&model=other/name").json() == {"asleep": ["fake"]}
    assert (sleeping(), sleeping("?model=fake")) == ({"is_sleeping": False}, {"is_sleeping": True})
    assert ask(app, "POST", "/sleep").json() == {"asleep": ["fake", "second"]}
    assert sleeping() == {"is_sleeping": True}
    assert run(ask_app(app, "GET", "/health/ready")).json()["not_ready"] == {"fake": "asleep", "second": "asleep"}
    assert ask(app, "POST", "/wake_up?model=second").json() == {"awake": ["second"]}
    assert models.asleep == {"fake"}
    assert ask(app, "POST", "/wake_up").json() == {"awake": ["fake", "second"]}
    assert models.asleep == set()


def test_the_prefix_caches_of_models_that_have_one_are_reset(models: Models) -> None:
    app = create_app(models, ApiConfig(keys=KEYS))
    assert ask(app, "POST", "/reset_prefix_cache").json() == {"reset": ["fake"]}
    assert ask(app, "POST", "/reset_prefix_cache?model=other/name").json() == {"reset": ["fake"]}
    assert isinstance(models.fake, Caching)
    assert models.fake.resets == 2
    refused = ask(app, "POST", "/reset_prefix_cache?model=second")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/sleep?level=0", 400, "'level': Input should be '1' or '2'. Got a string."),
        ("/sleep?mode=wait", 400, "Unknown parameter: 'mode'."),
        ("/wake_up?tags=weights", 400, "Unknown parameter: 'tags'."),
        ("/sleep?model=none", 404, "'none' is not loaded"),
        ("/reset_prefix_cache?model=none", 404, "'none' is not loaded"),
    ],
)
def test_what_these_routes_do_not_know_is_refused_by_name(models: Models, path: str, status: int, words: str) -> None:
    answer = ask(create_app(models, ApiConfig(keys=KEYS)), "POST", path)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert models.asleep == set()


def test_only_admins_may_do_this(models: Models) -> None:
    app = create_app(models, ApiConfig(keys=KEYS))
    routes = (("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping"), ("POST", "/reset_prefix_cache"))
    for method, path in routes:
        assert ask(app, method, path, "web").status_code == 403
        assert run(ask_app(create_app(models, ApiConfig()), method, path)).status_code == 403
    assert models.asleep == set()
