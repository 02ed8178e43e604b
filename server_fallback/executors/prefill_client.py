"""Prefill client: has a prefill worker compute the beginning of a prompt, and writes the pages into the engine's prefix
cache while the worker computes the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from nearfar.compiler.runtime.errors import (
    DeadlineExceeded,
    DeviceError,
    NearfarError,
    QueueFull,
    RequestError,
    Unavailable,
)

from ..engine.page_blocks import BlockWrite, PageBlock, joined
from ..schema.pages import PAGES_ROUTE, VERSION, BlockFrame, EndFrame, ErrorFrame, PagesRequest
from .executor import Call
from .page_transfer import BlockChain, FrameReader, PageIdentity, Reason, TransferFailed, damaged
from .refusal import streamed_error
from .shared_pages import SharedReader
from .upstream import Upstream, reader_of

# A worker that sends nothing for so long, not even that it is still there, has lost the request.
SILENT_SECONDS = 10.0
# The most blocks of a transfer that are written between two steps: more would keep the device from the next one for
# longer.
WRITES_AT_ONCE = 8


class ImportingEngine(Protocol):
    """The part of `engine.token_engine.TokenEngine` that is needed here."""

    async def cached_tokens(self, token_ids: Sequence[int], adapter: str | None = None) -> int: ...

    async def write_block(self, write: BlockWrite) -> bool: ...


@dataclass(slots=True)
class Transfer:
    """The pages of a prefix from ``start`` on, which has the tokens ``token_ids``. ``done`` of them are in the cache.
    ``cached_tokens`` of the rest were in the worker's. ``size`` is in bytes.
    """

    model: str
    token_ids: Sequence[int]
    start: int
    priority: int
    deadline: float
    done: int = 0
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    size: int = 0


async def transfer(
    upstream: Upstream, engine: ImportingEngine, identity: PageIdentity, wanted: Transfer, next_token: int
) -> None:
    """``next_token`` follows the prefix. Raises TransferFailed; then ``wanted`` states what has been done."""
    total = len(wanted.token_ids)
    wanted.done = wanted.start
    call = Call("prefill", deadline=wanted.deadline)
    began = False
    try:
        async with AsyncExitStack() as opened:
            shared = opened.enter_context(SharedReader()) if upstream.is_here else None
            request = PagesRequest(
                version=VERSION,
                model=wanted.model,
                bundle=identity.bundle,
                activation=identity.activation,
                prompt=[*wanted.token_ids, next_token],
                start=wanted.start,
                end=total,
                priority=wanted.priority,
                shared=None if shared is None else shared.name,
            )
            async with asyncio.timeout(SILENT_SECONDS):
                response = await opened.enter_async_context(
                    upstream.sent("POST", PAGES_ROUTE, request.model_dump(mode="json"), call)
                )
            began = True
            read = reader_of(response, lambda _: False)
            frames = FrameReader(
                lambda: read(min(wanted.deadline, monotonic() + SILENT_SECONDS)),
                identity.most_bytes(total),
                None if shared is None else shared.take,
            )
            try:
                has_room = await _receive(frames, engine, identity, wanted)
            finally:
                wanted.size = frames.bytes
        if not has_room:
            # After the connection is closed, so that this is not the worker's failure.
            raise TransferFailed("no_room", "the prefix cache has no room for the prompt")
    except (TransferFailed, asyncio.CancelledError):
        raise
    except (NearfarError, TimeoutError) as error:
        reason = _reason(error, began=began)
        if reason == "slow":
            upstream.circuit.failed()
        message = _message(error).removeprefix(f"{upstream.url}: ")
        raise TransferFailed(reason, f"{upstream.url}: {message}") from error


async def _receive(frames: FrameReader, engine: ImportingEngine, identity: PageIdentity, wanted: Transfer) -> bool:
    """False if there is no room for a block."""
    total, chain = len(wanted.token_ids), BlockChain(identity, wanted.token_ids, wanted.start)
    size, received, parts = identity.page_size, wanted.start, list[PageBlock]()
    async with _Writes(engine, wanted) as writes:
        while True:
            header, data = await frames.next()
            match header:
                case BlockFrame(start=start, end=end):
                    # Pages that lie behind a window at the end are left out, at the beginning only.
                    follows = start == received if received > wanted.start else start >= wanted.start
                    if not follows or start % size or end % size or not start < end <= total:
                        raise damaged(f"the tokens {start} to {end} after {received} of {total}")
                    block = PageBlock(start, end, data, header.part, header.parts)
                    if block.part == 0:
                        parts.clear()
                    if block.part != len(parts) or any(_shape(block) != _shape(part) for part in parts):
                        raise damaged(f"part {block.part} of {block.parts} after {len(parts)} of another block")
                    if await chain.next(block) != header.sha256:
                        raise damaged(f"other bytes, tokens or pages of another model for the tokens {start} to {end}")
                    parts.append(block)
                    if (size_bytes := sum(len(part.data) for part in parts)) > identity.most_bytes(total):
                        raise damaged(f"a block of {size_bytes} bytes, at most {identity.most_bytes(total)} fit")
                    if not block.is_last:
                        continue
                    if not await writes.add(joined(parts)):
                        return False
                    parts.clear()
                    received = end
                case EndFrame():
                    if not await writes.finish():
                        return False
                    if wanted.done < total:
                        raise damaged(f"the end after {wanted.done} of {total} tokens")
                    wanted.cached_tokens, wanted.queue_seconds = header.cached_tokens, header.queue_seconds
                    return True
                case ErrorFrame(error=error):
                    raise streamed_error("the prefill worker", error.model_dump())


def _shape(block: PageBlock) -> tuple[int, int, int]:
    return block.start, block.end, block.parts


class _Writes:
    """The blocks of a transfer that are being written, in order. A busy engine writes only between two steps, so with
    one block at a time a prompt would arrive no faster than a block a step.
    """

    def __init__(self, engine: ImportingEngine, wanted: Transfer) -> None:
        self._engine, self._wanted = engine, wanted
        self._open = deque[tuple[int, asyncio.Task[bool]]]()

    async def __aenter__(self) -> _Writes:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """What was written before a failure is counted, and nothing is written after it."""
        tasks = [task for _, task in self._open]
        try:
            if kind is not asyncio.CancelledError:
                # The error that ends the transfer is known already.
                with suppress(NearfarError):
                    await self.finish()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def add(self, block: PageBlock) -> bool:
        """False if there is no room for one of the blocks."""
        write = BlockWrite(self._wanted.token_ids, block)
        self._open.append((block.end, asyncio.create_task(self._engine.write_block(write))))
        return await self.finish(WRITES_AT_ONCE - 1)

    async def finish(self, most_open: int = 0) -> bool:
        """Wait until at most ``most_open`` blocks are being written. False if there is no room for one of them."""
        while len(self._open) > most_open:
            end, task = self._open.popleft()
            if not await task:
                return False
            self._wanted.done = end
        return True


def _reason(error: Exception, *, began: bool) -> Reason:
    match error:
        case DeadlineExceeded() | TimeoutError():
            return "slow"
        case QueueFull():
            return "busy"
        case Unavailable():
            return "broken" if began else "busy" if "status" in error.details else "unreachable"
        case RequestError():
            return "damaged" if began else "refused"
        case DeviceError():
            return "failed" if began else "refused"
    return "failed"


def _message(error: Exception) -> str:
    return error.message if isinstance(error, NearfarError) else f"it sent nothing for {SILENT_SECONDS:.0f} seconds"
