"""KeptAnswers: streams that go on while nobody reads them, so that a client whose connection broke reads the rest.

A client names a streamed request by the header Idempotency-Key. Its events are numbered then (``id``, as in the HTML
standard), and the same request with the same key and the number of the last event that arrived (Last-Event-ID) receives
the events after that one, instead of another answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .drain import ClientGone, disconnected
from .errors import ApiError, is_panic
from .exchange import Exchange
from .sse import EXTENSION, EventForm, EventStream

if TYPE_CHECKING:
    from collections.abc import Hashable

KEY_HEADER, LAST_HEADER = "Idempotency-Key", "Last-Event-ID"
KEY = re.compile(r"[\x21-\x7e]{1,256}")
NUMBER = re.compile(r"\d{1,9}")
END_OF_EVENT = b"\n\n"
# Of all answers. An event of OpenAI's API has about 250 bytes.
MAX_BYTES = 64 << 20
# What an answer takes beside its events.
OVERHEAD_BYTES = 4 << 10
# Instead of the digest of a request, for an answer that `KeptAnswers.begin` began: its name is its own.
LASTING = b"lasting"


@dataclass(frozen=True, slots=True)
class Name:
    """A key counts for one client, so that no other one reads the answer."""

    client: str
    key: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request with a key asks for: the events after number ``last`` of the answer to the request of this
    ``digest``. None: all of them, or an answer that begins.
    """

    name: Name
    digest: bytes
    last: int | None


@dataclass(frozen=True, slots=True)
class Claim:
    """One process at a time keeps the answer of a name. ``number`` is another one for each claim of a process."""

    name: Name
    number: int


class KeptElsewhere(Protocol):
    """The answers that other processes of this server keep."""

    async def claim(self, name: Name) -> Claim | None:
        """The name is this process's until `release`. None if it is claimed already."""

    def release(self, claim: Claim) -> None: ...

    async def follow(self, asked: Asked, held: AsyncExitStack) -> Response | None:
        """As `KeptAnswers.follow`. ``held`` ends the response, also one that is not sent."""

    async def end(self, name: Name) -> bool:
        """As `KeptAnswers.end`."""


@dataclass(eq=False, slots=True)
class KeptAnswer:
    """``digest`` is that of the request. ``claim`` is there if other processes keep answers. ``parts`` are events and
    comments, ``places`` where those after each event begin, and ``readers`` have the place that each has reached.
    ``is_read``: a reader has received its status. ``is_whole``: no part was dropped. ``is_complete``: it has ended
    without an error. ``lasting``: it goes on to its end, whoever reads it. ``abandoned`` ends the answer as if its
    client had left; ``changed`` is set, and replaced, at each change.
    """

    name: Name
    digest: bytes
    form: EventForm
    claim: Claim | None = None
    parts: list[bytes] = field(default_factory=list)
    places: list[int] = field(default_factory=lambda: [0])
    size: int = OVERHEAD_BYTES
    head: Message | None = None
    ended: bool = False
    error: BaseException | None = None
    readers: dict[Hashable, int] = field(default_factory=dict)
    is_read: bool = False
    is_whole: bool = True
    is_complete: bool = False
    lasting: bool = False
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def is_unread(self) -> bool:
        """It has begun, and its readers have left."""
        return self.task is not None and not self.readers

    def add(self, body: bytes) -> int:
        """Whole events and comments. Returns their size."""
        before = self.size
        for event in body.split(END_OF_EVENT)[:-1]:
            event += END_OF_EVENT
            is_comment = event == self.form.comment
            part = event if is_comment else b"id: %d\n%b" % (len(self.places), event)
            self.parts.append(part)
            self.size += len(part)
            if not is_comment:
                self.places.append(len(self.parts))
        return self.size - before

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def received(self) -> None:
        """Return when the readers have all parts, which are dropped then: as without a key, a slow reader slows its
        answer.
        """
        while any(place < len(self.parts) for place in self.readers.values()):
            await self.changed.wait()
        self.is_whole = False
        self.parts.clear()
        self.readers = dict.fromkeys(self.readers, 0)

    async def leave(self) -> Message:
        """What the answer receives: a disconnection once it is abandoned."""
        await self.abandoned.wait()
        return {"type": "http.disconnect"}


class KeptAnswers:
    """``seconds``: how long an answer goes on, and is kept, after its last reader has left. ``max_bytes``: of all
    answers; see `_make_room`. ``elsewhere`` is there if other processes of this server keep answers.
    """

    def __init__(self, seconds: float, max_bytes: int = MAX_BYTES, elsewhere: KeptElsewhere | None = None) -> None:
        self._seconds, self._max_bytes, self._elsewhere = seconds, max_bytes, elsewhere
        self._answers: dict[Name, KeptAnswer] = {}
        self._size = 0
        self._is_closed = False

    async def find(self, headers: Headers, exchange: Exchange, body: BaseModel) -> Response | None:
        """The rest of an answer that is kept; None for a request without a key, or one whose answer begins now.

        Raises ApiError for wrong headers, the key of another request, and an answer that is not kept any more.
        """
        key, last = headers.get(KEY_HEADER), headers.get(LAST_HEADER)
        if key is None:
            if last is None:
                return None
            # A client that continues a stream must not get a new answer from its start.
            message = f"{LAST_HEADER} continues a stream; send the {KEY_HEADER} of its request, too"
            raise ApiError(400, message, "invalid_header")
        if KEY.fullmatch(key) is None:
            raise ApiError(400, f"{KEY_HEADER} must have 1 to 256 visible ASCII characters", "invalid_header")
        if NUMBER.fullmatch(last or "0") is None:
            raise ApiError(400, f"{LAST_HEADER} must be the number of an event", "invalid_header")
        asked = Asked(Name(exchange.client, key), digest_of(body), None if last is None else int(last))
        rest: Response | None = self.follow(asked)
        if rest is None and self._elsewhere is not None:
            rest = await self._elsewhere.follow(asked, exchange.held)
        # Also for 0: all events of a stream that has begun, and no other one.
        if rest is None and last is not None:
            raise not_kept()
        return rest

    def follow(self, asked: Asked) -> Following | None:
        """The rest of an answer that this process keeps; None if it does not. Raises ApiError for the key of another
        request, and an event that the answer does not have.
        """
        answer, after = self._answers.get(asked.name), asked.last or 0
        if answer is None:
            return None
        if answer.digest != asked.digest:
            message = f"this {KEY_HEADER} names another request; use a new key for each request"
            raise ApiError(409, message, "idempotency_key_reused")
        if after >= len(answer.places):
            message = f"{LAST_HEADER} is {after}, and this answer has {len(answer.places) - 1} events so far"
            raise ApiError(400, message, "invalid_header")
        return Following(self, answer, answer.places[after])

    async def keep(
        self, headers: Headers, exchange: Exchange, body: BaseModel, stream: EventStream[Any], form: EventForm
    ) -> Response:
        """The response to a streamed request: ``stream`` itself if the request has no key."""
        key, claim = headers.get(KEY_HEADER), None
        if key is None:
            return stream
        name = Name(exchange.client, key)
        while claim is None:
            # Another request with this key may have begun meanwhile.
            begun = await self.find(headers, exchange, body)
            if begun is not None:
                return begun
            if self._elsewhere is None:
                break
            claim = await self._elsewhere.claim(name)
        answer = self._answers[name] = KeptAnswer(name, digest_of(body), form, claim)
        self._size += answer.size
        return Following(self, answer, 0, Beginning(stream, exchange))

    async def begin(
        self, name: Name, exchange: Exchange, stream: EventStream[Any], form: EventForm, scope: Scope
    ) -> Following:
        """Begin an answer that goes on without readers until its end or that of its request's time. ``name`` is new.
        The response need not be sent.
        """
        claim = None if self._elsewhere is None else await self._elsewhere.claim(name)
        answer = self._answers[name] = KeptAnswer(name, LASTING, form, claim, lasting=True)
        self._size += answer.size
        answer.task = asyncio.create_task(self.run(answer, stream, scope, exchange.held.pop_all()))
        return Following(self, answer, 0)

    async def reader(self, name: Name, last: int, held: AsyncExitStack) -> Response | None:
        """The events after number ``last`` of an answer that `begin` began, here or in another process; None if it is
        not kept. Raises ApiError for an event that the answer does not have.
        """
        asked = Asked(name, LASTING, last)
        rest: Response | None = self.follow(asked)
        if rest is None and self._elsewhere is not None:
            rest = await self._elsewhere.follow(asked, held)
        return rest

    async def run(self, answer: KeptAnswer, stream: EventStream[Any], scope: Scope, held: AsyncExitStack) -> None:
        """Generate the answer, whoever reads it. ``held`` is what its request holds until then, such as its place
        among its client's requests.
        """

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.head = message
                answer.change()
            else:
                self.add(answer, message.get("body", b""))
            if not self.has(answer):
                await answer.received()

        # Instead of the connection of the first reader.
        extensions = {**scope.get("extensions", {}), EXTENSION: KeptWriter(self, answer)}
        try:
            async with held:
                await stream({**scope, "extensions": extensions}, answer.leave, send)
        except ClientGone:
            pass
        except BaseException as error:
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            # The status is not sent yet: the readers raise the error.
            answer.error = error
        finally:
            answer.ended, answer.is_complete = True, stream.is_complete
            if not answer.is_complete:
                # The same request computes another answer.
                self.forget(answer)
            elif answer.lasting and not answer.readers:
                self.left(answer)
            answer.change()

    def has(self, answer: KeptAnswer) -> bool:
        return self._answers.get(answer.name) is answer

    def add(self, answer: KeptAnswer, body: bytes) -> None:
        """Add whole events and comments to an answer."""
        added = answer.add(body)
        if self.has(answer):
            self._size += added
            self._make_room()
        answer.change()

    def left(self, answer: KeptAnswer) -> None:
        """The last reader has left. A client that has received nothing does not continue, but asks again."""
        if answer.lasting and not answer.ended and not self._is_closed:
            return
        if not (answer.is_read or answer.lasting) or self._is_closed or not self.has(answer):
            self.forget(answer)
        else:
            answer.timer = asyncio.get_running_loop().call_later(self._seconds, self.forget, answer)

    async def cancel(self, headers: Headers, exchange: Exchange) -> bool:
        """End the answer of a key; False if it is not kept. Raises ApiError without a key."""
        if KEY_HEADER not in headers:
            raise ApiError(400, f"name the stream to end by the header {KEY_HEADER} of its request", "invalid_header")
        return await self.end_anywhere(Name(exchange.client, headers[KEY_HEADER]))

    async def end_anywhere(self, name: Name) -> bool:
        """End an answer of this process or another one; False if none keeps it."""
        return self.end(name) or (self._elsewhere is not None and await self._elsewhere.end(name))

    def end(self, name: Name) -> bool:
        """End an answer of this process; False if it is not kept here."""
        answer = self._answers.get(name)
        if answer is not None:
            self.forget(answer)
        return answer is not None

    def close(self) -> None:
        """End the answers that nobody reads, now and later, because the server stops."""
        self._is_closed = True
        for answer in [each for each in self._answers.values() if each.is_unread]:
            self.forget(answer)

    def forget(self, answer: KeptAnswer) -> None:
        """Keep an answer no longer, and end it."""
        self._let_go(answer)
        if answer.timer is not None:
            answer.timer.cancel()
        answer.abandoned.set()

    def _let_go(self, answer: KeptAnswer) -> None:
        """Keep an answer no longer: it goes on for those who read it."""
        if self.has(answer):
            del self._answers[answer.name]
            self._size -= answer.size
            if self._elsewhere is not None and answer.claim is not None:
                self._elsewhere.release(answer.claim)

    def _make_room(self) -> None:
        """Forget answers of the client with the most bytes, so that no client takes the room of another: its complete
        answers that nobody reads, then others that nobody reads, and at last let go of the others, each time the
        oldest first.
        """
        while self._size > self._max_bytes and self._answers:
            sizes = Counter[str]()
            for each in self._answers.values():
                sizes[each.name.client] += each.size
            [(largest, _)] = sizes.most_common(1)
            own = (each for each in self._answers.values() if each.name.client == largest)
            answer = min(own, key=lambda each: (not each.is_unread, not each.ended))
            if answer.is_unread and not (answer.lasting and not answer.ended):
                self.forget(answer)
            else:
                self._let_go(answer)


@dataclass(frozen=True, slots=True)
class KeptWriter:
    """Writes the events of an answer as the connection of a request without a key does (`PartWriter`): each at once, so
    that they do not wait, and become fewer, while there is room.
    """

    kept: KeptAnswers
    answer: KeptAnswer

    @property
    def has_room(self) -> bool:
        return self.kept.has(self.answer)

    def write_part(self, body: bytes) -> None:
        self.kept.add(self.answer, body)


@dataclass(frozen=True, slots=True)
class Beginning:
    """An answer's own stream, and the exchange whose request it answers."""

    stream: EventStream[Any]
    exchange: Exchange


class Following(Response):
    """The parts of an answer from ``place`` on, and those that it still generates. With ``beginning``, it begins."""

    def __init__(self, kept: KeptAnswers, answer: KeptAnswer, place: int, beginning: Beginning | None = None) -> None:
        super().__init__()
        self._kept, self._answer, self._place, self._beginning = kept, answer, place, beginning

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        if not answer.is_whole:
            raise not_kept()
        answer.readers[self] = self._place
        if answer.timer is not None:
            answer.timer.cancel()
        if self._beginning is not None:
            stream, held = self._beginning.stream, self._beginning.exchange.held.pop_all()
            answer.task = asyncio.create_task(self._kept.run(answer, stream, scope, held))
        gone = asyncio.create_task(disconnected(receive))
        try:
            await self._follow(gone, send)
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            del answer.readers[self]
            answer.change()
            if not answer.readers:
                self._kept.left(answer)

    async def _follow(self, gone: asyncio.Task[None], send: Send) -> None:
        answer, started = self._answer, False
        while True:
            changed, ended = answer.changed, answer.ended
            if answer.head is not None and not started:
                await send(answer.head)
                started = answer.is_read = True
            if answer.readers[self] < len(answer.parts):
                body = b"".join(answer.parts[answer.readers[self] :])
                answer.readers[self] = len(answer.parts)
                answer.change()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            elif ended:
                break
            else:
                waiting = asyncio.create_task(changed.wait())
                await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            if gone.done():
                raise ClientGone
        if answer.error is not None:
            raise answer.error
        if not answer.is_complete and not started:
            raise ClientGone
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def not_kept() -> ApiError:
    message = "this answer is not kept here any more; send the request again with another key"
    return ApiError(409, message, "answer_not_kept")


def digest_of(body: BaseModel) -> bytes:
    return hashlib.sha256(f"{type(body).__name__} {body.model_dump_json()}".encode()).digest()
