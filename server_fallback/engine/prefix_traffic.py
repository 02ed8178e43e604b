"""Prefix traffic: what an engine reads from its prefix cache and writes into it beside its steps, for callers and for
its tiers. All of it is in order with the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from nearfar.compiler.runtime.errors import RequestError

from ..kv_tiers.open import open_tiers
from ..kv_tiers.options import KvTierOptions
from .adapters import Adapters
from .answer import Answer
from .images import prompt_keys
from .kv_cache import KvCache
from .model import TokenModel
from .page_blocks import BlockWrite, LayeredRunner
from .page_imports import write_block
from .retained_pages import RetainedPages, read_retained, write_retained
from .step_runner import StepRunner
from .tier_traffic import TierTraffic

# Calls a function of the runner.
CallRunner = Callable[..., Any]


class PrefixTraffic:
    """Belongs to the engine's thread. ``open_steps`` returns how many steps have been submitted and not read. Raises
    the errors of `open_tiers`, and RequestError for tiers of a runner whose pages cannot be read.
    """

    def __init__(
        self,
        kv: KvCache,
        adapters: Adapters,
        runner: StepRunner,
        model: TokenModel,
        options: KvTierOptions,
        call: CallRunner,
        open_steps: Callable[[], int],
        resume: Callable[[Callable[[], None]], None],
    ) -> None:
        self._kv, self._adapters, self._runner, self._context = kv, adapters, runner, model.context
        self._call, self._open_steps = call, open_steps
        # Runners of frameworks have no dtype of their own.
        activation: str = getattr(runner, "activation", None) or ""
        if options.any:
            self._require_readable_pages()
        tiers = open_tiers(options, model.bundle, activation, kv.kinds, kv.page_size)
        # No methods of this object, to which the tiers would refer as it does to them; see `RunnerCalls`.
        read, write = partial(call, runner.read_pages), partial(call, runner.write_pages)
        self.tiers = TierTraffic(kv, tiers, read, write, open_steps, resume)
        # Answers whose prompts are looked up in the tiers.
        self.fetching = set[Answer]()
        # What other servers have computed.
        self.imported_tokens = self.imported_bytes = 0

    def reset(self) -> Callable[[], None]:
        """Let no later request use what was computed before. Call the result on another thread, which clears the
        tiers.
        """
        self._kv.prefixes.reset()
        return self.tiers.reset()

    def read(self, token_ids: Items[int], adapter: str | None) -> tuple[RetainedPages, Future[bytes]]:
        """See `TokenEngine.read_prefix`: the pages without their data, and the data."""
        found = None if adapter is None else self._adapters.named(adapter)
        pages, data = read_retained(self._kv, self.read_pages, token_ids, None if found is None else found.key)
        return replace(pages, adapter="" if found is None else found.digest), data

    def write(self, pages: RetainedPages) -> int:
        """See `TokenEngine.write_prefix`."""
        adapter = self._adapters.with_digest(pages.adapter).key if pages.adapter else None
        return write_retained(self._kv, self.tiers.write_pages, pages, adapter)

    def cached_tokens(self, token_ids: Items[int], adapter: str | None) -> int:
        """See `TokenEngine.cached_tokens`."""
        found = self._kv.prefixes.find(token_ids, len(token_ids), self._adapter_key(adapter))
        return found.length // self._kv.page_size * self._kv.page_size

    def write_block(self, write: BlockWrite) -> bool:
        """See `page_imports.write_block`. Raises RequestError, and DeviceError."""
        block, adapter = write.block, self._adapter_key(write.adapter)
        write_pages = self.tiers.write_pages if block.parts == 1 else self._write_layers
        is_written = write_block(self._kv, write_pages, write.token_ids, block, adapter)
        if is_written:
            self.imported_tokens += block.end - block.start
            self.imported_bytes += len(block.data)
        return is_written

    def fetch(self, answer: Answer, then: Callable[[], None]) -> None:
        """Write what the tiers have of an answer's prompt into the prefix cache, and call ``then``, at once if there is
        nothing to look for.
        """
        request, adapter = answer.request, answer.adapter
        # A longer prompt is cut first.
        if len(request.prompt_ids) <= self._context:
            keys = prompt_keys(request.prompt_ids, request.images)
            limit = len(keys) - 1 - answer.num_prompt_logprobs
            key, digest = (None, "") if adapter is None else (adapter.key, adapter.digest)
            if self.tiers.fetch(keys, limit, key, digest, partial(self._fetched, answer, then)):
                self.fetching.add(answer)
                return
        then()

    def _fetched(self, answer: Answer, then: Callable[[], None]) -> None:
        self.fetching.discard(answer)
        if not answer.ended:
            then()

    def store(self, answer: Answer, *, ends: bool) -> None:
        """Let the tiers store the pages of an answer's known tokens, once a token was sampled from them. The last one
        is known to be computed only if a stop token was sampled after it. ``ends``: it has ended.
        """
        sequence, exported = answer.sequence, ends and answer.request.export is not None
        if sequence is not None and (sequence.generated > 0 or answer.end_token is not None or exported):
            digest = "" if answer.adapter is None else answer.adapter.digest
            length = len(sequence.tokens) - (answer.end_token is None)
            self.tiers.save(sequence, length, digest, ends=ends)

    def read_pages(self, units: Items[Items[int]]) -> Future[bytes]:
        """`StepRunner.read_pages`, on this thread."""
        data: Future[bytes] = self._call(self._runner.read_pages, units)
        return data

    def read_parts(self, units: Items[Items[int]]) -> list[Future[bytes]]:
        """`LayeredRunner.read_layers` of the step that was submitted last, on this thread; for other runners one part,
        `read_pages`.
        """
        if not isinstance(self._runner, LayeredRunner):
            return [self.read_pages(units)]
        parts: list[Future[bytes]] = self._call(self._runner.read_layers, units)
        return parts

    def _write_layers(self, units: Items[Items[int]], data: bytes) -> None:
        """As `TierTraffic.write_pages`, for the parts of a block. Raises RequestError for a runner without parts."""
        if not isinstance(self._runner, LayeredRunner):
            raise RequestError(f"{self._runner.device} reads whole pages; a block that has parts is another target's")
        self.tiers.flush_evicted(self._open_steps())
        self._call(self._runner.write_layers, units, data)

    def _adapter_key(self, name: str | None) -> str | None:
        return None if name is None else self._adapters.named(name).key

    def _require_readable_pages(self) -> None:
        try:
            self._runner.read_pages([[] for _ in self._kv.kinds])
        except RequestError as error:
            raise RequestError(f"--kv-host-memory, --kv-disk: {error.message}") from error
