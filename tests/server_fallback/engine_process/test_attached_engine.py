"""Several servers share one engine's process: their answers do not mix, and each survives crashes of the others."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine_requests import OTHERS, PROMPT, EvenTokens, run
from hash_model import answer_of
from hash_recipe import HashRecipe
from waiting import until

from nearfar.compiler.runtime.errors import DeviceError, Unavailable
from nearfar.server_fallback.engine.request import GeneratedToken, TokenRequest
from nearfar.server_fallback.engine_process.attached_engine import AttachedEngine
from nearfar.server_fallback.engine_process.engine_client import EngineClient
from nearfar.server_fallback.engine_process.remote_engine import RemoteEngine
from nearfar.server_fallback.processes.child import is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs a system that can pass sockets to processes")
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process imports the recipe's module."""
    folders = [HERE, HERE.parent / "engine", os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))


@asynccontextmanager
async def shared(
    recipe: HashRecipe | None = None,
) -> AsyncIterator[tuple[RemoteEngine, AttachedEngine, AttachedEngine]]:
    owner = await RemoteEngine.open(recipe or HashRecipe())
    path = await owner.share()
    first, second = await AttachedEngine.open(path), await AttachedEngine.open(path)
    try:
        yield owner, first, second
    finally:
        await asyncio.gather(first.close(), second.close())
        await owner.close()
        assert not Path(path).parent.exists()


async def tokens(engine: EngineClient, prompt: list[int] = PROMPT, count: int = 12, **request: object) -> list[int]:
    asked = TokenRequest(prompt, count, **request)  # type: ignore[arg-type]
    return [item.token_id async for item in engine.generate(asked) if isinstance(item, GeneratedToken)]


def test_answers_of_several_servers_do_not_mix() -> None:
    async def work() -> None:
        async with shared() as (owner, *attached):
            assert {engine.context for engine in attached} == {owner.context}
            prompts = (PROMPT, *OTHERS) * 3
            answers = await asyncio.gather(
                *(tokens(engine, prompt) for engine in (owner, *attached) for prompt in prompts)
            )
            assert answers == [answer_of(prompt, 12, 64)[0] for prompt in prompts] * 3
            # Each server computes the masks of its own answers.
            constrained = [tokens(engine, constraint=EvenTokens(), count=4) for engine in attached]
            for even in await asyncio.gather(*constrained):
                assert even
                assert all(token % 2 == 0 for token in even)

    run(work())


def test_the_socket_is_this_users_alone() -> None:
    async def work() -> None:
        owner = await RemoteEngine.open(HashRecipe())
        folder = Path(await owner.share()).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert await owner.share() == str(folder / "engine")
        await owner.close()
        assert not folder.exists()
        with pytest.raises(Unavailable, match="cannot be reached"):
            await AttachedEngine.open(str(folder / "engine"))

    run(work())


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """The file that holds a `HashRecipe`; it exists."""
    file = tmp_path / "held"
    file.touch()
    return file


def test_a_server_that_ends_leaves_its_answers_and_no_others(held: Path) -> None:
    async def work() -> None:
        async with shared(HashRecipe(held=held, free_steps=4)) as (owner, first, second):
            left = first.generate(TokenRequest(PROMPT, 50, ignore_eos=True))
            await anext(left)
            going_on = asyncio.ensure_future(tokens(second, OTHERS[0], 20))
            await until(lambda: owner.stats().running + owner.stats().waiting == 2)
            await first.close()
            with pytest.raises(Unavailable):
                _ = [item async for item in left]
            held.unlink()
            assert await going_on == answer_of(OTHERS[0], 20, 64)[0]
            # Its slot and its pages are free again.
            await until(lambda: owner.stats().running == 0)

    run(work())


def test_after_a_crash_of_the_engine_every_server_fails_its_answers_and_attaches_again(held: Path) -> None:
    async def work() -> None:
        async with shared(HashRecipe(held=held)) as (owner, *attached):
            pid = owner.pid
            assert pid is not None
            begun = [asyncio.ensure_future(tokens(engine)) for engine in attached]
            await until(lambda: owner.stats().running + owner.stats().waiting == 2)
            os.kill(pid, signal.SIGKILL)
            held.unlink()
            for answer in begun:
                with pytest.raises(DeviceError, match="failed and is started again"):
                    await answer
            for engine in attached:
                with pytest.raises(Unavailable, match="being started again"):
                    await tokens(engine)
                assert engine.stats().failure is not None
            await until(lambda: all(server.stats().failure is None for server in (owner, *attached)))
            everyone: list[EngineClient] = [owner, *attached]
            for server in everyone:
                assert await tokens(server) == answer_of(PROMPT, 12, 64)[0]

    run(work())
