"""Kept answers of several front ends: the main process knows which one keeps an answer, and relays its events to the
others.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..api.drain import ClientGone, disconnected
from ..api.kept_answers import Asked, Claim, Following, KeptAnswers, Name
from ..processes.connection import Connection, WithParts
from .messages import Disown, EndAnswer

# The first part of a rest: its answer is kept, but may not have a status yet.
KEPT: Message = {"type": "kept"}


class SharedAnswers:
    """Implements `KeptElsewhere`."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._numbers = itertools.count()

    async def claim(self, name: Name) -> Claim | None:
        claim = Claim(name, next(self._numbers))
        try:
            return claim if await self._link.call(claim) else None
        except BaseException:
            # The main process may have granted it to a request that was cancelled before it knew.
            self.release(claim)
            raise

    def release(self, claim: Claim) -> None:
        self._link.send(Disown(claim))

    async def follow(self, asked: Asked, held: AsyncExitStack) -> Response | None:
        relayed = Relayed(self._link, asked)
        held.callback(relayed.leave)
        return relayed if await relayed.is_kept() else None

    async def end(self, name: Name) -> bool:
        ended: bool = await self._link.call(EndAnswer(name))
        return ended


class Relayed(Response):
    """The rest of an answer that another front end keeps. What its client has not read yet stays here: at most all of
    it. Raises Unavailable if that front end ends.
    """

    def __init__(self, link: Connection, asked: Asked) -> None:
        super().__init__()
        self._messages = asyncio.Queue[Message | None]()
        self._call = asyncio.ensure_future(link.call(asked, cancels=True, on_part=self._messages.put_nowait))
        self._call.add_done_callback(lambda _: self._messages.put_nowait(None))

    def leave(self) -> None:
        self._call.cancel()

    async def is_kept(self) -> bool:
        """Raises the errors of `KeptAnswers.follow`."""
        is_kept = await self._messages.get() is not None
        if not is_kept:
            self._call.result()
        return is_kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        gone = asyncio.create_task(disconnected(receive))
        gone.add_done_callback(lambda _: self.leave())
        try:
            while (message := await self._messages.get()) is not None:
                await send(message)
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        if self._call.cancelled():
            raise ClientGone
        self._call.result()


def followed(kept: KeptAnswers, asked: Asked) -> WithParts | None:
    """What the front end that keeps an answer returns for another one. Raises the errors of `KeptAnswers.follow`."""
    following = kept.follow(asked)
    return None if following is None else WithParts(partial(_relay, following))


async def _relay(following: Following, part: Callable[[Message], None]) -> None:
    """Cancelled when the client of the other front end leaves."""

    async def send(message: Message) -> None:
        part(message)

    async def connected() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")

    part(KEPT)
    await following({"type": "http"}, connected, send)
