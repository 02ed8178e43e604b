"""The models of a front end whose engines fail or come late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from fake_models import FakeExecutor

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.runtime.errors import CheckpointError, DeviceError, NearfarError, Unavailable
from nearfar.server_fallback.executors import model_table
from nearfar.server_fallback.executors.executor import Executor
from nearfar.server_fallback.executors.local_share import LocalShare
from nearfar.server_fallback.front_ends import shared_models
from nearfar.server_fallback.front_ends.messages import Publish, SharedModel
from nearfar.server_fallback.front_ends.shared_models import SharedModels
from nearfar.server_fallback.processes.connection import Connection
from nearfar.server_fallback.schema.models import ModelCard

SHARE = LocalShare(cast(Bundle, None), "m", "/engine.socket", None)
MODEL = SharedModel("m", "./m", 0, ("alias",), {}, "generate", None, 0, SHARE)
ASLEEP = replace(MODEL, share=None, asleep=ModelCard(id="m", root="m", created=0))


class Link:
    """A main process that is never silent."""

    is_ready = True


async def published(
    monkeypatch: pytest.MonkeyPatch, errors: Sequence[NearfarError]
) -> tuple[SharedModels, list[NearfarError]]:
    """Models of a front end, after one message. Opening the engine fails with each error, and then succeeds."""
    left = list(errors)

    async def open_shared(share: LocalShare, compiler: object) -> Executor:  # noqa: ARG001
        assert share is SHARE
        if left:
            raise left.pop(0)
        return cast(Executor, FakeExecutor())

    monkeypatch.setattr(shared_models, "open_shared", open_shared)
    monkeypatch.setattr(shared_models, "RETRY_SECONDS", 0.0)
    models = SharedModels(cast(Connection, Link()))
    await models.publish(Publish((MODEL,)))
    assert models.has_published.is_set()
    return models, left


async def turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def test_an_engine_that_is_started_again_is_opened_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        models, _ = await published(monkeypatch, [Unavailable("a"), DeviceError("b"), Unavailable("c")])
        assert not models.states()["m"].ready
        await turns()
        assert models.states()["m"].ready
        assert [card.id for card in models.cards()] == ["m", "alias"]
        await models.close(0.0)

    asyncio.run(work())


def test_an_engine_is_not_opened_for_a_model_that_was_unloaded_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        models, left = await published(monkeypatch, [Unavailable("refused")] * 1000)
        await models.publish(Publish(()))
        await turns()
        attempts = len(left)
        await turns()
        assert len(left) == attempts
        assert models.states() == {}

    asyncio.run(work())


def test_a_model_that_cannot_be_read_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        models, _ = await published(monkeypatch, [CheckpointError("tokenizer.json: is not JSON")])
        await turns()
        assert not models.states()["m"].ready

    asyncio.run(work())


def test_a_model_that_wakes_up_is_asleep_until_its_engine_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        may_open = asyncio.Event()

        async def open_shared(*_: object) -> Executor:
            await may_open.wait()
            return cast(Executor, FakeExecutor())

        monkeypatch.setattr(shared_models, "open_shared", open_shared)
        models = SharedModels(cast(Connection, Link()))
        await models.publish(Publish((ASLEEP,)))
        waking = asyncio.ensure_future(models.publish(Publish((MODEL,))))
        await turns()
        with pytest.raises(Unavailable) as error:
            await models.executor("alias")
        assert error.value.details["code"] == "model_asleep"
        may_open.set()
        await waking
        assert models.states()["m"].ready
        await models.executor("alias")
        await models.close(0.0)

    asyncio.run(work())


def test_a_request_on_its_way_keeps_an_engine_whose_model_falls_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(model_table, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(shared_models, "POLL_SECONDS", 0.0)
        models, _ = await published(monkeypatch, [])
        assert isinstance(SHARE.engine, str)
        async with models.using("alias"):
            # The main process may ask before the news is here.
            unused = asyncio.ensure_future(models.unused(SHARE.engine))
            await turns()
            await models.publish(Publish((ASLEEP,)))
            await turns()
            assert not unused.done()
            for name in ("m", "alias"):
                with pytest.raises(Unavailable) as error:
                    await used(models, name)
                assert error.value.details["code"] == "model_asleep"
        await unused
        await models.unused("/engine.of.another")
        await models.close(0.0)

    asyncio.run(work())


def test_a_model_that_falls_asleep_keeps_its_names_while_another_one_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        models, _ = await published(monkeypatch, [])
        may_open = asyncio.Event()

        async def open_shared(*_: object) -> Executor:
            await may_open.wait()
            return cast(Executor, FakeExecutor())

        other = replace(MODEL, name="n", aliases=(), share=replace(SHARE, socket="/n.socket"))
        may_open.set()
        monkeypatch.setattr(shared_models, "open_shared", open_shared)
        await models.publish(Publish((MODEL, other)))
        may_open.clear()
        newer = replace(other, share=replace(SHARE, socket="/newer.socket"))
        publishing = asyncio.ensure_future(models.publish(Publish((newer, ASLEEP))))
        await turns()
        with pytest.raises(Unavailable) as error:
            await used(models, "alias")
        assert error.value.details["code"] == "model_asleep"
        await used(models, "n")
        may_open.set()
        await publishing
        await models.unused("/n.socket")
        await models.close(0.0)

    asyncio.run(work())


async def used(models: SharedModels, name: str) -> None:
    async with models.using(name):
        pass
