"""A session: one server's connection to the process of an engine, with the answers that it requested."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from ..engine.answer import Answer
from ..engine.encoder_engine import EncoderEngine
from ..engine.item_queue import Item
from ..engine.request import AnswerEnd, GeneratedToken
from ..engine.stats import EngineStats
from ..engine.token_engine import TokenEngine
from ..processes.connection import Connection
from ..processes.frames import Ask
from .messages import Abandon, ForgetImages, Generate, Mask, Opened, Stats, Step, TakeBlock
from .remote_masks import RemoteConstraint, RemoteMasks
from .sent_images import ReceivedImages


class Session:
    """``receive`` gets the messages that are not about answers; ``on_end`` is called when the connection has ended.
    Requests may come once `serve` was called.
    """

    def __init__(self, receive: Callable[[Session, object], Any], on_end: Callable[[Session], None]) -> None:
        self.connection = Connection(self._receive, self._on_connection_end)
        self._receive_other, self._on_end = receive, on_end
        self._engine: TokenEngine | EncoderEngine | None = None
        self._masks: RemoteMasks | None = None
        self._answers: dict[int, Answer] = {}
        self._constraints: dict[int, RemoteConstraint] = {}
        self._images = ReceivedImages()
        self._step = Step([], [], [])
        # The answers with other items in this step, which later tokens must not overtake.
        self._with_others = set[int]()
        self._sent_stats: EngineStats | None = None

    def serve(self, engine: TokenEngine | EncoderEngine, masks: RemoteMasks, hang_seconds: float) -> Opened:
        """Accept requests from now on."""
        self._engine, self._masks = engine, masks
        self.send_stats(engine.stats())
        self.connection.beat(hang_seconds, lambda: engine.step_seconds)
        bundle = engine.model.bundle if isinstance(engine, TokenEngine) else ""
        return Opened(engine.context, engine.max_drafts, engine.device, engine.activation, bundle, hang_seconds)

    def send_stats(self, stats: EngineStats) -> None:
        """Send the engine's statistics if they have changed."""
        if self._engine is not None and stats != self._sent_stats:
            self._sent_stats = stats
            self.connection.send(Stats(stats))

    def flush(self) -> None:
        """Send the items that the engine has delivered."""
        step, self._step = self._step, Step([], [], [])
        self._with_others.clear()
        if step.answers or step.others:
            self.connection.send(step)

    # --- messages ---

    def _receive(self, message: object) -> Any:
        match message:
            case Generate():
                self._generate(message)
            case Mask():
                constraint = self._constraints.get(message.answer)
                if constraint is not None:
                    assert self._masks is not None
                    self._masks.returned(constraint, message)
            case Abandon(answer):
                self._abandon(answer)
            case TakeBlock(number):
                self._take_block(number)
            case ForgetImages(names):
                self._images.forget(names)
            case Ask():
                assert self._engine is not None
                return message.of(self._engine)
            case _:
                return self._receive_other(self, message)
        return None

    def _generate(self, message: Generate) -> None:
        assert isinstance(self._engine, TokenEngine)
        request, number = message.request, message.answer
        if request.images:
            request = replace(request, images=self._images.begin(request.images))
        if message.is_constrained:
            constraint = self._constraints[number] = RemoteConstraint(number, self.connection.send)
            request = replace(request, constraint=constraint)
        try:
            self._answers[number] = self._engine.begin(request, partial(self._put, number))
        except NearfarError as error:
            self._put(number, error)

    def _take_block(self, number: int) -> None:
        answer = self._answers.get(number)
        if answer is not None:
            assert isinstance(self._engine, TokenEngine)
            self._engine.take_block(answer)

    def _abandon(self, number: int) -> None:
        answer = self._answers.pop(number, None)
        self._constraints.pop(number, None)
        if answer is not None:
            assert isinstance(self._engine, TokenEngine)
            self._engine.abandon(answer)

    def _on_connection_end(self) -> NearfarError:
        for number in list(self._answers):
            self._abandon(number)
        self._on_end(self)
        return Unavailable("the server has ended")

    # --- items ---

    def _put(self, number: int, item: Item) -> None:
        """All items that the engine delivers in one turn go into one message."""
        step = self._step
        if not step.answers and not step.others:
            asyncio.get_running_loop().call_soon(self.flush)
        if isinstance(item, GeneratedToken) and item.logprob is None and number not in self._with_others:
            step.answers.append(number)
            step.token_ids.append(item.token_id)
        else:
            step.others.append((number, item))
            self._with_others.add(number)
            if isinstance(item, AnswerEnd | BaseException):
                self._answers.pop(number, None)
                self._constraints.pop(number, None)
