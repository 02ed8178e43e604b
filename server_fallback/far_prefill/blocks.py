"""The blocks of a computed prompt: the keys and values of its pages, and states, in the order of their computation.

A prompt has whole pages only. It is computed in parts; each part leaves its pages in the engine's prefix cache, from
where they are read, so that a client that comes back finds them there. A client computes the last page itself, from
what it has received before, and compares it with the one that it receives; therefore states are those before that page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Protocol, runtime_checkable

from nearfar.compiler.runtime.errors import Unavailable

from ..engine.request import AnswerEnd, TokenRequest, TokenSource
from ..engine.retained_pages import RetainedPages
from ..schema.frame import frame
from .layout import KvLayout, StatesForm, pack_states

# Incremented when an older client would misread the blocks.
VERSION: Final = 3
# Tokens that are computed before their pages are sent. The first part has one page, so that the client can check it at
# once.
PART_TOKENS: Final = 512
# How often a part is computed whose pages other requests have evicted before they were read.
ATTEMPTS: Final = 3


@runtime_checkable
class ReadableSource(TokenSource, Protocol):
    """The part of `TokenEngine` that is needed here."""

    @property
    def activation(self) -> str | None: ...

    async def read_prefix(self, token_ids: Sequence[int], adapter: str | None = None) -> RetainedPages: ...


@dataclass(slots=True)
class Counts:
    """``computed_tokens``: the others of the prompt were in the cache. ``queue_seconds``: until the device received the
    first part.
    """

    computed_tokens: int = 0
    queue_seconds: float | None = None


async def blocks(
    source: ReadableSource, layout: KvLayout, request: TokenRequest, start: int, form: StatesForm, counts: Counts
) -> AsyncGenerator[bytes, None]:
    """The blocks of the prompt of ``request`` from its first ``start`` tokens on, both in whole pages, at least two
    apart; states travel in this form.

    Raises what ``source`` raises, and Unavailable if its cache is too small; before the first block, nothing has been
    sent.
    """
    prompt, page_size = request.prompt_ids, layout.page_size
    last = len(prompt) - page_size
    activation = source.activation or "float32"
    done = start
    for end in part_ends(start, last, page_size):
        began = time.monotonic()
        read = await computed(source, request, done, end, counts)
        seconds = time.monotonic() - began
        if done == start:
            opened = {"type": "opened", "version": VERSION, "start": start, "tokens": len(prompt)}
            yield block({**opened, **layout.description()})
        first = first_pages(layout, done, last, is_first=done == start)
        data, states = await asyncio.to_thread(wire_pages, layout, read, activation, first, end)
        fields = {"type": "pages", "start": done, "tokens": end - done, "first": first, "seconds": round(seconds, 4)}
        yield block(fields, data)
        if end == last and layout.states:
            content, dtype = await asyncio.to_thread(pack_states, layout.states, states, form)
            yield block({"type": "states", "tokens": end, "dtype": dtype}, content)
        done = end
    yield block({"type": "end", "tokens": len(prompt), "cached_tokens": max(0, len(prompt) - counts.computed_tokens)})


def part_ends(start: int, last: int, page_size: int) -> Iterator[int]:
    """The numbers of tokens after which pages are sent; ``last`` is the start of the last page."""
    end = start + page_size
    while end < last:
        yield end
        end += PART_TOKENS
    yield last
    yield last + page_size


def first_pages(layout: KvLayout, done: int, last: int, *, is_first: bool) -> list[int]:
    """By group, the first page that is sent after ``done`` tokens: of a window, only pages that the last page reads.
    The first block has all, because the client compares it with what it has computed.
    """
    page, size = done // layout.page_size, layout.page_size
    return [page if is_first else max(page, group.dead(last, size)) for group in layout.groups]


def wire_pages(
    layout: KvLayout, read: RetainedPages, activation: str, first: Sequence[int], end: int
) -> tuple[bytes, bytes]:
    """The pages of each group from ``first`` on as they travel, and the states as they were read."""
    groups, states = layout.split(read.data, activation, read.dead_pages, end)
    parts = []
    for group, data, page, dead in zip(layout.groups, groups, first, read.dead_pages, strict=True):
        assert page >= min(dead, end // layout.page_size), "the cache has the pages that later tokens read"
        skipped = max(0, page - dead) * layout.page_bytes(group, activation)
        parts.append(layout.wire_pages(group, data[skipped:], activation))
    return b"".join(parts), states


async def computed(source: ReadableSource, request: TokenRequest, done: int, end: int, counts: Counts) -> RetainedPages:
    """What the cache has of the first ``end`` tokens of a prompt, which are computed first; ``done`` were before."""
    prompt = request.prompt_ids
    # One token more: only what precedes the last token of a prompt is sure to be in the cache, and so is its state.
    ids = [*prompt[:end], prompt[min(end, len(prompt) - 1)]]
    held = 0
    for _ in range(ATTEMPTS):
        async with aclosing(source.generate(replace(request, prompt_ids=ids, max_tokens=1))) as items:
            async for item in items:
                if isinstance(item, AnswerEnd):
                    # One token more of the last part may be cached.
                    known = done if item.cached_tokens == done + 1 else item.cached_tokens
                    counts.computed_tokens += end - min(end, known)
                    counts.queue_seconds = item.queue_seconds if counts.queue_seconds is None else counts.queue_seconds
        read = await source.read_prefix(prompt[:end], request.adapter)
        held = len(read.token_ids)
        if held == end:
            return read
    raise Unavailable(
        f"the cache kept {held} of {end} tokens of the prompt, because other requests need it; try again later, or "
        "compute the prompt on the client"
    )


def block(fields: dict[str, Any], content: bytes = b"") -> bytes:
    """A frame whose header also has the hash of its content."""
    return frame({**fields, "sha256": sha256(content).hexdigest()}, content) + content
