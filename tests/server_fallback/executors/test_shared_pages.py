"""Shared memory between a prefill worker and a decode worker: the bytes that arrive, the bound of memory, and what a
worker that is wrong, killed or elsewhere does to the other one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nearfar.server_fallback.executors import shared_pages
from nearfar.server_fallback.executors.page_transfer import FrameReader, TransferFailed
from nearfar.server_fallback.executors.shared_pages import MOST_OPEN, SharedReader, SharedWriter, address_of
from nearfar.server_fallback.schema.frame import frame
from nearfar.server_fallback.schema.pages import BlockFrame

if not shared_pages.is_supported():
    pytest.skip("this system has no sealed memory files", allow_module_level=True)

import fcntl

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@pytest.fixture(autouse=True)
def _every_descriptor_is_closed() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


def test_payloads_arrive_and_a_writer_waits_until_they_are_taken() -> None:
    blocks = [os.urandom(1 + 70_000 * index) for index in range(MOST_OPEN + 2)]

    async def work(reader: SharedReader, writer: SharedWriter) -> None:
        sent = list[bytes]()

        async def send() -> None:
            for block in blocks:
                assert await writer.send(block)
                sent.append(block)

        sending = asyncio.create_task(send())
        while len(sent) < MOST_OPEN:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(sent) == MOST_OPEN
        for block in blocks[:2]:
            assert reader.take(len(block)) == block
        await sending
        assert [reader.take(len(block)) for block in blocks[2:]] == blocks[2:]
        assert not await writer.send(b"")

    with SharedReader() as reader, SharedWriter(reader.name) as writer:
        asyncio.run(asyncio.wait_for(work(reader, writer), 60))


def memory(size: int, seals: int) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(descriptor, bytes(size))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize(
    ("opened", "message"),
    [
        (lambda _: memory(100, 0), "shared memory that is not sealed"),
        # It can be truncated, or written to, after the look at it.
        (lambda _: memory(100, SEALS & ~fcntl.F_SEAL_SHRINK), "shared memory that is not sealed"),
        (lambda _: memory(100, SEALS & ~fcntl.F_SEAL_WRITE), "shared memory that is not sealed"),
        (lambda _: memory(99, SEALS), "shared memory of 99 bytes for a block of 100"),
        (lambda _: memory(101, SEALS), "shared memory of 101 bytes for a block of 100"),
        (lambda path: os.open(path, os.O_RDWR | os.O_CREAT), "a descriptor that is not a memory file"),
        (None, "no descriptor of it"),
    ],
)
def test_other_descriptors_are_refused_with_a_reason(
    tmp_path: Path, opened: Callable[[Path], int] | None, message: str
) -> None:
    with SharedReader() as reader, socket.socket(socket.AF_UNIX) as channel:
        assert reader.name is not None
        channel.connect(address_of(reader.name))
        if opened is None:
            channel.send(b"\1")
        else:
            descriptor = opened(tmp_path / "file")
            socket.send_fds(channel, [b"\1"], [descriptor])
            os.close(descriptor)
        with pytest.raises(TransferFailed, match=message) as failed:
            reader.take(100)
        assert failed.value.reason == "damaged"


WORKER = """
import asyncio, sys
from nearfar.server_fallback.executors.shared_pages import SharedWriter

async def work():
    with SharedWriter(sys.argv[1]) as writer:
        await writer.send(b"a" * 100)
        await writer.send(b"b" * 100)
        print("sent", flush=True)
        await asyncio.sleep(600)

asyncio.run(work())
"""


def test_what_a_killed_worker_sent_is_there_and_nothing_after_it() -> None:
    with SharedReader() as reader:
        assert reader.name is not None
        worker = subprocess.Popen([sys.executable, "-c", WORKER, reader.name], stdout=subprocess.PIPE)
        with worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"sent\n"
            worker.send_signal(signal.SIGKILL)
        assert reader.take(100) == b"a" * 100
        assert reader.take(100) == b"b" * 100
        with pytest.raises(TransferFailed, match="no descriptor of it"):
            reader.take(100)


def test_a_writer_whose_reader_is_gone_or_elsewhere_uses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sends(writer: SharedWriter) -> bool:
        return await asyncio.wait_for(writer.send(b"a"), 60)

    for name in (None, "0" * 32):
        with SharedWriter(name) as writer:
            assert not asyncio.run(sends(writer))
    with SharedReader() as reader, SharedWriter(reader.name) as writer:
        assert asyncio.run(sends(writer))
        # Another user's process.
        monkeypatch.setattr(os, "geteuid", lambda: 1 << 20)
        monkeypatch.setattr(shared_pages, "ROOT", 1 << 21)
        with SharedWriter(reader.name) as other:
            assert not asyncio.run(sends(other))
        with pytest.raises(TransferFailed, match="no descriptor of it"):
            reader.take(1)
        monkeypatch.undo()
    # The reader left, while the writer waits for it.
    with SharedReader() as reader, SharedWriter(reader.name) as writer:
        for _ in range(MOST_OPEN):
            assert asyncio.run(sends(writer))
        reader.__exit__()
        assert not asyncio.run(sends(writer))


def test_a_system_without_sealed_memory_uses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_pages, "is_supported", lambda: False)
    with SharedReader() as reader, SharedWriter("0" * 32) as writer:
        assert reader.name is None
        assert not asyncio.run(writer.send(b"a"))


@pytest.mark.parametrize(
    ("size", "payload", "asked", "message"),
    [
        (10, b"", False, "a block in shared memory that was not asked for"),
        (10, b"a", True, "a block in shared memory that was not asked for"),
        (101, b"", True, "101 bytes, at most 100 fit"),
    ],
)
def test_frames_of_blocks_in_shared_memory_are_checked(size: int, payload: bytes, asked: bool, message: str) -> None:
    header = BlockFrame(start=0, end=16, sha256="0" * 64, shared_bytes=size)
    parts = [frame(header.model_dump(), payload) + payload]

    async def read() -> bytes:
        return parts.pop()

    def take(size: int) -> bytes:
        raise AssertionError(size)

    with pytest.raises(TransferFailed, match=message):
        asyncio.run(FrameReader(read, 100, take if asked else None).next())
