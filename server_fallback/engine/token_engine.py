"""The token engine: answers requests in token ids, token by token, on any event loop.

This file runs on the event loops; `engine_loop.py` does the work on a thread of its own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from nearfar.compiler.ir.watermark import WATERMARK
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.page_groups import longest_sequence
from nearfar.compiler.runtime.runner import Limits

from .answer import Answer
from .check_request import check_request
from .config import EngineConfig, max_sequences
from .draft_model import DraftModel
from .encoded_prefix import PrefixKey
from .engine_loop import EngineLoop
from .engine_thread import EngineThread
from .image_encoder import Tower
from .inbox import Inbox
from .item_queue import BlockQueue, Item, ItemQueue
from .mask_pool import MaskPool
from .masks import Masks
from .model import TokenModel
from .ngram_drafter import NgramDrafter
from .page_blocks import BlockWrite, PageBlock
from .request import AnswerEnd, GeneratedToken, PromptLogprobs, TokenHandler, TokenRequest, items_of
from .resolved_sampling import resolve_sampling
from .retained_pages import RetainedPages
from .speculation import Drafter, Speculation
from .step_runner import StepRunner

T = TypeVar("T")


class TokenEngine(EngineThread[EngineLoop]):
    """A `TokenSource` that owns its runner: it alone calls the runner, and closes it in the end.

    If the runner's pages do not hold the model's whole context, ``context`` is what they hold. ``draft`` is the draft
    model, for a config with one, ``masks`` computes the masks of constrained answers, on threads by default, and
    ``tower`` the features of images, if the model reads any. ``device`` describes the runner's device. ``max_drafts``:
    how many drafts a step checks, of all callers together.
    Raises RequestError if the config's speculation cannot work, or for a watermark if the plan cannot mark.
    """

    def __init__(
        self,
        runner: StepRunner,
        model: TokenModel,
        config: EngineConfig | None = None,
        *,
        draft: DraftModel | None = None,
        masks: Masks | None = None,
        tower: Tower | None = None,
    ) -> None:
        config = config or EngineConfig()
        masks = masks or MaskPool(config.max_mask_wait_seconds)
        drafter = make_drafter(config.speculation, draft, runner.limits, model)
        limits = runner.limits
        context = longest_sequence(runner.groups, model.context, model.page_size, limits.tokens)
        self.model = replace(model, context=context)
        self._watermark, self._marks_all = config.watermark, config.marks_all
        if config.watermark is not None:
            runner.write_state(WATERMARK, 0, config.watermark.row())
        self._arrivals = itertools.count()
        self.device = runner.device
        # Runners of frameworks have no dtype of their own.
        self.activation: str | None = getattr(runner, "activation", None)
        self.max_drafts = max(0, min(limits.rows, limits.tokens) - min(limits.rows, limits.sequences))
        inbox = Inbox(max_sequences(limits) + config.max_waiting, config.max_image_bytes)
        loop = EngineLoop(runner, self.model, config, inbox, drafter, masks, tower)
        super().__init__(loop, inbox, "nearfar-engine")

    @property
    def context(self) -> int:
        """The longest sequence in tokens."""
        return self.model.context

    @property
    def prefix_key(self) -> PrefixKey:
        """What prefixes must have been computed with to be written here."""
        return PrefixKey(self.model.bundle, self.activation or "", self.device)

    def generate(self, request: TokenRequest) -> AsyncGenerator[PromptLogprobs | GeneratedToken | AnswerEnd, None]:
        """Yield each new token, without a stop token, and last the AnswerEnd. If ``prompt_logprobs`` are requested,
        PromptLogprobs comes first. See `batches`.
        """
        return items_of(self.batches(request))

    async def batches(
        self, request: TokenRequest, handle: TokenHandler | None = None
    ) -> AsyncGenerator[list[PromptLogprobs | GeneratedToken | AnswerEnd], None]:
        """Yield the items of `generate` in lists of all items that are ready: several, if the reader is slower than the
        device. Tokens that ``handle`` handles are left out. Any number of requests share the steps of the device.

        Requests with the same prompt compute it once. Closing the generator early ends the answer and frees its pages
        at the next step.

        Raises RequestError for a request that cannot be answered, QueueFull, DeadlineExceeded, Unavailable once the
        engine is closed, or DeviceError.
        """
        queue = ItemQueue(handle)
        answer = self.begin(request, queue.put)
        try:
            while True:
                items = await queue.next()
                yield items
                if isinstance(items[-1], AnswerEnd):
                    return
        finally:
            self.abandon(answer)

    def begin(self, request: TokenRequest, put: Callable[[Item], None]) -> Answer:
        """Begin an answer; the running event loop calls ``put`` with its items. Raises what `batches` raises first."""
        check_request(request, self.model, self._loop.adapters.names, self._loop.scheduler.config.max_tokens)
        if request.watermark and self._watermark is None:
            raise RequestError(
                "watermark: this model marks no answers; start the server with --watermark-key FILE, or leave it out",
                param="watermark",
            )
        marks = request.watermark or self._marks_all
        sampling = resolve_sampling(request.sampling, request.answered, marks=marks)
        arrival = self.arrive() if request.arrival is None else request.arrival
        image_bytes = {image.name: image.size_bytes(self.model.feature_size) for image in request.images}
        answer = Answer(arrival, request, sampling, put, image_bytes=image_bytes)
        self._inbox.add(answer)
        if request.prompt_logprobs > 0 and answer.num_prompt_logprobs == 0:
            put(PromptLogprobs(()))
        return answer

    def abandon(self, answer: Answer) -> None:
        """Nobody reads an answer any more: end it at the next step, unless it has ended."""
        if not answer.ended:
            self._inbox.abandon(answer)

    def arrive(self) -> int:
        """A position in the order of arrival, for requests that together make one answer."""
        return next(self._arrivals)

    async def export(self, request: TokenRequest) -> AsyncGenerator[PageBlock | AnswerEnd, None]:
        """Yield the stored pages of a range of the prompt, `TokenRequest.export`, as they are computed, and last an
        AnswerEnd. A prompt whose blocks are not taken is not computed any further. Raises the errors of `batches`.
        """
        queue = BlockQueue()
        answer = self.begin(request, queue.put)
        try:
            while isinstance(item := await queue.next(), PageBlock):
                yield item
                if item.is_last:
                    self.take_block(answer)
            yield item
        finally:
            self.abandon(answer)

    def take_block(self, answer: Answer) -> None:
        """The reader of an export has taken a block."""
        if not answer.ended:
            self._inbox.call(lambda: self._loop.exports.taken(answer))

    async def cached_tokens(self, token_ids: Sequence[int], adapter: str | None = None) -> int:
        """How many of the first tokens need not be computed, in whole pages. Raises RequestError for an adapter that is
        not loaded.
        """
        return await self._between_steps(lambda: self._loop.prefixes.cached_tokens(token_ids, adapter))

    async def write_block(self, write: BlockWrite) -> bool:
        """Put pages into the prefix cache that another engine with the same model has exported. False if there is no
        room. Raises RequestError if the bytes have another size.
        """
        return await self._between_steps(lambda: self._loop.prefixes.write_block(write))

    async def load_adapter(self, name: str, states: Mapping[str, FloatArray]) -> None:
        """Load a LoRA adapter under a name that requests can use. ``states`` are what `nearfar.compiler.formats.peft`
        reads.

        Raises RequestError if the name is taken or no slot is free.
        """
        loaded: Future[None] = Future()
        self._inbox.call(lambda: self._loop.adapters.load(name, states, self._loop.call.write_state, loaded))
        await asyncio.wrap_future(loaded)

    async def unload_adapter(self, name: str) -> None:
        """Accept no new requests for an adapter, and free its slot when those that use it have ended. Raises
        RequestError.
        """
        unloaded: Future[None] = Future()
        self._inbox.call(lambda: self._loop.adapters.unload(name, unloaded))
        await asyncio.wrap_future(unloaded)

    async def reset_prefix_cache(self) -> None:
        """Let no later request use what was computed before. A disk tier is cleared for all engines of the model."""
        clear_tiers = await self._between_steps(self._loop.prefixes.reset)
        await asyncio.to_thread(clear_tiers)

    async def read_prefix(self, token_ids: Sequence[int], adapter: str | None = None) -> RetainedPages:
        """The longest prefix of some tokens that is in the prefix cache, in whole pages; without any tokens if none is.
        ``token_ids`` are those of a prompt as the cache compares them; see `images.prompt_keys`.

        Raises RequestError for an adapter that is not loaded, and for a runner whose pages cannot be read; Unavailable
        once the engine is closed, or DeviceError.
        """
        pages, data = await self._between_steps(lambda: self._loop.prefixes.read(token_ids, adapter))
        return replace(pages, data=await asyncio.wrap_future(data))

    async def write_prefix(self, pages: RetainedPages) -> int:
        """Write pages into the prefix cache, from which later requests use them. Returns how many of their tokens are
        in the cache now: 0 if running requests leave no room.

        Raises RequestError for pages of another model and for those of an adapter that is not loaded, and otherwise as
        `read_prefix`.
        """
        return await self._between_steps(lambda: self._loop.prefixes.write(pages))

    async def _between_steps(self, call: Callable[[], T]) -> T:
        """The result of a call on the engine's thread."""
        done: Future[T] = Future()

        def work() -> None:
            # Nobody may wait any more.
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(call())
            except Exception as error:
                done.set_exception(error)

        self._inbox.call(work)
        return await asyncio.wrap_future(done)


def make_drafter(
    speculation: Speculation | None, draft: DraftModel | None, limits: Limits, model: TokenModel
) -> Drafter | None:
    """The drafter of an engine, None without speculation. Raises RequestError."""
    if (draft is not None) != (speculation is not None and speculation.kind != "ngram"):
        raise RequestError(
            "a draft model goes with speculation of the kind 'draft', and heads with the kind 'heads'; give both or "
            "neither"
        )
    if speculation is None:
        return None
    if speculation.tokens < 1:
        raise RequestError(f"speculation guesses {speculation.tokens} tokens at once; it must be at least 1")
    if limits.rows <= limits.sequences:
        rows = limits.sequences * (speculation.tokens + 1)
        raise RequestError(
            f"the runner supports {limits.rows} sampled rows, none beyond a sequence's own; open it with {rows} to "
            "speculate"
        )
    if draft is None:
        return NgramDrafter()
    if draft.model.vocab_size != model.vocab_size:
        raise RequestError(
            f"the draft model has {draft.model.vocab_size} tokens, the model {model.vocab_size}; use one with the "
            "same tokenizer"
        )
    draft.require_states()
    return draft
