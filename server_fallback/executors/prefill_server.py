"""Prefill server: the answer of a prefill worker, which is the pages of a prompt's beginning as frames, while the
engine computes the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, runtime_checkable

from nearfar.compiler.runtime.errors import RequestError

from ..engine.page_blocks import PageBlock
from ..engine.request import AnswerEnd, TokenRequest
from ..engine.stats import EngineStats
from ..schema.frame import frame
from ..schema.pages import VERSION, BlockFrame, EndFrame, PagesRequest, WaitFrame
from .executor import Call
from .page_transfer import BlockChain, PageIdentity
from .shared_pages import SharedWriter

# While a block is computed, the other side gets a frame at this interval, so that it notices a worker that hangs.
BEAT_SECONDS = 1.0


@runtime_checkable
class ExportingEngine(Protocol):
    """The part of `engine.token_engine.TokenEngine` that is needed here."""

    def stats(self) -> EngineStats: ...

    def export(self, request: TokenRequest) -> AsyncGenerator[PageBlock | AnswerEnd, None]: ...


def export_request(request: PagesRequest, identity: PageIdentity, call: Call) -> TokenRequest:
    """Raises RequestError if the pages would not be those of the client's model."""
    if request.version != VERSION:
        raise RequestError(
            f"this prefill worker supports version {VERSION} of the protocol, the decode worker uses "
            f"{request.version}; update the older one",
            param="version",
            code="prefill_version",
        )
    if request.bundle != identity.bundle:
        raise RequestError(
            f"{request.model}: this prefill worker serves the bundle {identity.bundle[:12]}, and the decode worker "
            f"{request.bundle[:12]}; serve the same bundle on both",
            param="bundle",
            code="other_bundle",
        )
    if request.activation != identity.activation:
        raise RequestError(
            f"{request.model}: this prefill worker computes in {identity.activation}, and the decode worker in "
            f"{request.activation}; run both on devices with the same activations",
            param="activation",
            code="other_activation",
        )
    return TokenRequest(
        request.prompt,
        priority=call.priority,
        deadline=call.deadline,
        client=call.client,
        export=range(request.start, request.end),
    )


async def page_frames(
    engine: ExportingEngine, request: TokenRequest, identity: PageIdentity, shared_name: str | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of the answer; those of a block are its header, and its payload unless the client at
    ``shared_name`` gets it in shared memory. Raises the errors of the engine.
    """
    wanted = request.export
    assert wanted is not None
    chain = BlockChain(identity, request.prompt_ids[: wanted.stop], wanted.start)
    with SharedWriter(shared_name) as shared:
        async with aclosing(engine.export(request)) as items:
            while True:
                waiting = asyncio.ensure_future(anext(items))
                try:
                    while not (await asyncio.wait({waiting}, timeout=BEAT_SECONDS))[0]:
                        # The engine's process may hang: then nothing is sent.
                        if engine.stats().failure is None:
                            yield frame(WaitFrame().model_dump())
                    item = waiting.result()
                finally:
                    if not waiting.done():
                        waiting.cancel()
                        await asyncio.gather(waiting, return_exceptions=True)
                if isinstance(item, AnswerEnd):
                    cached = max(0, item.cached_tokens - wanted.start)
                    yield frame(EndFrame(cached_tokens=cached, queue_seconds=item.queue_seconds).model_dump())
                    return
                for part in await block_parts(item, chain, shared):
                    yield part


async def block_parts(block: PageBlock, chain: BlockChain, shared: SharedWriter) -> list[bytes]:
    """The frame of a block, and its payload unless that is in shared memory."""
    header = BlockFrame(
        start=block.start, end=block.end, sha256=await chain.next(block), part=block.part, parts=block.parts
    )
    if await shared.send(block.data):
        return [frame({**header.model_dump(), "shared_bytes": len(block.data)})]
    return [frame(header.model_dump(), block.data), block.data]
