"""Apart: the engine of a decode worker. A long prompt is computed by a prefill worker, whose pages are in the prefix
cache when the engine answers as always: it samples, and computes the last tokens of the prompt, itself.

    request --> tokens that no cache holds < threshold  -------------------------------> engine
                else: prefill worker -- blocks of pages --> prefix cache of the engine --^

If a transfer fails, another worker is asked for the rest. If none is left, the engine computes the rest itself, or the
request fails, as the options say.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Protocol

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import NearfarError, RequestError, Unavailable

from ..engine.page_blocks import BlockWrite
from ..engine.request import (
    AnswerEnd,
    GeneratedToken,
    PromptLogprobs,
    TokenHandler,
    TokenRequest,
    batches_of,
    items_of,
)
from ..engine.stats import EngineStats
from ..log_event import log_event
from ..schema.pages import NOBODY, PREFILL_HEADER
from .executor import PrefillState
from .local import Engine
from .page_transfer import PageIdentity, TransferFailed
from .prefill_client import Transfer, transfer
from .prefill_options import PrefillOptions
from .prefill_workers import PrefillWorker, PrefillWorkers, token_hashes

# Of one engine. Each takes the memory of a few blocks.
TRANSFERS_AT_ONCE = 16


class PagedEngine(Engine, Protocol):
    """The part of `engine.token_engine.TokenEngine` that is needed here."""

    async def reset_prefix_cache(self) -> None: ...

    async def load_adapter(self, name: str, states: Mapping[str, FloatArray]) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...

    async def cached_tokens(self, token_ids: Sequence[int], adapter: str | None = None) -> int: ...

    async def write_block(self, write: BlockWrite) -> bool: ...


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What other servers have done for a prompt: they computed ``tokens`` of it within ``seconds``, and began after
    ``queue_seconds``.
    """

    tokens: int = 0
    seconds: float = 0.0
    queue_seconds: float = 0.0


NOTHING = Prefilled()


class ApartEngine:
    """Has the methods of `TokenEngine`, which it owns. ``model`` is the model's name on the prefill workers. Needs a
    running event loop.
    """

    def __init__(
        self,
        engine: PagedEngine,
        identity: PageIdentity,
        options: PrefillOptions,
        model: str,
    ) -> None:
        self._engine, self._identity, self._options, self._model = engine, identity, options, model
        self._workers = PrefillWorkers(options.prefill_from, options.api_key, options.ca)
        # By prefix: the transfer of it, and how many requests wait for it.
        self._running: dict[tuple[int, ...], tuple[asyncio.Task[Prefilled], list[None]]] = {}
        self._turns = asyncio.Semaphore(TRANSFERS_AT_ONCE)
        self._transfers = self._tokens = self._bytes = 0
        self._seconds = 0.0
        self._fallbacks = Counter[str]()

    @property
    def context(self) -> int:
        return self._engine.context

    @property
    def max_drafts(self) -> int:
        return self._engine.max_drafts

    def arrive(self) -> int:
        return self._engine.arrive()

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def prefills(self) -> PrefillState:
        workers = self._workers
        return PrefillState(
            workers=len(workers.all),
            answering=workers.answering,
            required=not self._options.local_prefill,
            transfers=self._transfers,
            tokens=self._tokens,
            bytes=self._bytes,
            seconds=self._seconds,
            fallbacks=dict(self._fallbacks),
        )

    def generate(self, request: TokenRequest) -> AsyncGenerator[PromptLogprobs | GeneratedToken | AnswerEnd, None]:
        """See `TokenEngine.generate`."""
        return items_of(self.batches(request))

    async def batches(
        self, request: TokenRequest, handle: TokenHandler | None = None
    ) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | AnswerEnd], None]:
        """See `TokenEngine.batches`. What another server computed counts as computed for this answer, and the time in
        which it did so as the answer's.
        """
        prefilled = await self._prefill(request)
        async with aclosing(batches_of(self._engine, request, handle)) as batches:
            async for batch in batches:
                if isinstance(end := batch[-1], AnswerEnd) and prefilled is not NOTHING:
                    batch[-1] = _with(end, prefilled)
                yield batch

    async def reset_prefix_cache(self) -> None:
        await self._engine.reset_prefix_cache()

    async def load_adapter(self, name: str, states: Mapping[str, FloatArray]) -> None:
        await self._engine.load_adapter(name, states)

    async def unload_adapter(self, name: str) -> None:
        await self._engine.unload_adapter(name)

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None:
        await self._engine.close(drain_seconds, reason)
        for task, _ in list(self._running.values()):
            task.cancel()
        await self._workers.close()

    # --- prompts ---

    def _transferable(self, request: TokenRequest) -> int:
        """How many tokens of a prompt another server may compute. It knows nothing but their ids, so the pictures,
        sounds and adapters are read here, and so are the rows that log-probabilities need.
        """
        if request.adapter is not None or request.when_full != "stop":
            return 0
        if request.prefill_from == NOBODY or len(request.prompt_ids) > self.context:
            return 0
        size, length = self._identity.page_size, len(request.prompt_ids) - request.prompt_logprobs
        text = min((image.offset for image in request.images), default=length)
        return max(0, min(text, length) - 1) // size * size

    async def _prefill(self, request: TokenRequest) -> Prefilled:
        """Let another server compute what is long and in no cache. Raises Unavailable if none does and the options do
        not let this one, RequestError for an unknown server, and the errors of the engine.
        """
        only = None
        if request.prefill_from not in (None, NOBODY):
            only = self._workers.named(request.prefill_from or "")
            if only is None:
                known = ", ".join(worker.url for worker in self._workers.all)
                raise RequestError(
                    f"{PREFILL_HEADER}: {request.prefill_from!r} is not one of this server's prefill workers "
                    f"({known}); name one of them, or {NOBODY}",
                    code="unknown_prefill_worker",
                )
        end = self._transferable(request)
        if end < self._options.prefill_tokens:
            return NOTHING
        key = tuple(request.prompt_ids[:end])
        # Requests with the same prompt need its pages once.
        task, waiting = self._running.get(key) or (None, [])
        is_first = task is None
        if task is None:
            task = asyncio.create_task(self._fetch(request, end, only))
            task.add_done_callback(lambda _: self._running.pop(key, None))
            self._running[key] = task, waiting
        waiting.append(None)
        try:
            found = await asyncio.shield(task)
        finally:
            waiting.pop()
            if not waiting and not task.done():
                task.cancel()
        # The others' tokens were in a cache.
        return found if is_first else replace(found, tokens=0)

    async def _fetch(self, request: TokenRequest, end: int, only: PrefillWorker | None) -> Prefilled:
        async with self._turns:
            return await self._fetch_now(request, end, only)

    async def _fetch_now(self, request: TokenRequest, end: int, only: PrefillWorker | None) -> Prefilled:
        token_ids, began = request.prompt_ids[:end], monotonic()
        limit = min(began + self._options.prefill_seconds, request.deadline or inf)
        prefixes, tried, failure = (
            token_hashes(token_ids),
            list[PrefillWorker](),
            TransferFailed("unreachable", self._workers.silence),
        )
        computed, queue_seconds = 0, 0.0
        while (missing := end - (start := await self._engine.cached_tokens(token_ids))) >= self._options.prefill_tokens:
            worker = None
            if monotonic() < limit:
                among = None if only is None or only in tried else [only]
                worker = self._workers.choose(prefixes, missing, tried, among) or self._workers.choose(
                    prefixes, missing, tried
                )
            if worker is None:
                self._fallbacks[failure.reason] += 1
                log_event(
                    "prefill_fallback", logging.WARNING, reason=failure.reason, message=failure.message, tokens=missing
                )
                if self._options.local_prefill:
                    break
                raise Unavailable(
                    f"no prefill worker computed this prompt of {len(request.prompt_ids)} tokens ({failure.message}), "
                    "and this server was started with --no-local-prefill; try again later",
                    code="prefill_unavailable",
                    reason=failure.reason,
                )
            tried.append(worker)
            wanted = Transfer(self._model, token_ids, start, request.priority, limit)
            try:
                with self._workers.computing(worker, prefixes, missing):
                    await transfer(worker.upstream, self._engine, self._identity, wanted, request.prompt_ids[end])
                failure = TransferFailed("no_room", "the pages were evicted before the prompt could use them")
            except TransferFailed as error:
                failure = error
            finally:
                self._transfers += 1
                self._tokens += wanted.done - start
                self._bytes += wanted.size
                computed += wanted.done - start - wanted.cached_tokens
                queue_seconds = queue_seconds or wanted.queue_seconds
        seconds = monotonic() - began
        if tried:
            self._seconds += seconds
        return Prefilled(computed, seconds, queue_seconds) if tried else NOTHING


def _with(end: AnswerEnd, prefilled: Prefilled) -> AnswerEnd:
    return replace(
        end,
        cached_tokens=max(0, end.cached_tokens - prefilled.tokens),
        queue_seconds=end.queue_seconds + prefilled.queue_seconds,
        time_to_first_token_seconds=end.time_to_first_token_seconds + prefilled.seconds,
        total_seconds=end.total_seconds + prefilled.seconds,
    )
