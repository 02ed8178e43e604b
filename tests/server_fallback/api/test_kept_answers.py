"""Streams with an Idempotency-Key: they go on without a reader, and a later request reads the rest."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from asgi import HI, Held, ask_app, run
from fake_models import FakeExecutor, FakeModels
from fastapi import FastAPI

from nearfar.compiler.runtime.errors import DeviceError, QueueFull
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.kept_answers import KeptAnswer, KeptAnswers, KeptWriter
from nearfar.server_fallback.api.keys import ApiKey, Keys
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest

CHAT = "/v1/chat/completions"
STREAM: dict[str, Any] = {**HI, "stream": True}
NAMED = {"idempotency-key": "one"}


@dataclass
class Stepped(FakeExecutor):
    """Says a piece for each step that the test lets it take."""

    steps: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    waiting: int = 0

    def go(self, steps: int = 99) -> None:
        for _ in range(steps):
            self.steps.release()

    async def _said(self, request: ChatCompletionRequest | CompletionRequest, call: Call) -> AsyncGenerator[str, None]:
        async for piece in super()._said(request, call):
            self.waiting += 1
            await self.steps.acquire()
            self.waiting -= 1
            yield piece


@dataclass
class Kept:
    fake: Stepped
    app: FastAPI

    @classmethod
    def of(cls, config: ApiConfig | None = None, **fake: Any) -> Kept:
        executor = Stepped(**fake)
        return cls(executor, create_app(FakeModels(executor), config or ApiConfig()))

    def open(self, **headers: str) -> Held:
        return Held(self.app, CHAT, STREAM, NAMED | {name.replace("_", "-"): value for name, value in headers.items()})

    async def ask(self, body: Any = STREAM, path: str = CHAT, /, **headers: str | None) -> httpx.Response:
        """``headers`` that are None are not sent."""
        given = {"idempotency_key": "one", **headers}
        sent = {name: value for name, value in given.items() if value is not None}
        return await ask_app(self.app, "POST", path, body, **sent)

    async def left(self, held: Held) -> None:
        held.go()
        await held.task

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await asyncio.sleep(0)


def checked(work: Callable[[], Awaitable[None]]) -> None:
    async def with_its_tasks() -> None:
        await work()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

    run(with_its_tasks())


async def body_of(held: Held, events: int) -> bytes:
    """The first events of an answer."""
    await held.sent.get()
    body = b""
    while body.count(b"\n\n") < events:
        body += (await held.sent.get())["body"]
    return body


def numbers(body: bytes) -> list[int]:
    return [int(line[4:]) for line in body.split(b"\n") if line.startswith(b"id: ")]


def unnumbered(body: bytes) -> bytes:
    return b"\n".join(line for line in body.split(b"\n") if not line.startswith(b"id: "))


def test_a_broken_connection_is_continued_without_another_answer() -> None:
    async def work() -> None:
        kept = Kept.of()
        kept.fake.go()
        whole = (await ask_app(kept.app, "POST", CHAT, STREAM)).content
        kept = Kept.of()
        first = kept.open()
        kept.fake.go(1)
        begun = await body_of(first, 2)
        await kept.left(first)
        assert kept.fake.open == 1
        # It goes on while nobody reads it.
        kept.fake.go()
        await kept.until(lambda: kept.fake.open == 0)
        last = numbers(begun)[-1]
        rest = await kept.ask(last_event_id=str(last))
        assert numbers(begun + rest.content) == list(range(1, whole.count(b"\n\n") + 1))
        assert unnumbered(begun + rest.content) == whole
        assert rest.headers["content-type"] == "text/event-stream; charset=utf-8"
        # Again, and from the beginning.
        assert (await kept.ask(last_event_id=str(last))).content == rest.content
        assert unnumbered((await kept.ask()).content) == whole
        assert len(kept.fake.requests) == 1

    checked(work)


def test_events_are_written_one_by_one_like_those_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that has to wait for room would put several texts into an event."""
    rooms = list[bool]()
    add = KeptAnswers.add

    def add_in_room(kept: KeptAnswers, answer: KeptAnswer, body: bytes) -> None:
        rooms.append(KeptWriter(kept, answer).has_room)
        add(kept, answer, body)

    async def work() -> None:
        monkeypatch.setattr(KeptAnswers, "add", add_in_room)
        kept = Kept.of(pieces=[*"abcdefgh"])
        kept.fake.go()
        sent = await kept.ask()
        assert rooms == [True] * sent.text.count("data: ")

    checked(work)


def test_several_readers_follow_one_answer() -> None:
    async def work() -> None:
        kept = Kept.of()
        readers = [kept.open(), kept.open(), kept.open()]
        kept.fake.go(1)
        assert len({await body_of(reader, 2) for reader in readers}) == 1
        await kept.left(readers[0])
        kept.fake.go()
        for reader in readers[1:]:
            await reader.task
        assert (len(kept.fake.requests), kept.fake.cancelled) == (1, 0)

    checked(work)


def test_an_answer_that_nobody_reads_is_ended_after_its_time() -> None:
    async def work() -> None:
        kept = Kept.of(ApiConfig(keep_seconds=0.001))
        first = kept.open()
        kept.fake.go(1)
        await body_of(first, 2)
        await kept.left(first)
        await kept.until(lambda: kept.fake.cancelled == 1)
        gone = await kept.ask(last_event_id="1")
        assert (gone.status_code, gone.json()["error"]["code"]) == (409, "answer_not_kept")

    checked(work)


def test_a_client_that_leaves_before_the_first_event_ends_its_answer() -> None:
    async def work() -> None:
        kept = Kept.of()
        first = kept.open()
        await kept.until(lambda: kept.fake.open == 1)
        await kept.left(first)
        await kept.until(lambda: kept.fake.cancelled == 1)
        kept.fake.go()
        assert (await kept.ask()).status_code == 200
        assert len(kept.fake.requests) == 2

    checked(work)


def test_an_answer_is_cancelled_by_its_key() -> None:
    async def work() -> None:
        kept = Kept.of()
        first = kept.open()
        kept.fake.go(1)
        await body_of(first, 2)
        assert (await kept.ask(None, "/v1/cancel")).status_code == 204
        await first.task
        assert kept.fake.cancelled == 1
        # Its end is no end of an answer.
        assert not first.sent.get_nowait()["more_body"]
        for key in ("one", "other"):
            assert (await kept.ask(None, "/v1/cancel", idempotency_key=key)).status_code == 404
        assert (await kept.ask(None, "/v1/cancel", idempotency_key=None)).json()["error"]["code"] == "invalid_header"

    checked(work)


def test_a_failed_answer_is_computed_again() -> None:
    async def work() -> None:
        early = Kept.of(error=QueueFull("full"))
        early.fake.go()
        assert [(await early.ask()).status_code for _ in range(2)] == [429, 429]
        late = Kept.of(error=DeviceError("lost"), error_at=1)
        late.fake.go()
        answers = [await late.ask() for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert all(b'"code":"device_error"' in answer.content for answer in answers)
        assert [len(each.fake.requests) for each in (early, late)] == [2, 2]

    checked(work)


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        ({**STREAM, "seed": 5}, {}, 409, "idempotency_key_reused"),
        (STREAM, {"idempotency_key": "two words"}, 400, "invalid_header"),
        (STREAM, {"idempotency_key": "x" * 257}, 400, "invalid_header"),
        (STREAM, {"idempotency_key": "other", "last_event_id": "1"}, 409, "answer_not_kept"),
        (STREAM, {"idempotency_key": "other", "last_event_id": "0"}, 409, "answer_not_kept"),
        (STREAM, {"last_event_id": "99"}, 400, "invalid_header"),
        (STREAM, {"last_event_id": "-1"}, 400, "invalid_header"),
        (STREAM, {"idempotency_key": None, "last_event_id": "1"}, 400, "invalid_header"),
    ],
)
def test_what_cannot_be_continued_is_refused(body: Any, headers: dict[str, str | None], status: int, code: str) -> None:
    async def work() -> None:
        kept = Kept.of()
        kept.fake.go()
        await kept.ask()
        refused = await kept.ask(body, **headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
        assert len(kept.fake.requests) == 1

    checked(work)


def test_another_client_does_not_read_an_answer_and_it_counts_until_its_end() -> None:
    digest = {name: hashlib.sha256(f"key-of-{name}".encode()).digest() for name in "ab"}
    keys = Keys((ApiKey("a", digest["a"], max_concurrent=2), ApiKey("b", digest["b"])))

    async def work() -> None:
        kept = Kept.of(ApiConfig(keys=keys))
        a, b = ({"authorization": f"Bearer key-of-{name}"} for name in "ab")
        first = kept.open(**a)
        kept.fake.go(1)
        await body_of(first, 2)
        await kept.left(first)
        other = await kept.ask(last_event_id="1", **b)
        assert other.json()["error"]["code"] == "answer_not_kept"
        two = kept.open(idempotency_key="two", **a)
        # One step for each: the first answer is still going on.
        await kept.until(lambda: kept.fake.waiting == 2)
        kept.fake.go(2)
        await body_of(two, 2)
        await kept.left(two)
        second = await kept.ask(idempotency_key="three", **a)
        assert second.json()["error"]["code"] == "concurrency_limit_exceeded"
        assert (await kept.ask(None, "/v1/cancel", idempotency_key="two", **b)).status_code == 404
        kept.fake.go()
        await kept.until(lambda: kept.app.state.service.limits.running == 0)
        assert (await kept.ask(last_event_id="1", **a)).status_code == 200

    checked(work)


def test_answers_that_ended_make_room_for_others_and_a_drain_ends_what_nobody_reads() -> None:
    async def work() -> None:
        kept = Kept.of()
        service = kept.app.state.service
        kept.fake.go(1000)
        await kept.ask()
        service.kept._max_bytes = 3 * service.kept._size // 2
        await kept.ask(idempotency_key="two")
        found = [await kept.ask(idempotency_key=key, last_event_id="1") for key in ("one", "two")]
        assert [each.status_code for each in found] == [409, 200]
        kept.fake.steps = asyncio.Semaphore(1)
        unread = kept.open(idempotency_key="three")
        await body_of(unread, 2)
        await kept.left(unread)
        await service.drain.finish(60.0)
        assert (kept.fake.open, kept.fake.cancelled) == (0, 1)

    checked(work)


def test_a_client_without_room_loses_its_own_answers_and_not_those_of_others() -> None:
    keys = Keys(tuple(ApiKey(name, hashlib.sha256(f"key-of-{name}".encode()).digest()) for name in "ab"))

    async def work() -> None:
        kept = Kept.of(ApiConfig(keys=keys))
        service = kept.app.state.service
        a, b = ({"authorization": f"Bearer key-of-{name}"} for name in "ab")
        kept.fake.go(1000)
        await kept.ask(idempotency_key="b1", **b)
        service.kept._max_bytes = 7 * service.kept._size // 2
        for number in range(1, 6):
            await kept.ask(idempotency_key=f"a{number}", **a)

        async def statuses(who: dict[str, str], *names: str) -> list[int]:
            found = [await kept.ask(idempotency_key=name, last_event_id="0", **who) for name in names]
            return [each.status_code for each in found]

        assert await statuses(b, "b1") == [200]
        assert await statuses(a, "a1", "a2", "a3", "a4", "a5") == [409, 409, 409, 200, 200]
        assert len(kept.fake.requests) == 6

    checked(work)


def test_answers_that_are_read_go_on_without_room_but_are_not_kept() -> None:
    async def work() -> None:
        kept = Kept.of(pieces=["x"] * 20)
        service = kept.app.state.service
        one = kept.open()
        kept.fake.go(1)
        begun = await body_of(one, 2)
        service.kept._max_bytes = service.kept._size
        two = kept.open(idempotency_key="two")
        await kept.until(lambda: kept.fake.waiting == 2)
        kept.fake.go(2)
        await body_of(two, 2)
        # The oldest makes room.
        assert (await kept.ask(last_event_id="1")).json()["error"]["code"] == "answer_not_kept"
        kept.fake.go()
        await one.task
        begun += b"".join([one.sent.get_nowait()["body"] for _ in range(one.sent.qsize())])
        assert numbers(begun) == list(range(1, 24))
        assert begun.endswith(b"data: [DONE]\n\n")
        await two.task
        assert (kept.fake.open, kept.fake.cancelled) == (0, 0)

    checked(work)


def test_without_room_a_slow_reader_slows_its_answer() -> None:
    async def work() -> None:
        kept = Kept.of(pieces=["x"] * 50)
        kept.app.state.service.kept._max_bytes = 0
        one = kept.open()
        one.sent._maxsize = 1  # type: ignore[attr-defined]
        kept.fake.go(50)
        await kept.until(one.sent.full)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert kept.fake.steps._value > 40
        begun = await body_of(one, 53)
        await one.task
        assert numbers(begun) == list(range(1, 54))
        assert kept.fake.cancelled == 0

    checked(work)


def test_an_answer_whose_reader_leaves_during_a_drain_is_ended() -> None:
    async def work() -> None:
        kept = Kept.of()
        one = kept.open()
        kept.fake.go(1)
        await body_of(one, 2)
        kept.app.state.service.kept.close()
        await kept.left(one)
        await kept.until(lambda: kept.fake.cancelled == 1)

    checked(work)


def test_without_a_key_a_client_that_leaves_ends_its_answer() -> None:
    async def work() -> None:
        kept = Kept.of()
        first = Held(kept.app, CHAT, STREAM)
        kept.fake.go(1)
        assert not numbers(await body_of(first, 2))
        await kept.left(first)
        assert kept.fake.cancelled == 1
        assert json.loads((await ask_app(kept.app, "POST", "/v1/cancel")).content)["error"]["code"] == "invalid_header"

    checked(work)
