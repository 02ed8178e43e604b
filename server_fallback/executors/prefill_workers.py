"""Prefill workers: choose which of several servers computes a prompt.

score = tokens that it computes for us now  +  tokens of the prompt that it has not seen

The lowest score wins: that worker is done first. Among equal ones, it is the one that was chosen longest ago. A worker
that fails is taken out for a while (`circuit.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from ..log_event import log_event
from .replicas import BLOCK_BYTES, Replica, Server, hashes_of
from .upstream import make_upstream

CHECK_SECONDS = 5.0
# As in the blocks of `replicas.py`: a token id has four bytes, a token of text about four to five.
TOKEN_BYTES = 4
BLOCK_TOKENS = BLOCK_BYTES // TOKEN_BYTES


@dataclass(eq=False)
class PrefillWorker(Replica[Server]):
    """``queued`` are the tokens that it computes for us now. ``failure``: why its last check failed, None if it did
    not.
    """

    queued: int = 0
    failure: str | None = None

    @property
    def url(self) -> str:
        return self.upstream.url

    def wait(self, prefixes: Sequence[bytes], tokens: int) -> int:
        return self.queued + max(0, tokens - self.matched(prefixes) * BLOCK_TOKENS)


class PrefillWorkers:
    """Needs a running event loop, on which it checks the workers periodically."""

    def __init__(
        self, urls: Sequence[str], api_key: str | None, ca: Path | None = None, check_seconds: float = CHECK_SECONDS
    ) -> None:
        self.all = [PrefillWorker(make_upstream(url, api_key, ca, any_request_id=True)) for url in urls]
        self._choices = count(1)
        self._checks = asyncio.create_task(self._check(check_seconds))

    @property
    def answering(self) -> int:
        """How many answered last."""
        return sum(worker.upstream.circuit.state == "closed" for worker in self.all)

    @property
    def silence(self) -> str:
        """That none of them answers, and why, as the checks found."""
        found = [f"{each.url}: {each.failure}" for each in self.all if each.failure is not None]
        return "; ".join(["no prefill worker answers", *found])

    def named(self, url: str) -> PrefillWorker | None:
        """The worker of a URL as the options have it."""
        return next((worker for worker in self.all if worker.url == url.rstrip("/").removesuffix("/v1")), None)

    def choose(
        self,
        prefixes: Sequence[bytes],
        tokens: int,
        tried: Collection[PrefillWorker] = (),
        among: Sequence[PrefillWorker] | None = None,
    ) -> PrefillWorker | None:
        """The worker for a prompt of ``tokens`` tokens, of ``among`` or of all, without those that were tried. None
        if none accepts requests now.
        """
        for worker in self.all:
            if worker.upstream.circuit.state == "open":
                # A server that restarts has an empty cache.
                worker.seen.clear()
        admitted = [each for each in among or self.all if each not in tried and each.upstream.circuit.admits]
        best = min(admitted, key=lambda worker: (worker.wait(prefixes, tokens), worker.chosen), default=None)
        if best is not None:
            best.chosen = next(self._choices)
        return best

    @contextmanager
    def computing(self, worker: PrefillWorker, prefixes: Sequence[bytes], tokens: int) -> Iterator[None]:
        """While the worker computes a prompt."""
        cost = worker.wait(prefixes, tokens) - worker.queued
        worker.queued += cost
        worker.remember(prefixes)
        try:
            yield
        finally:
            worker.queued -= cost

    async def close(self) -> None:
        self._checks.cancel()
        for worker in self.all:
            await worker.upstream.close()

    async def _check(self, seconds: float) -> None:
        while True:
            due = [worker for worker in self.all if worker.upstream.circuit.admits]
            found = await asyncio.gather(*(worker.upstream.check() for worker in due))
            for worker, failure in zip(due, found, strict=True):
                if failure is not None and failure != worker.failure:
                    log_event("prefill_worker_failed", logging.WARNING, url=worker.url, message=failure)
                worker.failure = failure
            await asyncio.sleep(seconds)


def token_hashes(token_ids: Sequence[int]) -> list[bytes]:
    return hashes_of(np.array(token_ids, "<i4").tobytes())
