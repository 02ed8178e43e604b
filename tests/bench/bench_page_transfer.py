"""What it costs to pass the pages of a prompt from a prefill worker to a decode worker on the same machine: over a Unix
socket alone, or through shared memory with only the frames' headers on the socket, as on Linux.

Both sides hash every block, as the workers do. Beside it stands what one message to or from an engine's process costs,
of which a transfer has two. Times are CPU seconds (user and system) of both processes together, because the machine is
busy with other work; the least of several transfers counts.

    python -m bench_page_transfer --megabytes 10 50 200
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from socket import socketpair
from typing import Any

import uvicorn
from rich.console import Console
from rich.table import Table

from nearfar.compiler.runtime.errors import Unavailable
from nearfar.server_fallback.engine.page_blocks import PageBlock
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.page_transfer import BlockChain, FrameReader, PageIdentity
from nearfar.server_fallback.executors.prefill_server import block_parts
from nearfar.server_fallback.executors.shared_pages import SharedReader, SharedWriter
from nearfar.server_fallback.executors.upstream import make_upstream, reader_of
from nearfar.server_fallback.processes.connection import Connection
from nearfar.server_fallback.schema.frame import frame
from nearfar.server_fallback.schema.pages import BlockFrame, EndFrame

ROOT = Path(__file__).parents[2]
# Qwen3-0.6B in float16: 28 layers, 8 heads of 128 elements, keys and values.
TOKEN_BYTES = 28 * 8 * 128 * 2 * 2
BLOCK_TOKENS = 64
IDENTITY = PageIdentity("0" * 64, "float16", 16, 16 * TOKEN_BYTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build/bench/page_transfer.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        socket, (ours, theirs) = f"{folder}/socket", multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(socket, theirs), daemon=True)
        server.start()
        assert ours.recv() == "started"
        figures = asyncio.run(measure(socket, ours, options.megabytes, options.repeats))
        server.terminate()
        server.join()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"load": os.getloadavg()[0], "transfers": figures}, indent=1))
    table = Table(title="CPU milliseconds of a transfer, both processes", title_justify="left")
    for column in ("MB", "Unix socket", "shared memory", "of which hashes", "engine's process", "gain of all"):
        table.add_column(column, justify="right")
    for each in figures:
        gain = (each["stream"] - each["shared"]) / (each["stream"] + 2 * each["engine"])
        times = (f"{1000 * each[name]:.0f}" for name in ("stream", "shared", "hashes", "engine"))
        table.add_row(str(each["megabytes"]), *times, f"{gain:.0%}")
    Console(width=120).print(table)


async def measure(socket: str, server: Pipe, sizes: list[int], repeats: int) -> list[dict[str, float]]:
    found = []
    upstream = make_upstream(f"unix:{socket}", None, any_request_id=True)
    for megabytes in sizes:
        tokens = megabytes * 1_000_000 // (TOKEN_BYTES * BLOCK_TOKENS) * BLOCK_TOKENS
        least: dict[str, float] = {"megabytes": megabytes}
        for _ in range(repeats):
            for name, measured in (("hashes", hash_seconds(tokens)), ("engine", await engine_seconds(tokens))):
                least[name] = min(measured, least.get(name, measured))
            for way in ("stream", "shared"):
                server.send("begin")
                server.recv()
                began = time.process_time()
                with SharedReader() as shared:
                    body = {"name": shared.name if way == "shared" else None, "tokens": tokens}
                    async with upstream.sent("POST", "/", body, Call("1")) as response:
                        read = bind(reader_of(response, lambda _: False))
                        frames = FrameReader(read, IDENTITY.most_bytes(tokens), shared.take)
                        received = await receive(frames, tokens)
                ours = time.process_time() - began
                assert received == tokens * TOKEN_BYTES
                server.send("end")
                seconds = ours + server.recv()
                least[way] = min(seconds, least.get(way, seconds))
        found.append(least)
    await upstream.close()
    return found


def bind(read: Callable[[float | None], Any]) -> Callable[[], Any]:
    return lambda: read(None)


def hash_seconds(tokens: int) -> float:
    """Of one side, twice."""
    blocks, began = list(payloads(tokens)), time.process_time()
    chain = BlockChain(IDENTITY, [0] * tokens, 0)
    for block in blocks:
        chain._next(block)
    return 2 * (time.process_time() - began)


async def engine_seconds(tokens: int) -> float:
    """Of the messages to the process of an engine, or from it: both ends of their socket are in this process."""
    arrived = asyncio.Queue[object]()
    ends = [Connection(arrived.put_nowait, lambda: Unavailable("it ended")) for _ in range(2)]
    loop, blocks = asyncio.get_running_loop(), payloads(tokens)
    for end, part in zip(ends, socketpair(), strict=True):
        await loop.create_unix_connection(lambda end=end: end, sock=part)  # type: ignore[misc]
    began = time.process_time()
    for block in blocks:
        ends[0].send(block)
        await arrived.get()
    seconds = time.process_time() - began
    for end in ends:
        await end.close()
    return seconds


def payloads(tokens: int) -> list[PageBlock]:
    data = os.urandom(BLOCK_TOKENS * TOKEN_BYTES)
    return [PageBlock(at, at + BLOCK_TOKENS, data) for at in range(0, tokens, BLOCK_TOKENS)]


# --- the decode worker ---


async def receive(frames: FrameReader, tokens: int) -> int:
    chain, size = BlockChain(IDENTITY, [0] * tokens, 0), 0
    while True:
        header, data = await frames.next()
        if isinstance(header, EndFrame):
            return size
        assert isinstance(header, BlockFrame)
        assert await chain.next(PageBlock(header.start, header.end, data)) == header.sha256
        size += len(data)


# --- the prefill worker ---


def serve(socket: str, report: Pipe) -> None:
    kept: dict[int, list[PageBlock]] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            assert (await receive())["type"] == "lifespan.startup"
            await send({"type": "lifespan.startup.complete"})
            return
        body = json.loads((await receive())["body"])
        blocks = kept.setdefault(body["tokens"], payloads(body["tokens"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async for part in send_blocks(blocks, body["name"]):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> None:
        server = uvicorn.Server(uvicorn.Config(app, uds=socket, log_level="warning", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        report.send("started")
        while (await asyncio.to_thread(report.recv)) == "begin":
            began = time.process_time()
            report.send("ready")
            await asyncio.to_thread(report.recv)
            report.send(time.process_time() - began)
        await serving

    asyncio.run(run())


async def send_blocks(blocks: list[PageBlock], name: str | None) -> AsyncGenerator[bytes, None]:
    chain = BlockChain(IDENTITY, [0] * blocks[-1].end, 0)
    with SharedWriter(name) as shared:
        for block in blocks:
            for part in await block_parts(block, chain, shared):
                yield part
        yield frame(EndFrame(cached_tokens=0, queue_seconds=0.0).model_dump())


if __name__ == "__main__":
    main()
