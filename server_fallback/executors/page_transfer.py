"""Page transfer: the frames in which page blocks pass from a prefill worker to a decode worker
(`schema/pages.py`). Both sides compute the same chain of hashes.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import numpy as np
from pydantic import ValidationError

from nearfar.compiler.bundle.manifest import Description, Manifest
from nearfar.compiler.runtime.errors import Unavailable
from nearfar.compiler.runtime.page_groups import pages_bytes

from ..engine.encoded_prefix import PrefixKey
from ..engine.page_blocks import LAYERED_BLOCKS, PageBlock, block_tokens
from ..schema.frame import SIZES
from ..schema.pages import FRAME, VERSION, BlockFrame, Frame

MAX_HEADER_BYTES = 16 << 10
# Larger blocks are hashed on a thread.
INLINE_BYTES = 64 << 10

# Why a prefix was not transferred.
Reason = Literal["unreachable", "refused", "busy", "slow", "broken", "damaged", "failed", "no_room"]


class TransferFailed(Unavailable):
    """``reason`` is the label of the metric. ``received`` tokens are in the cache nevertheless."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message, code="prefill_failed", reason=reason)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class PageIdentity:
    """What must be equal on both sides, so that one can use the pages of the other: the id of the bundle, which covers
    weights, kernels and the form of the pages; and the activation dtype. ``page_bytes`` are those of a page of each
    group and of a state together.
    """

    bundle: str
    activation: str
    page_size: int
    page_bytes: int

    @staticmethod
    def of(manifest: Description, key: PrefixKey) -> PageIdentity | None:
        """None for a model without pages that another server can use, such as those of other frameworks."""
        if not (isinstance(manifest, Manifest) and manifest.generates and manifest.paged):
            return None
        size = pages_bytes(manifest.states, [range(1), range(1)], key.activation)
        return PageIdentity(key.bundle, key.activation, manifest.page_size, size)

    def most_bytes(self, total: int) -> int:
        """The largest block of a transfer of ``total`` tokens."""
        return self.page_bytes * (LAYERED_BLOCKS * block_tokens(total) // self.page_size + 1)


class BlockChain:
    """The hashes of a transfer's blocks, in their order. ``start`` tokens are not transferred."""

    def __init__(self, identity: PageIdentity, token_ids: Sequence[int], start: int) -> None:
        self._tokens = np.array(token_ids, "<i4")
        self._position = start
        self._block = sha256()
        known = f"{VERSION} {identity.bundle} {identity.activation} {start} ".encode()
        self._last = sha256(known + self._tokens[:start].tobytes()).digest()

    async def next(self, block: PageBlock) -> str:
        """Of a block or of a part of it, which follows the part before it."""
        if len(block.data) <= INLINE_BYTES:
            return self._next(block)
        return await asyncio.to_thread(self._next, block)

    def _next(self, block: PageBlock) -> str:
        if block.part == 0:
            self._block = sha256(self._last + struct.pack("<QQ", block.start, block.end))
            self._block.update(self._tokens[self._position : block.end].tobytes())
        self._block.update(block.data)
        if block.is_last:
            self._last, self._position = self._block.digest(), block.end
        return self._block.hexdigest()


class FrameReader:
    """Reads frames from ``read``, which returns the next bytes, empty at the end. Raises TransferFailed for what is not
    a frame, and for a payload of more than ``most_bytes``. ``shared`` returns the next payload in shared memory, of a
    size; None if there is no such memory.
    """

    def __init__(
        self, read: Callable[[], Awaitable[bytes]], most_bytes: int, shared: Callable[[int], bytes] | None = None
    ) -> None:
        self._read, self._most_bytes, self._shared = read, most_bytes, shared
        # What was read beyond the last frame.
        self._rest = b""
        self.bytes = 0

    async def next(self) -> tuple[Frame, bytes]:
        header_bytes, payload_bytes = SIZES.unpack(await self._take(SIZES.size))
        if header_bytes > MAX_HEADER_BYTES or payload_bytes > self._most_bytes:
            raise self._too_large(header_bytes, payload_bytes)
        text = await self._take(header_bytes)
        try:
            header = FRAME.validate_json(text)
        except ValidationError as error:
            raise damaged("a frame whose header is not one of this protocol") from error
        if payload_bytes and not isinstance(header, BlockFrame):
            raise damaged(f"a frame of the kind {header.kind!r} with a payload")
        if isinstance(header, BlockFrame) and (size := header.shared_bytes):
            if size > self._most_bytes:
                raise self._too_large(header_bytes, size)
            if payload_bytes or self._shared is None:
                raise damaged("a block in shared memory that was not asked for")
            self.bytes += size
            return header, self._shared(size)
        return header, await self._take(payload_bytes)

    def _too_large(self, header_bytes: int, payload_bytes: int) -> TransferFailed:
        return damaged(f"a frame of {header_bytes} and {payload_bytes} bytes, at most {self._most_bytes} fit")

    async def _take(self, size: int) -> bytes:
        # Parts are joined once: each further copy of the pages takes as long as receiving them.
        parts = list[bytes]()
        while size > 0:
            if not (part := self._rest):
                if not (part := await self._read()):
                    raise TransferFailed("broken", "the worker's answer stopped before its end")
                self.bytes += len(part)
            self._rest = part[size:]
            parts.append(part[:size])
            size -= len(parts[-1])
        return b"".join(parts)


def damaged(what: str) -> TransferFailed:
    return TransferFailed("damaged", f"the worker sent {what}")
