"""/v1/nearfar/pages (extension): a prefill worker computes the beginning of a prompt, and sends its stored pages
while it computes the rest.

The answer is a sequence of frames (`frame.py`):

    block   the pages of the tokens from start up to end, or a part of them, and the hash of everything up to here; the
            payload, or the size of it in shared memory (`executors/shared_pages.py`)
    wait    nothing: the worker is still there
    end     all pages were sent
    error   instead of the end, in the form of OpenAI's errors

A block's hash is the SHA-256 of the hash before it, the block's positions, the tokens since the block before it, and
its payload; that of a part ends with this part. The first hash is of the bundle's id, the activation and the tokens
that the other side has already. So it tells apart other bytes, other tokens, another order and another model. The
connection's own flow control acknowledges blocks: a worker computes no more than two steps beyond what was taken.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from .common import ErrorDetail, Int64, Items, Reply, Request

PAGES_ROUTE = "/v1/nearfar/pages"
# Of a request to a decode worker: the URL of the prefill worker that computes its prompt, as the decode worker's own
# options have it, or NOBODY.
PREFILL_HEADER, NOBODY = "X-Nearfar-Prefill", "none"
# Incremented when the other side would misread a request or a frame.
VERSION = 2
MAX_PARTS = 64
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Position = Annotated[int, Field(ge=0)]


class PagesRequest(Request):
    """``prompt`` are token ids. The pages from ``start`` up to ``end`` are wanted; both are multiples of the page size,
    and the prompt has a token more, which is not computed. ``bundle`` and ``activation`` are those of the client's
    model. ``shared`` names an abstract address at which the client receives payloads in shared memory.
    """

    version: int
    model: str
    bundle: str
    activation: str
    prompt: Items[int]
    start: Position
    end: Position
    priority: Int64 | None = None
    shared: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None


class BlockFrame(Request):
    """``shared_bytes``: the size of the payload if it is in shared memory, and not in the frame. A block has ``parts``,
    each of some layers. If a worker's step fails, it sends the parts of the block again, from the first one on.
    """

    kind: Literal["block"] = "block"
    start: Position
    end: Position
    sha256: Sha256
    shared_bytes: Position = 0
    part: Position = 0
    parts: Annotated[int, Field(ge=1, le=MAX_PARTS)] = 1


class WaitFrame(Request):
    kind: Literal["wait"] = "wait"


class EndFrame(Request):
    """``cached_tokens`` of the pages were in the worker's cache. ``queue_seconds`` passed until it began."""

    kind: Literal["end"] = "end"
    cached_tokens: Position
    queue_seconds: Annotated[float, Field(ge=0)]


class ErrorFrame(Reply):
    kind: Literal["error"] = "error"
    error: ErrorDetail


Frame = BlockFrame | WaitFrame | EndFrame | ErrorFrame
FRAME: TypeAdapter[Frame] = TypeAdapter(Annotated[Frame, Field(discriminator="kind")])
