"""The blocks of a prompt that a prefill worker sends: an engine that is busy with a step writes several of them after
it, in order, and what it wrote before a failure counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from nearfar.server_fallback.engine.page_blocks import BLOCK_TOKENS, BlockWrite, PageBlock
from nearfar.server_fallback.executors.page_transfer import (
    BlockChain,
    FrameReader,
    PageIdentity,
    TransferFailed,
    frame,
)
from nearfar.server_fallback.executors.prefill_client import WRITES_AT_ONCE, Transfer, _receive
from nearfar.server_fallback.schema.pages import BlockFrame, EndFrame

IDENTITY = PageIdentity("bundle", "float16", page_size=16, page_bytes=64)
BLOCKS = WRITES_AT_ONCE + 3
TOKENS = list(range(BLOCKS * BLOCK_TOKENS))


class BusyEngine:
    """Writes what has been asked of it when `step` is called. It has room for ``room`` blocks."""

    def __init__(self, room: int = BLOCKS) -> None:
        self.room = room
        self.written: list[int] = []
        self._calls: list[tuple[int, asyncio.Future[bool]]] = []

    async def cached_tokens(self, token_ids: Sequence[int], adapter: str | None = None) -> int:
        raise AssertionError(token_ids, adapter)

    async def write_block(self, write: BlockWrite) -> bool:
        done = asyncio.get_running_loop().create_future()
        self._calls.append((write.block.end, done))
        return await done

    def step(self) -> int:
        """The number of writes between two steps."""
        calls, self._calls = self._calls, []
        for end, done in calls:
            if done.cancelled():
                continue
            has_room = len(self.written) < self.room
            if has_room:
                self.written.append(end)
            done.set_result(has_room)
        return len(calls)


async def sent(blocks: int, *, ends: bool) -> bytes:
    """So many blocks, and the end of the answer."""
    chain, parts = BlockChain(IDENTITY, TOKENS, 0), list[bytes]()
    for start in range(0, blocks * BLOCK_TOKENS, BLOCK_TOKENS):
        block = PageBlock(start, start + BLOCK_TOKENS, bytes(32))
        header = BlockFrame(start=block.start, end=block.end, sha256=await chain.next(block))
        parts += [frame(header, block.data), block.data]
    if ends:
        parts.append(frame(EndFrame(cached_tokens=0, queue_seconds=0.0)))
    return b"".join(parts)


async def received(engine: BusyEngine, data: bytes, step: Callable[[], Awaitable[None]]) -> tuple[Transfer, bool]:
    """Receive an answer that is here at once, with a step whenever the transfer waits."""
    wanted, parts = Transfer("m", TOKENS, 0, priority=0, deadline=0.0), [data]

    async def read() -> bytes:
        return parts.pop() if parts else b""

    frames = FrameReader(read, IDENTITY.most_bytes(len(TOKENS)))
    task = asyncio.create_task(_receive(frames, engine, IDENTITY, wanted))
    try:
        while not task.done():
            await step()
        return wanted, await task
    except TransferFailed:
        return wanted, False


def transferred(engine: BusyEngine, data: bytes) -> tuple[Transfer, bool, list[int]]:
    steps: list[int] = []

    async def step() -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        steps.append(engine.step())

    async def limited() -> tuple[Transfer, bool]:
        async with asyncio.timeout(30):
            return await received(engine, data, step)

    wanted, has_room = asyncio.run(limited())
    return wanted, has_room, [count for count in steps if count]


def test_several_blocks_are_written_between_two_steps() -> None:
    engine = BusyEngine()
    wanted, has_room, steps = transferred(engine, asyncio.run(sent(BLOCKS, ends=True)))
    assert (has_room, wanted.done) == (True, len(TOKENS))
    assert engine.written == list(range(BLOCK_TOKENS, len(TOKENS) + 1, BLOCK_TOKENS))
    assert steps == [WRITES_AT_ONCE, BLOCKS - WRITES_AT_ONCE]


@pytest.mark.parametrize(("room", "blocks"), [(4, BLOCKS), (BLOCKS, 5)])
def test_what_was_written_before_a_failure_counts(room: int, blocks: int) -> None:
    """There is no room for the fifth block, or the connection ends after it."""
    engine = BusyEngine(room)
    wanted, has_room, _ = transferred(engine, asyncio.run(sent(blocks, ends=False)))
    assert not has_room
    assert wanted.done == min(room, blocks) * BLOCK_TOKENS == engine.written[-1]
