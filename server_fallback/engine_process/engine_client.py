"""The requests of a server to an engine in another process: the part that its owner and attached servers share."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import DeviceError, NearfarError, Unavailable

from ..engine.encode_job import EncodeRequest
from ..engine.encoded_prefix import PrefixKey
from ..engine.encoder_engine import EncoderEngine
from ..engine.item_queue import BlockQueue, ItemQueue
from ..engine.page_blocks import BlockWrite, PageBlock
from ..engine.request import AnswerEnd, GeneratedToken, PromptLogprobs, TokenHandler, TokenRequest, items_of
from ..engine.retained_pages import RetainedPages
from ..engine.stats import EngineStats
from ..engine.token_engine import TokenEngine
from ..log_event import log_event
from ..processes.connection import Connection
from ..processes.frames import Ask, ask
from .mask_service import MaskService
from .messages import (
    Abandon,
    Attach,
    ForgetImages,
    Generate,
    Listen,
    Logged,
    MaskTurns,
    Open,
    Opened,
    Stats,
    Step,
    TakeBlock,
)
from .sent_images import SentImages

FAILED = "failed"
Result = TypeVar("Result")


class EngineClient:
    """Belongs to the running event loop. `arrive` and `stats` are callable from any thread.

    A subclass makes a connection with `_receive` and `_lost`, and opens the engine with `_open`, all in `_start`.
    """

    def __init__(self) -> None:
        # None while the engine is not connected.
        self._connection: Connection | None = None
        self._opened: Opened | None = None
        # The reason why requests are refused.
        self._refusal: NearfarError | None = None
        self._closing = False
        # What the process has done when it ends.
        self._fault = FAILED
        self._supervision: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._queues: dict[int, ItemQueue | BlockQueue] = {}
        self._masks = MaskService(self._send)
        self._images = SentImages()
        self._stats = EngineStats()
        self._restarts = 0

    @property
    def context(self) -> int:
        assert self._opened is not None
        return self._opened.context

    @property
    def max_drafts(self) -> int:
        assert self._opened is not None
        return self._opened.max_drafts

    @property
    def device(self) -> str:
        assert self._opened is not None
        return self._opened.device

    @property
    def activation(self) -> str | None:
        assert self._opened is not None
        return self._opened.activation

    @property
    def prefix_key(self) -> PrefixKey:
        """See `TokenEngine.prefix_key`."""
        assert self._opened is not None
        return PrefixKey(self._opened.bundle, self.activation or "", self.device)

    def generate(self, request: TokenRequest) -> AsyncGenerator[PromptLogprobs | GeneratedToken | AnswerEnd, None]:
        """See `TokenEngine.generate`."""
        return items_of(self.batches(request))

    async def batches(
        self, request: TokenRequest, handle: TokenHandler | None = None
    ) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | AnswerEnd], None]:
        """See `TokenEngine.batches`."""
        self._require_open()
        number, queue, constraint = next(self._numbers), ItemQueue(handle), request.constraint
        arrival = self.arrive() if request.arrival is None else request.arrival
        if constraint is not None:
            self._masks.begin(number, constraint)
        self._queues[number] = queue
        # Another process, if this one fails, has none of them.
        sent = self._images
        images = sent.begin(request.images)
        try:
            plain = replace(request, constraint=None, arrival=arrival, images=images)
            self._send(Generate(number, plain, constraint is not None))
            while True:
                items = await queue.next()
                yield items
                if isinstance(items[-1], AnswerEnd):
                    return
        finally:
            self._masks.end(number)
            if self._queues.pop(number, None) is not None:
                self._send(Abandon(number))
            unused = sent.end(request.images)
            if unused and sent is self._images:
                self._send(ForgetImages(unused))

    async def export(self, request: TokenRequest) -> AsyncGenerator[PageBlock | AnswerEnd, None]:
        """See `TokenEngine.export`."""
        self._require_open()
        number, queue = next(self._numbers), BlockQueue()
        self._queues[number] = queue
        try:
            self._send(Generate(number, replace(request, arrival=self.arrive()), is_constrained=False))
            while isinstance(item := await queue.next(), PageBlock):
                yield item
                if item.is_last:
                    self._send(TakeBlock(number))
            yield item
        finally:
            if self._queues.pop(number, None) is not None:
                self._send(Abandon(number))

    async def cached_tokens(self, token_ids: Sequence[int], adapter: str | None = None) -> int:
        """See `TokenEngine.cached_tokens`."""
        return await self._ask(ask(TokenEngine.cached_tokens, token_ids, adapter))

    async def write_block(self, write: BlockWrite) -> bool:
        """See `TokenEngine.write_block`."""
        return await self._ask(ask(TokenEngine.write_block, write))

    def arrive(self) -> int:
        """See `TokenEngine.arrive`."""
        return time.monotonic_ns()

    async def reset_prefix_cache(self) -> None:
        """See `TokenEngine.reset_prefix_cache`."""
        await self._ask(ask(TokenEngine.reset_prefix_cache))

    async def read_prefix(self, token_ids: Sequence[int], adapter: str | None = None) -> RetainedPages:
        """See `TokenEngine.read_prefix`."""
        return await self._ask(ask(TokenEngine.read_prefix, token_ids, adapter))

    async def write_prefix(self, pages: RetainedPages) -> int:
        """See `TokenEngine.write_prefix`."""
        return await self._ask(ask(TokenEngine.write_prefix, pages))

    async def encode(self, request: EncodeRequest) -> FloatArray:
        """See `EncoderEngine.encode`."""
        return await self._ask(ask(EncoderEngine.encode, request))

    def stats(self) -> EngineStats:
        """A snapshot, at most 0.1 s old. ``failure`` is set while the process is silent, or is started again."""
        connection, failure = self._connection, self._refusal
        silent = 0.0 if connection is None else connection.silent_seconds
        if failure is None and connection is not None and not connection.is_ready:
            failure = Unavailable(f"the process of the engine has been silent for {silent:.0f} s")
        return replace(
            self._stats, failure=failure or self._stats.failure, restarts=self._restarts, silent_seconds=silent
        )

    # --- the connection ---

    async def start(self) -> None:
        """Start it again after a failure; see `processes.supervisor.Supervised`."""
        await self._start()
        self._refusal = None
        self._restarts += 1

    async def _start(self) -> None:
        raise NotImplementedError

    async def _open(self, connection: Connection, first_call: Open | Attach) -> None:
        """Wait until the engine is open. Raises the errors of the recipe, and DeviceError if the connection ends."""
        self._connection = connection
        self._opened = await connection.call(first_call)
        connection.watch(self._opened.hang_seconds, self._on_hang)

    def _on_hang(self) -> None:
        """The process is silent. The server that started it ends it, and starts it again."""

    def _receive(self, message: object) -> None:
        match message:
            case Step(answers, token_ids, others):
                queues = self._queues
                for answer, token_id in zip(answers, token_ids, strict=True):
                    if (queue := queues.get(answer)) is not None:
                        queue.put(GeneratedToken(token_id))
                for answer, item in others:
                    ends = isinstance(item, AnswerEnd | BaseException)
                    queue = queues.pop(answer, None) if ends else queues.get(answer)
                    if queue is not None:
                        queue.put(item)
            case MaskTurns():
                self._masks.run(message)
            case Stats(stats):
                self._stats = stats
            case Logged(event, level, fields):
                log_event(event, level, **fields)
            case _:
                raise TypeError(f"a server does not know the message {message!r}")

    def _lost(self) -> NearfarError:
        """The connection has ended: on purpose, by a crash, or because the process hung. Fail all answers."""
        self._connection, self._images = None, SentImages()
        failure: NearfarError
        if self._closing:
            failure = Unavailable("the engine was closed before the answer was complete; try again later")
        elif self._opened is None:
            failure = DeviceError("the process of the engine ended while it opened the model")
        else:
            failure = process_failed(self._fault)
            self._refusal = Unavailable("the process of the engine failed and is being started again; try again later")
        self._fault = FAILED
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.put(failure)
        return failure

    def _begin_close(self, reason: NearfarError | None) -> None:
        """Refuse requests from now on, and start nothing again."""
        self._closing = True
        self._refusal = reason or Unavailable("this model is being unloaded; try again later")
        if self._supervision is not None:
            self._supervision.cancel()

    def _require_open(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    async def _ask(self, message: Ask[Result]) -> Result:
        """The result of a method of the engine."""
        self._require_open()
        result: Result = await self._call(message)
        return result

    async def _call(self, message: Ask[Any] | Listen) -> Any:
        if self._connection is None:
            raise process_failed()
        return await self._connection.call(message, cancels=True)

    def _send(self, message: object) -> None:
        if self._connection is not None:
            self._connection.send(message)


def process_failed(what: str = FAILED) -> DeviceError:
    """The error of the answers of a process that crashed, or was ended because it hung."""
    return DeviceError(f"the process of the engine {what} and is started again; send the request again")
