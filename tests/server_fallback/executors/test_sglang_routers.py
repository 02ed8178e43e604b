"""SGLang's own router, and smg, the newest of each, between nearfar and two servers that answer as SGLang does."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from fake_openai import Received, Reply, running
from installed_packages import python_with
from opened_upstreams import ask, text_of
from test_sglang import LONG, SGLang, chat
from waiting import WAIT_SECONDS

from nearfar.server_fallback.executors.upstream_executor import UpstreamOptions, open_upstream

pytestmark = pytest.mark.exhaustive

ROUTERS = {
    "manual": ("sglang-router", "--policy", "manual"),
    "consistent hashing": ("smg", "--policy", "consistent_hashing"),
    "override": ("smg", "--policy", "cache_aware", "--routing-key-override"),
}
CONVERSATIONS, TURNS = 6, 4


class Worker(SGLang):
    """Answers what a router wants to know of a worker, too."""

    def _reply(self, received: Received) -> Reply:
        if received.path in ("/health", "/health_generate"):
            return Reply(value={})
        if received.path in ("/get_model_info", "/model_info"):
            return Reply(value={"model_path": "there", "is_generation": True})
        if received.path in ("/get_server_info", "/server_info"):
            return Reply(value={"model_path": "there", "served_model_name": "there", "tp_size": 1, "dp_size": 1})
        return super()._reply(received)

    @property
    def first_messages(self) -> list[str]:
        """Of each chat that arrived here."""
        chats = [each.body or {} for each in self.received if each.path == "/v1/chat/completions"]
        return [body["messages"][0]["content"] for body in chats]


@asynccontextmanager
async def routing(arguments: tuple[str, ...], workers: list[Worker], folder: Path) -> AsyncIterator[str]:
    """The router's address."""
    program, *options = arguments
    # Both packages have a program with the name smg.
    command: list[str | Path] = [python_with(program).parent / program, "launch", *options]
    port, metrics = free_ports(2)
    command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    command += ["--worker-urls", *(worker.url for worker in workers)]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=subprocess.STDOUT)
        try:
            await until_serving(f"http://127.0.0.1:{port}", process, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def until_serving(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    """Until both workers can have requests: a router lists its models as soon as it knows one of them."""
    async with asyncio.timeout(WAIT_SECONDS), httpx.AsyncClient() as client:
        while True:
            assert process.returncode is None, log.read_text()
            try:
                known = (await client.get(f"{url}/workers")).json()
            except (httpx.TransportError, ValueError):
                known = {}
            if sum(each.get("is_healthy", False) for each in known.get("workers", ())) == 2:
                return
            await asyncio.sleep(0.1)


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_keeps_each_conversation_on_one_worker_and_uses_both(name: str, tmp_path: Path) -> None:
    workers = [Worker(), Worker()]

    async def run() -> None:
        async with running(*workers), routing(ROUTERS[name], workers, tmp_path) as url:
            executor = await open_upstream(UpstreamOptions(urls=(url,), name="ours", dialect="sglang"))
            try:
                for turn in range(TURNS):
                    for number in range(CONVERSATIONS):
                        turns = (f"Question {number}{LONG}", *("At 9.", "And back?") * turn)
                        assert text_of(await ask(executor, question=chat(*turns))) == "Yes"
            finally:
                await executor.close()

    asyncio.run(run())
    places = [set(worker.first_messages) for worker in workers]
    assert all(places)
    assert places[0].isdisjoint(places[1])
    assert sum(len(worker.first_messages) for worker in workers) == CONVERSATIONS * TURNS
