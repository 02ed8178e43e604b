"""The executor over our own engine: converts OpenAI's requests to token ids for the engine, and the engine's tokens to
chunks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from nearfar.compiler.runtime.audio.hearing import longest_sound
from nearfar.compiler.runtime.errors import DeadlineExceeded, NearfarError, RequestError
from nearfar.compiler.runtime.text.reasoning import State
from nearfar.compiler.store.model import StoredModel

from ..engine.request import TokenRequest, TokenSource
from ..engine.stats import EngineStats
from ..engine.verification import Verification
from ..far_prefill.blocks import Counts, ReadableSource, blocks
from ..far_prefill.layout import KvLayout, unavailable
from ..images.reader import decodes_video_files
from ..receipts.issuer import Issuer, Receipted, body_of, request_hash, with_receipt
from ..schema.completions import AnswerRequest
from ..schema.decide import DecideRequest, DecideResponse
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.pages import NOBODY, PREFILL_HEADER, PagesRequest
from ..schema.prefill import PrefillRequest
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from ..schema.verify import MAX_DRAFTS, VerifyOpen
from ..text.answers import all_choices
from ..text.chat_prompt import Chat, ChatPrompt, read_chat
from ..text.choice import write_choice
from ..text.completion import Prompt
from ..text.grammar.bounded import BoundedConstraint
from ..text.grammar.constraint import GrammarConstraint
from ..text.grammar.grammar_compiler import GrammarCompiler
from ..text.grammar.grammars import Grammars
from ..text.grammar.source import GrammarSource
from ..text.output import Output
from ..text.reasoning_constraint import ReasoningConstraint
from ..text.requests import check_prompt
from ..text.text_workers import TextWorkers
from .chat_prompts import chat_prompt
from .decide import Decider
from .executor import Abilities, CachesPrefixes, Call, ExecutorState, PrefillState
from .inherited import inherited
from .local_share import LocalShare
from .page_transfer import PageIdentity
from .prefill_server import ExportingEngine, export_request, page_frames
from .read_request import Asked, read_request
from .slots import Slots
from .text_model import TextModel


class Engine(TokenSource, Protocol):
    """The part of `engine.token_engine.TokenEngine` that is needed here."""

    @property
    def context(self) -> int: ...

    @property
    def max_drafts(self) -> int: ...

    def arrive(self) -> int: ...

    def stats(self) -> EngineStats: ...

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None: ...


@runtime_checkable
class HasPrefills(Protocol):
    """An engine whose prompts other servers compute: `apart.ApartEngine`."""

    def prefills(self) -> PrefillState: ...


class LocalExecutor:
    """An `Executor` that owns its engine and closes it in the end; ``adapter`` names one of the engine's LoRA adapters.

    The priority of the call counts, not that of the request. ``memory_bytes`` is the runner's memory on its device, if
    known; ``device`` is a description of that device. The executor also owns ``workers``; None compiles grammars in a
    separate process, and renders the chat template in this process. ``issuer`` signs receipts. ``share`` lets other
    processes use the same engine, None if they cannot. Chats and completions inherit what ``stored`` has. ``slots`` are
    the engine's, if it has any. ``pages``: how other servers know the engine's pages, None if they cannot use them.
    ``only_prefills``: it answers no requests.
    """

    def __init__(
        self,
        engine: Engine,
        model: TextModel,
        *,
        workers: TextWorkers | None = None,
        adapter: str | None = None,
        memory_bytes: int | None = None,
        device: str = "",
        share: LocalShare | None = None,
        issuer: Issuer | None = None,
        stored: StoredModel | None = None,
        pages: PageIdentity | None = None,
        only_prefills: bool = False,
        slots: Slots | None = None,
    ) -> None:
        self.share = share
        self.slots = slots
        self.stored = stored
        self._pages, self._only_prefills = pages, only_prefills
        self._issuer = issuer
        self._engine = engine
        self._model = model
        self._adapter = adapter
        self._memory_bytes = memory_bytes
        self._device = device
        self._workers = workers or TextWorkers(Grammars(GrammarCompiler(), lambda: model.vocabulary))
        self._closed = False
        # The tokens of answers to typed questions.
        self._answers: dict[str, Sequence[int]] = {}

    @property
    def context(self) -> int:
        return self._engine.context

    @property
    def adapter(self) -> str | None:
        return self._adapter

    def inheriting(self, name: str, stored: StoredModel) -> GuestExecutor:
        """The same model under a name of its own, with requests that inherit what ``stored`` has."""
        model = replace(self._model, name=name)
        of_engine: Any = {"workers": self._workers, "slots": self.slots}
        return GuestExecutor(self._engine, model, adapter=self._adapter, stored=stored, **of_engine)

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
        request = inherited(request, self.stored)
        if not request.receipt:
            await self.answer_from(self._engine, request, call, output)
            return
        issuer, body = body_of(request, call.received, self._issuer)
        asked = with_receipt(request)
        # Refused before anything is computed.
        await asyncio.to_thread(request_hash, body)
        receipted = Receipted(issuer, request, asked, body, output)
        try:
            await self.answer_from(self._engine, asked, call, receipted)
        except BaseException:
            if call.observe_receipt is not None and receipted.has_tokens:
                call.observe_receipt(receipted.signed(is_whole=False))
            raise

    async def answer_from(self, source: TokenSource, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
        """Like `answer`, with the tokens of another source."""
        self._require_answers()
        if call.prefill_from not in (None, NOBODY) and not isinstance(self._engine, HasPrefills):
            raise RequestError(
                f"{PREFILL_HEADER}: this server has no prefill workers; start it with --role decode, or leave the "
                "header out",
                code="unknown_prefill_worker",
            )
        model, context, ignore = self._model, self.context, call.ignore_param
        asked = await model.long_texts.run(request, call.client, lambda: read_request(request, model, context, ignore))
        if asked.needs_vocabulary:
            asked = asked.with_vocabulary(await asyncio.to_thread(lambda: model.vocabulary))
        text, requests, num_prompt_tokens = asked.text, list[TokenRequest](), 0
        for prompt in await self._prompts(asked.prompt, call.client):
            requests += await self._token_requests(asked, prompt, call)
            text = replace(text, state=prompt.state)
            num_prompt_tokens += len(prompt.ids)
        await call.expect(num_prompt_tokens, sum(map(self._room, requests)))
        if self.slots is not None and source is self._engine:
            source = self.slots.source(request.id_slot)
        answer = asked.answer(requests, output)
        answer.begin()
        await all_choices(
            [
                write_choice(source, model.tokenizer, each, text, call, partial(answer.add, index), output)
                for index, each in enumerate(requests)
            ]
        )
        answer.end()

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:  # noqa: ARG002
        raise RequestError("this model generates text and makes no embeddings; use an embedding model", param="model")

    async def decide(self, request: DecideRequest, call: Call) -> DecideResponse:
        self._require_answers()

        async def read(chat: Chat) -> ChatPrompt:
            return await self._chat_prompt(chat, call.client)

        source, known = self._engine, self._answers
        decider = Decider(self._model, self.context, source, self._adapter, read, source.arrive, known)
        return await decider.decide(request, call)

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        text, messages = request.prompt, request.messages
        if (text is None) == (messages is None):
            raise RequestError("give exactly one of prompt and messages", param="prompt")
        if messages is None:
            ids: Sequence[int] = await self._model.tokens_of(self.context, text or "", request)
        else:
            chat = read_chat(
                messages,
                tools=request.tools,
                # What opens an answer comes before its start.
                add_generation_prompt=request.add_generation_prompt or request.continue_final_message,
                continue_final_message=request.continue_final_message,
                variables=request.chat_template_kwargs,
                images=self._model.images,
                hears=self._model.sounds is not None,
            )
            ids = (await self._chat_prompt(chat, "")).ids
        return TokenizeResponse(tokens=list(ids), count=len(ids), max_model_len=self.context)

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        return await self._model.text_of(request)

    async def reset_prefix_cache(self) -> None:
        engine = self._engine
        assert isinstance(engine, CachesPrefixes), "an engine that serves has a cache"
        await engine.reset_prefix_cache()

    def abilities(self) -> Abilities:
        model, template = self._model, self._model.tokenizer.chat_template
        return Abilities(
            model.tokenizer_sha256,
            model.vocab_size,
            tools=model.tools is not None,
            embeds=False,
            verify=self.max_drafts > 0,
            prefill=self._can_prefill,
            vision=model.images is not None,
            video=model.images is not None and model.images.video is not None and decodes_video_files(),
            hears=model.sounds is not None,
            hears_seconds=None if model.sounds is None else longest_sound(model.sounds),
            model=model.model,
            chat_template=None if template is None else template.source,
            thinks=model.reasoning is not None,
            identity=model.identity,
        )

    @property
    def drafter(self) -> Engine:
        return self._engine

    @property
    def max_drafts(self) -> int:
        return min(self._engine.max_drafts, MAX_DRAFTS)

    def verification(self, request: VerifyOpen, call: Call) -> Verification:
        self._require_answers()
        self._require_tokens(request)
        token_request = TokenRequest(
            request.prompt,
            request.max_tokens,
            request.sampling(request.seed, 0.0),
            priority=call.priority,
            deadline=call.deadline,
            adapter=self._adapter,
            client=call.client,
        )
        return Verification(self._engine, token_request)

    def pages(self, request: PagesRequest, call: Call) -> AsyncGenerator[bytes, None]:
        """See `executor.SendsPages`."""
        engine, pages = self._engine, self._pages
        if pages is None or not isinstance(engine, ExportingEngine):
            raise RequestError(
                f"{request.model}: this server does not compute prompts for others; use one with --role prefill",
                param="model",
                code="prefill_unavailable",
            )
        asked = export_request(request, pages, call)
        check_prompt(asked.prompt_ids, self._model.vocab_size, self.context, "prompt")
        return page_frames(engine, asked, pages, request.shared)

    def prefill(self, request: PrefillRequest, call: Call, counts: Counts) -> AsyncGenerator[bytes, None]:
        source, layout = self._readable
        self._require_tokens(request)
        page_size, length = layout.page_size, len(request.prompt)
        if length % page_size > 0 or request.start % page_size > 0 or request.start > length - 2 * page_size:
            raise RequestError(
                f"prompt has {length} tokens and start is {request.start}; both must be multiples of {page_size}, the "
                "tokens of a page, and at least two pages apart",
                param="prompt" if length % page_size > 0 else "start",
            )
        if length >= self.context:
            raise RequestError(
                f"prompt has {length} tokens, and an answer would not fit behind it; the model has {self.context}",
                param="prompt",
                code="context_length_exceeded",
            )
        wanted = TokenRequest(
            request.prompt, 1, priority=call.priority, deadline=call.deadline, client=call.client,
            arrival=self._engine.arrive(),
        )  # fmt: skip
        return blocks(source, layout, wanted, request.start, request.states, counts)

    @property
    def _readable(self) -> tuple[ReadableSource, KvLayout]:
        """The engine, whose pages can be sent. Raises RequestError ("prefill_unavailable")."""
        engine = self._engine
        if self._adapter is not None:
            raise unavailable("an adapter applies to it, which the client may not have")
        if not isinstance(engine, ReadableSource):
            raise unavailable("its engine does not read pages")
        return engine, self._model.kv_layout

    @property
    def _can_prefill(self) -> bool:
        try:
            return self._readable is not None
        except RequestError:
            return False

    def _require_tokens(self, request: VerifyOpen | PrefillRequest) -> None:
        """Raises RequestError for another tokenizer, and for token ids that the model cannot read."""
        model = self._model
        if request.tokenizer_sha256 != model.tokenizer_sha256:
            raise RequestError(
                f"the client's tokenizer.json differs from that of {model.name}; use a model that has the same "
                "tokenizer",
                param="tokenizer_sha256",
                code="tokenizer_differs",
            )
        check_prompt(request.prompt, model.vocab_size, self.context, "prompt")

    def state(self) -> ExecutorState:
        prefill = self._engine.prefills() if isinstance(self._engine, HasPrefills) else None
        return ExecutorState.of(
            self._engine.stats(), self._device, self._memory_bytes, closed=self._closed, prefill=prefill
        )

    async def close(self) -> None:
        self._closed = True
        self._workers.close()
        await self._engine.close()

    def _require_answers(self) -> None:
        """Raises RequestError on a prefill worker."""
        if self._only_prefills:
            raise RequestError(
                f"{self._model.name}: this server only computes prompts for decode workers (--role prefill); send "
                "requests to one of these, or to a gateway before them",
                param="model",
                code="prefill_worker",
            )

    async def _chat_prompt(self, chat: Chat, client: str) -> ChatPrompt:
        return await chat_prompt(self._model, self._workers, chat, self.context, client)

    async def _prompts(self, given: Chat | Sequence[Prompt], client: str) -> Sequence[ChatPrompt]:
        """The token ids of each prompt, and the state in which its answer begins."""
        if not isinstance(given, Chat):
            return [ChatPrompt(prompt.ids, "content") for prompt in given]
        prompt = await self._chat_prompt(given, client)
        check_prompt(prompt.ids, self._model.vocab_size, self.context, "messages")
        return [prompt]

    async def _token_requests(self, asked: Asked, prompt: ChatPrompt, call: Call) -> Sequence[TokenRequest]:
        """The requests of the answers to one prompt, with their constraints."""
        requests = asked.token_requests(prompt, call, self._adapter)
        if asked.grammar is not None:
            requests = await self._constrained(requests, asked.grammar, asked.param, call)
        if prompt.state == "content" or (asked.grammar is None and asked.budget is None):
            return requests
        return [self._reasoning_first(each, prompt.state, asked.budget) for each in requests]

    async def _constrained(
        self, requests: Sequence[TokenRequest], grammar: GrammarSource, param: str, call: Call
    ) -> list[TokenRequest]:
        """Add a grammar's constraint to each request. All requests have the same prompt."""
        left = None if call.deadline is None else max(call.deadline - time.monotonic(), 0)
        most = self._room(requests[0])
        try:
            async with asyncio.timeout(left):
                constraints = await self._workers.grammars.constraints(grammar, len(requests), param, most, call.client)
        except TimeoutError as error:
            raise DeadlineExceeded(
                "the grammar was not compiled within the time that the request allows; send the request again"
            ) from error
        return [
            replace(request, constraint=constraint) for request, constraint in zip(requests, constraints, strict=True)
        ]

    def _reasoning_first(self, request: TokenRequest, state: State, budget: int | None) -> TokenRequest:
        """Add a constraint that limits the reasoning to its budget, and applies the request's own constraint to the
        text after it.
        """
        model = self._model
        assert model.reasoning is not None
        assert isinstance(request.constraint, GrammarConstraint | BoundedConstraint | None)
        constraint = ReasoningConstraint(
            model.reasoning,
            state,
            budget=budget,
            form=request.constraint,
            max_tokens=self._room(request),
            vocab_size=model.vocab_size,
            end_token_ids=model.eos_token_ids,
        )
        return replace(request, constraint=constraint)

    def _room(self, request: TokenRequest) -> int:
        """The maximum number of tokens of the answer, which also ends when the context is full."""
        room = max(1, self.context - len(request.prompt_ids) + 1)
        return room if request.max_tokens is None else min(request.max_tokens, room)


class GuestExecutor(LocalExecutor):
    """A `LocalExecutor` whose engine and text processes belong to another one, and remain when this one is closed."""

    async def close(self) -> None:
        pass
