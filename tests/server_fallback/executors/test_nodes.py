"""A model on several machines, with a stand-in for vLLM on each: start, a dead node, its return, and wrong keys."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from test_vllm import HANGS, alive, ask, assert_gone, stand_in
from waiting import WAIT_SECONDS, pass_seconds, until

from nearfar.compiler.runtime.errors import DeviceError, RequestError, Unavailable
from nearfar.server_fallback.executors import node as node_module
from nearfar.server_fallback.executors import node_link
from nearfar.server_fallback.executors.node import Node
from nearfar.server_fallback.executors.node_link import LinkLost, NodeLink
from nearfar.server_fallback.executors.nodes import Nodes
from nearfar.server_fallback.executors.vllm import NodeOptions, VllmExecutor, VllmOptions, free_port, open_vllm
from nearfar.server_fallback.processes.supervisor import Restarts

__all__ = ["stand_in"]
# Writes its arguments and its process id beside itself, and runs until it is stopped.
NODE_STAND_IN = """#!/bin/sh
echo "$@" >> {folder}/arguments
echo $$ > {folder}/pid
exec sleep 3600
"""


@pytest.fixture(autouse=True)
def no_silence_and_short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends of a link share this process, so on a busy machine a short pause of it would be the node's silence."""
    monkeypatch.setattr(node_link, "SILENCE_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(node_module, "RETRY_SECONDS", 0.05)


class OtherMachine:
    """Runs `Node` with a stand-in for vLLM."""

    def __init__(self, folder: Path, port: int, key: str = "secret", rank: int = 1) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        program = folder / "vllm"
        program.write_text(NODE_STAND_IN.format(folder=folder))
        program.chmod(0o755)
        self.task = asyncio.create_task(Node("127.0.0.1", port, rank, key, str(program)).run())

    @property
    def pid(self) -> int:
        path = self.folder / "pid"
        return int(path.read_text() or 0) if path.exists() else 0

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def options_for(port: int, **more: float) -> VllmOptions:
    nodes = NodeOptions(2, "127.0.0.1", port, 29501, "secret")
    return VllmOptions("org/big", "big", 8, 2, nodes=nodes, restarts=Restarts(0.3, most=5), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def on_two_machines(folder: Path) -> AsyncIterator[tuple[VllmExecutor, OtherMachine, int]]:
    port = free_port()
    other = OtherMachine(folder / "other", port)
    executor = await open_vllm(options_for(port))
    try:
        await until(lambda: other.pid > 0)
        yield executor, other, port
    finally:
        await executor.close()
        await other.stop()


def run(test: Callable[[VllmExecutor, OtherMachine, int], object], folder: Path) -> None:
    async def work() -> None:
        async with asyncio.timeout(2 * WAIT_SECONDS), on_two_machines(folder) as (executor, other, port):
            await test(executor, other, port)  # type: ignore[misc]

    asyncio.run(work())


@pytest.mark.usefixtures("stand_in")
def test_all_machines_are_started_with_their_ranks_and_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pids: list[int] = []

    async def check(executor: VllmExecutor, other: OtherMachine, _: int) -> None:
        assert executor.state().ready
        pids.append(other.pid)
        assert alive(other.pid)

    run(check, tmp_path)
    assert_gone(*pids)
    cluster = "--nnodes 2 --node-rank {} --master-addr 127.0.0.1 --master-port 29501 --distributed-executor-backend mp"
    arguments = (tmp_path / "other" / "arguments").read_text()
    assert arguments.startswith(
        "serve org/big --headless --tensor-parallel-size 8 --pipeline-parallel-size 2 --data-parallel-size 1 "
    )
    assert cluster.format(1) in arguments
    assert cluster.format(0) in capfd.readouterr().err


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("how", ["silent", "ended", "crashed"])
def test_a_dead_node_fails_requests_with_the_reason_and_both_restart(tmp_path: Path, how: str) -> None:
    async def check(executor: VllmExecutor, other: OtherMachine, port: int) -> None:
        first, worker, _ = await ask(executor)
        before = other.pid
        pending = asyncio.create_task(ask(executor, max_tokens=HANGS))
        await until(lambda: executor.state().running == 1)
        if how == "crashed":
            os.kill(before, signal.SIGKILL)
            reason = r"on node 1 \(127.0.0.1\) ended with status -9"
        elif how == "ended":
            await other.stop()
            # The system's report depends on which side wrote last.
            reason = r"lost node 1 \(127.0.0.1\), which (closed|broke) the connection"
        else:
            # This is like a power failure: nothing arrives any more, and no connection is closed.
            link = executor.server._program.companions._links[1]  # type: ignore[union-attr]
            link._reader.set_exception(TimeoutError())
            reason = r"lost node 1 \(127.0.0.1\), which sent nothing"
        await until(lambda: not executor.state().ready)
        # Both at once: the new request must arrive before the restart.
        for failure in await asyncio.gather(pending, ask(executor), return_exceptions=True):
            assert isinstance(failure, Unavailable)
            assert re.match(rf"big: vllm {reason}.*, and is restarting", failure.message)
        if how == "ended":
            other = OtherMachine(other.folder, port)
        await until(lambda: executor.state().ready and other.pid != before)
        second, _, _ = await ask(executor)
        assert second != first
        assert_gone(first, worker, before)
        await other.stop()

    run(check, tmp_path)


@pytest.mark.usefixtures("stand_in")
def test_a_node_that_never_connects_is_an_error_after_the_start_timeout(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DeviceError, match="vllm: waiting for the nodes 1 for 0 seconds"):
        asyncio.run(open_vllm(options_for(free_port(), start_seconds=0.2)))
    assert "vllm | waiting for the nodes 1" in capfd.readouterr().err


def test_an_address_of_another_machine_is_refused() -> None:
    async def attempt() -> None:
        await Nodes(2, "192.0.2.1", 0, "k", lambda _: []).open()

    with pytest.raises(RequestError, match=r"--node-address 192\.0\.2\.1:0: .*use an address of this machine"):
        asyncio.run(attempt())


@pytest.mark.parametrize(
    ("key", "rank", "message"),
    [("secret", 1, None), ("other", 1, "does not have the same NEARFAR_NODE_KEY"), ("secret", 2, "closed")],
)
def test_only_a_machine_with_the_key_and_a_free_rank_joins(key: str, rank: int, message: str | None) -> None:
    async def check() -> None:
        nodes = Nodes(2, "127.0.0.1", 0, "secret", lambda rank: ["rank", str(rank)])
        await nodes.open()
        link = NodeLink(*await asyncio.open_connection("127.0.0.1", nodes.port))
        try:
            if message is None:
                await link.join(key, rank)
                await nodes.start()
                assert await link.receive() == {"start": ["rank", "1"]}
            else:
                with pytest.raises(LinkLost, match=message):
                    await joined(link, key, rank)
                assert nodes.missing == [1]
        finally:
            await link.close()
            await nodes.close()

    asyncio.run(check())


async def joined(link: NodeLink, key: str, rank: int) -> None:
    await link.join(key, rank)
    await link.receive()


def test_a_first_machine_without_the_key_starts_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        nodes = Nodes(2, "127.0.0.1", 0, "wrong", lambda _: ["rm"])
        await nodes.open()
        other = OtherMachine(tmp_path / "other", nodes.port)
        await asyncio.sleep(0.3)
        assert (nodes.missing, other.pid) == ([1], 0)
        await other.stop()
        await nodes.close()

    asyncio.run(check())


def test_silence_is_a_lost_link_and_heartbeats_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_link, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(node_link, "SILENCE_SECONDS", 10.0)

    async def check() -> None:
        links: list[NodeLink] = []

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            links.append(NodeLink(reader, writer))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        here = NodeLink(*await asyncio.open_connection(*server.sockets[0].getsockname()))
        receiving = asyncio.create_task(here.receive())
        for _ in range(20):
            # A heartbeat arrives in each second.
            await asyncio.sleep(0.06)
            pass_seconds(1)
        assert not receiving.done()
        links[0]._heart.stop()
        pass_seconds(10)
        with pytest.raises(LinkLost, match=r"sent nothing for 10 s"):
            await receiving
        await here.close()
        await links[0].close()
        server.close()

    asyncio.run(check())
