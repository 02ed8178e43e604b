"""The gateway's app with a scripted near model, without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from hybrid_sides import FakeNear

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.executor import Executor, Opening
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.opening import HybridOpener
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.schema.models import LoadRequest


class NearOpener:
    def __init__(self, near: FakeNear) -> None:
        self._near = near

    async def prepare(self, model: str, name: str | None) -> Opening:
        async def open_it() -> Executor:
            return self._near

        return Opening(name or model, 1000, open_it)


@asynccontextmanager
async def gateway(
    near: FakeNear, far: Far, rules: dict[str, Any], config: ApiConfig | None = None
) -> AsyncIterator[FastAPI]:
    """An app with the model "tiny"."""
    registry = Registry(HybridOpener(NearOpener(near), far, Policy.read(rules)))
    await registry.load(LoadRequest(model="tiny"))
    try:
        yield create_app(registry, config or ApiConfig(), routed=True)
    finally:
        await registry.close(0.0)
