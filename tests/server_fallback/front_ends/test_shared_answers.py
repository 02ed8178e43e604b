"""Kept answers of several front ends, whose links are in one process: claims, and readers that leave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from waiting import until

from nearfar.compiler.runtime.errors import Unavailable
from nearfar.server_fallback.api.drain import ClientGone
from nearfar.server_fallback.api.kept_answers import Asked, Claim, KeptAnswer, KeptAnswers, Name
from nearfar.server_fallback.api.sse import OPENAI_EVENTS
from nearfar.server_fallback.front_ends.front_end_process import FrontEndProcess, Owners
from nearfar.server_fallback.front_ends.messages import Disown
from nearfar.server_fallback.front_ends.shared_answers import SharedAnswers, followed
from nearfar.server_fallback.processes.connection import Connection

NAME = Name("address 192.0.2.1", "key")
ASKED = Asked(NAME, b"digest", 1)
HEAD = {"type": "http.response.start", "status": 200, "headers": []}


@asynccontextmanager
async def connected(receive: Any) -> AsyncGenerator[tuple[Connection, Connection]]:
    """A link, and its other end, which answers by ``receive``."""
    ends = (Connection(lambda _: None, lambda: Unavailable("ended")), Connection(receive, lambda: Unavailable("ended")))
    for end, each in zip(ends, socket.socketpair(), strict=True):
        await asyncio.get_running_loop().create_unix_connection(lambda end=end: end, sock=each)  # type: ignore[misc]
    try:
        yield ends
    finally:
        for end in ends:
            await end.close()


def kept_answer() -> tuple[KeptAnswers, KeptAnswer]:
    """An answer that goes on after two events."""
    kept = KeptAnswers(60.0)
    answer = kept._answers[NAME] = KeptAnswer(NAME, b"digest", OPENAI_EVENTS)
    answer.head = HEAD
    kept.add(answer, b"data: a\n\ndata: b\n\n")
    return kept, answer


class Reader:
    def __init__(self) -> None:
        self.has_left = asyncio.Event()
        self.sent = list[Any]()

    async def receive(self) -> dict[str, str]:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)


def test_a_reader_at_another_front_end_that_leaves_is_no_reader_any_more() -> None:
    async def work() -> None:
        kept, answer = kept_answer()
        async with connected(lambda asked: followed(kept, asked)) as (link, _), AsyncExitStack() as held:
            rest = await SharedAnswers(link).follow(ASKED, held)
            assert rest is not None
            reader = Reader()
            reading = asyncio.ensure_future(rest({"type": "http"}, reader.receive, reader.send))
            await until(lambda: len(reader.sent) == 2)
            assert [reader.sent[0], reader.sent[1]["body"]] == [HEAD, b"id: 2\ndata: b\n\n"]
            kept.add(answer, b"data: c\n\n")
            await until(lambda: len(reader.sent) == 3)
            assert len(answer.readers) == 1
            reader.has_left.set()
            with pytest.raises(ClientGone):
                await reading
            await until(lambda: not answer.readers)
            # It is kept for a while.
            assert answer.timer is not None
            answer.timer.cancel()

    asyncio.run(work())


def test_a_response_that_is_not_sent_reads_no_longer_than_its_request() -> None:
    async def work() -> None:
        kept, answer = kept_answer()
        async with connected(lambda asked: followed(kept, asked)) as (link, _):
            async with AsyncExitStack() as held:
                assert await SharedAnswers(link).follow(ASKED, held) is not None
                await until(lambda: len(answer.readers) == 1)
            await until(lambda: not answer.readers)
            kept.forget(answer)

    asyncio.run(work())


def test_the_end_of_the_front_end_that_keeps_an_answer_breaks_the_connections_of_its_readers() -> None:
    async def work() -> None:
        kept, _ = kept_answer()
        async with connected(lambda asked: followed(kept, asked)) as (link, other), AsyncExitStack() as held:
            rest = await SharedAnswers(link).follow(ASKED, held)
            assert rest is not None
            await other.close()
            with pytest.raises(Unavailable):
                await rest({"type": "http"}, Reader().receive, Reader().send)

    asyncio.run(work())


def test_a_request_that_ends_before_its_claim_is_granted_gives_it_back() -> None:
    owners, front_end = Owners(), cast(FrontEndProcess, SimpleNamespace())

    async def work() -> None:
        asked, answer = asyncio.Event(), asyncio.Event()

        async def claim(message: Claim) -> bool:
            granted = owners.claim(front_end, message)
            asked.set()
            await answer.wait()
            return granted

        def receive(message: Claim | Disown) -> Any:
            return owners.release(front_end, message.claim) if isinstance(message, Disown) else claim(message)

        async with connected(receive) as (link, _):
            claiming = asyncio.ensure_future(SharedAnswers(link).claim(NAME))
            await asked.wait()
            assert owners.of(NAME) is front_end
            claiming.cancel()
            await until(lambda: owners.of(NAME) is None)
            answer.set()

    asyncio.run(work())


def test_a_name_belongs_to_one_front_end_until_that_releases_it_or_ends() -> None:
    owners = Owners()
    one, other = (cast(FrontEndProcess, SimpleNamespace(name=name)) for name in ("one", "other"))
    first, second = Claim(NAME, 0), Claim(NAME, 1)
    assert owners.claim(one, first)
    assert not owners.claim(one, second)
    assert not owners.claim(other, first)
    # What was refused, or belongs to another one, is not released.
    owners.release(one, second)
    owners.release(other, first)
    assert owners.of(NAME) is one
    owners.release(one, first)
    assert owners.of(NAME) is None
    assert owners.claim(other, first)
    owners.release_all(one)
    assert owners.of(NAME) is other
    owners.release_all(other)
    assert owners.of(NAME) is None
