"""The main process's view of a front end: starts its process, answers its calls, and restarts it after a crash."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from nearfar.compiler.runtime.audio.transcribe import Transcript
from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from ..api.kept_answers import Asked, Claim, Name
from ..api.limiter import Admission, Limiter
from ..api.metrics import SHARED_FOLDER
from ..api.stored_responses import OwnResponses
from ..executors.executor import ModelChange, SleepRequest, WakeRequest
from ..log_event import log_event
from ..processes.child import Child
from ..processes.connection import WithParts
from ..processes.frames import Ask
from ..processes.supervisor import Restarts, supervise
from ..schema.models import LoadAdapterRequest, LoadRequest, UnloadAdapterRequest, UnloadRequest
from .messages import (
    Admit,
    Beating,
    Begin,
    Configure,
    Disown,
    EndAnswer,
    Leave,
    Publish,
    Release,
    ReserveTokens,
    TakeAnswers,
    TakeBody,
    TakeTokens,
    Transcribe,
)
from .shared_responses import ResponsesOfFrontEnd

MAIN = "from nearfar.server_fallback.front_ends.front_end import main; main()"
RESTARTS = Restarts(first_seconds=0.5, longest_seconds=0.5)
# The time in which a process ends whose connection has ended.
ENDED_SECONDS = 5.0
ENDED = "the front end has ended"


class FrontEndProcess:
    """``latest`` returns the models and ``configuration`` the rest, ``change`` carries out the changes that clients
    request, and ``transcribe`` has a model of sound transcribe. ``owners`` and ``responses`` are those of all front
    ends. Belongs to the running event loop.
    """

    def __init__(
        self,
        listener: socket.socket,
        configuration: Callable[[], Configure],
        limiter: Limiter,
        owners: Owners,
        responses: OwnResponses,
        metrics_folder: str,
        latest: Callable[[], Publish],
        change: Callable[[ModelChange], Coroutine[Any, Any, object]],
        transcribe: Callable[[Transcribe, Callable[[str], None]], Coroutine[Any, Any, Transcript]],
    ) -> None:
        self._configuration, self._latest, self._change, self._transcribe = configuration, latest, change, transcribe
        self._requests, self._owners = HeldRequests(limiter), owners
        self._responses = ResponsesOfFrontEnd(responses)
        environment = {**os.environ, SHARED_FOLDER: metrics_folder}
        self._child = Child(MAIN, self._receive, self._on_end, [listener], environment)
        self._supervision: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the process, which is started again after a crash."""
        await self._start(again=False)
        self._supervision = asyncio.ensure_future(supervise(self, RESTARTS))

    @property
    def _hang_seconds(self) -> float:
        return self._configuration().config.hang_seconds

    async def call(self, message: Publish | Configure | Leave) -> None:
        """Return when the front end has done it, or has ended. One that starts again begins with what holds then."""
        if self._child.connection is not None:
            with suppress(Unavailable):
                await self._child.connection.call(message, cancels=isinstance(message, Leave))

    async def ask(self, message: Asked | EndAnswer, on_part: Callable[[Any], None] | None = None) -> Any:
        """The result of a message about an answer that the front end keeps. Raises Unavailable if it ends."""
        if self._child.connection is None:
            raise Unavailable(ENDED)
        return await self._child.connection.call(message, cancels=True, on_part=on_part)

    def stop(self, number: int) -> None:
        """Send a signal, after which the process is not started again."""
        if self._supervision is not None:
            self._supervision.cancel()
        self._child.send_signal(number)

    async def stopped(self) -> None:
        """Wait until the process has ended after `stop`."""
        await self._child.ended()
        await self._child.end(ENDED_SECONDS)

    # --- the process ---

    async def start(self) -> None:
        await self._start(again=True)

    async def ended(self) -> str:
        await self._child.ended()
        return ENDED

    async def failed(self, reason: str, failures: int, wait_seconds: float | None) -> None:  # noqa: ARG002
        status = await self._child.end(ENDED_SECONDS)
        log_event("front_end_ended", logging.ERROR, front_end=self._child.pid, status=status)

    async def _start(self, *, again: bool) -> None:
        connection = await self._child.start()
        connection.send(Begin(self._configuration(), again))
        connection.send(self._latest())
        connection.beat(self._hang_seconds)

    def _receive(self, message: object) -> object:
        match message:
            case Admit() | TakeAnswers() | TakeBody() | ReserveTokens():
                return dict(self._requests.take(message))
            case TakeTokens():
                self._requests.take_tokens(message)
            case Release():
                self._requests.release(message)
            case LoadRequest() | UnloadRequest() | LoadAdapterRequest() | UnloadAdapterRequest():
                return self._change(message)
            case SleepRequest() | WakeRequest():
                return self._change(message)
            case Transcribe():
                return WithParts(partial(self._transcribe, message))
            case Claim():
                return self._owners.claim(self, message)
            case Disown(claim):
                self._owners.release(self, claim)
            case Asked():
                owner = self._owners.of(message.name)
                return None if owner is None else WithParts(partial(owner.ask, message))
            case EndAnswer():
                owner = self._owners.of(message.name)
                return False if owner is None else owner.ask(message)
            case Ask():
                return self._responses.answer(message)
            case Beating():
                assert self._child.connection is not None
                self._child.connection.watch(self._hang_seconds, self._on_hang)
            case _:
                raise TypeError(f"the main process does not know the message {message!r}")
        return None

    def _on_hang(self) -> None:
        """End the process, after which it is started again."""
        log_event("front_end_hung", logging.ERROR, front_end=self._child.pid, seconds=self._hang_seconds)
        self._child.kill()

    def _on_end(self) -> NearfarError:
        """The process has ended: as requested, or by a crash."""
        self._requests.release_all()
        self._owners.release_all(self)
        self._responses.fail_running(ENDED)
        return Unavailable(ENDED)


class Owners:
    """Which front end keeps the answer of a name, for the main process."""

    def __init__(self) -> None:
        self._claims: dict[Name, tuple[FrontEndProcess, Claim]] = {}

    def claim(self, front_end: FrontEndProcess, claim: Claim) -> bool:
        """False if any process has claimed the name."""
        granted = front_end, claim
        return self._claims.setdefault(claim.name, granted) is granted

    def of(self, name: Name) -> FrontEndProcess | None:
        owner, _ = self._claims.get(name, (None, None))
        return owner

    def release(self, front_end: FrontEndProcess, claim: Claim) -> None:
        """A claim that was refused is nobody's."""
        if self._claims.get(claim.name) == (front_end, claim):
            del self._claims[claim.name]

    def release_all(self, front_end: FrontEndProcess) -> None:
        """The front end has ended."""
        self._claims = {name: each for name, each in self._claims.items() if each[0] is not front_end}


class HeldRequests:
    """The admitted requests of one front end, for the main process. ``limiter`` is that of all front ends."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._held: dict[int, tuple[Admission, ExitStack]] = {}

    def take(self, message: Admit | TakeAnswers | TakeBody | ReserveTokens) -> Mapping[str, str]:
        """The headers of the admission. Raises ApiError as `Limiter.admit` and the methods of `Admission` do."""
        if isinstance(message, Admit):
            stack = ExitStack()
            admission = stack.enter_context(self._limiter.admit(message.client, message.key))
            self._held[message.request] = admission, stack
            return admission.headers
        admission, _ = self._held[message.request]
        if isinstance(message, TakeAnswers):
            admission.answers(message.count, message.capacity, message.param)
        elif isinstance(message, TakeBody):
            admission.body(message.size)
        else:
            admission.reserve(message.tokens)
        return admission.headers

    def take_tokens(self, message: TakeTokens) -> None:
        """Of a request that a front end held before it ended, nothing counts any more."""
        held = self._held.get(message.request)
        if held is not None:
            held[0].tokens(message.count)

    def release(self, message: Release) -> None:
        """A request that was never admitted is not held."""
        _, stack = self._held.pop(message.request, (None, ExitStack()))
        stack.close()

    def release_all(self) -> None:
        """The front end has ended."""
        held, self._held = self._held, {}
        for _, stack in held.values():
            stack.close()
