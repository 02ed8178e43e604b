"""Prefill placement: a gateway before decode workers chooses which prompts go through a prefill worker, and which. The
decode worker finds its name in a header of the request.

The length of a prompt is estimated from its text, and what is cached from what was sent before; the decode worker,
which knows both, computes a prompt itself that is shorter than its own threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from ..schema.pages import NOBODY, PREFILL_HEADER
from .executor import Call, PrefillState
from .prefill_workers import BLOCK_TOKENS, PrefillWorkers
from .relay import Relay


class PrefillPlacement:
    """Prompts of at least ``least_tokens`` that the decode worker has not seen go through one of the ``workers``."""

    def __init__(self, workers: PrefillWorkers, least_tokens: int) -> None:
        self.workers, self._least_tokens = workers, least_tokens

    def state(self) -> PrefillState:
        return PrefillState(len(self.workers.all), self.workers.answering, required=False)

    @contextmanager
    def of(self, prefixes: Sequence[bytes], seen: int, call: Call, relay: Relay[Any]) -> Iterator[Call]:
        """A call that names the worker for a prompt, of which the decode worker has ``seen`` blocks. The worker
        is busy with it until the answer begins. If no worker answers, the call names none, and the decode worker, which
        may reach one, decides.
        """
        with ExitStack() as computing:
            tokens, name = (len(prefixes) - seen) * BLOCK_TOKENS, NOBODY
            if tokens >= self._least_tokens:
                worker = self.workers.choose(prefixes, tokens)
                if worker is None:
                    yield call
                    return
                computing.enter_context(self.workers.computing(worker, prefixes, tokens))
                relay.on_begin = computing.close
                name = worker.url
            yield replace(call, headers={**call.headers, PREFILL_HEADER: name})
