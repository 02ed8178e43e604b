"""The executor over our own engine: converts OpenAI's requests to token ids for the engine, and the engine's tokens to
chunks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from nearfar.compiler.errors import DeadlineExceeded, NearfarError, RequestError
from nearfar.compiler.ir.sampling import ALTERNATIVES, WORD
from nearfar.compiler.text.stop_strings import StopAutomaton

from ..engine.request import (
    Sampling,
    TokenRequest,
    TokenSource,
)
from ..engine.stats import EngineStats
from ..engine.verification import Verification
from ..schema.chat import ChatCompletionChunk, ChatCompletionRequest
from ..schema.common import GenerationRequest
from ..schema.completions import CompletionChunk, CompletionRequest
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from ..schema.verify import MAX_DRAFTS, VerifyOpen
from ..text.answers import Answer, Choice, PieceSink, written_answer
from ..text.chat import ChatAnswer, ChatForm
from ..text.chat_prompt import Chat, ChatPrompt, encode_rendered, mark_chat, read_chat, render_chat
from ..text.choice import AnswerText, Piece, answer_choice
from ..text.completion import CompletionAnswer, CompletionForm, Prompt, read_prompts
from ..text.grammar.bounded import BoundedConstraint
from ..text.grammar.constraint import GrammarConstraint
from ..text.grammar.grammar_compiler import GrammarCompiler
from ..text.grammar.grammars import Grammars
from ..text.grammar.source import GrammarSource
from ..text.reasoning import State
from ..text.reasoning_constraint import ReasoningConstraint
from ..text.requests import (
    Terms,
    check_min_tokens,
    check_prompt,
    check_token_ids,
    stops_of,
    token_requests,
)
from ..text.response_format import answer_format, requested_grammar
from ..text.text_workers import TextWorkers
from ..text.thinking import read_thinking
from ..text.tools import text_parameters
from ..text.vocabulary import Vocabulary
from ..text.writer import ChunkWriter, Sink, Writer, Written
from .event_writer import EventWriter
from .executor import Abilities, Call, Encode, EventBlock, ExecutorState
from .local_share import LocalShare
from .observed_tokens import ObservedTokens
from .text_model import TextModel
from .token_routes import text_of_tokens, tokens_of_text

MAX_ANSWERS = 1024


class Engine(TokenSource, Protocol):
    """The part of `engine.token_engine.TokenEngine` that is needed here."""

    @property
    def context(self) -> int: ...

    @property
    def max_drafts(self) -> int: ...

    def arrive(self) -> int: ...

    def stats(self) -> EngineStats: ...

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None: ...


class LocalExecutor:
    """An `Executor` that owns its engine and closes it in the end; ``adapter`` names one of the engine's LoRA adapters.

    The priority of the call counts, not that of the request. ``memory_bytes`` is the runner's memory on its device, if
    known; ``device`` is a description of that device. The executor also owns ``workers``; None compiles grammars in a
    separate process, and renders the chat template in this process. ``share`` lets other processes use the same engine,
    None if they cannot.
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
    ) -> None:
        self.share = share
        self._engine = engine
        self._model = model
        self._adapter = adapter
        self._memory_bytes = memory_bytes
        self._device = device
        self._workers = workers or TextWorkers(Grammars(GrammarCompiler(), lambda: model.vocabulary))
        self._closed = False

    @property
    def context(self) -> int:
        return self._engine.context

    def chat(self, request: ChatCompletionRequest, call: Call) -> AsyncGenerator[ChatCompletionChunk, None]:
        return self.chat_from(self._engine, request, call)

    def chat_from(
        self, source: TokenSource, request: ChatCompletionRequest, call: Call
    ) -> AsyncGenerator[ChatCompletionChunk, None]:
        """Like `chat`, with the tokens of another source."""
        return self._chat(source, request, call, ChunkWriter())

    def relay_chat(
        self,
        request: ChatCompletionRequest,
        call: Call,
        encode: Encode[ChatCompletionChunk],
        sink: Sink[EventBlock] | None = None,
    ) -> AsyncGenerator[EventBlock, None]:
        """Like `chat`, as events."""
        return self._chat(self._engine, request, call, EventWriter(encode), sink)

    async def _chat(
        self,
        source: TokenSource,
        request: ChatCompletionRequest,
        call: Call,
        writer: Writer[ChatCompletionChunk, Written],
        sink: Sink[Written] | None = None,
    ) -> AsyncGenerator[Written, None]:
        model = self._model
        max_tokens = _max_tokens(request)
        if request.top_logprobs is not None and not request.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        check_min_tokens(request, max_tokens)
        form = await model.long_texts.run(request, call.client, lambda: answer_format(request, model.tools))
        template = model.tokenizer.chat_template
        thinking = read_thinking(
            request,
            "" if template is None else template.source,
            reasons=model.reasoning is not None,
            ignore=call.ignore_param,
        )
        chat = read_chat(
            request.messages,
            tools=form.tools,
            continue_final_message=bool(request.continue_final_message),
            variables=thinking.variables,
        )
        prompt, state = await self._chat_prompt(chat, call.client)
        check_prompt(prompt, model.vocab_size, self.context, "messages")
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        terms = self._terms(call, max_tokens, logprobs, _prompt_alternatives(request, None))
        requests = await self._constrained(token_requests(prompt, request, terms), form.grammar, form.param, call)
        if state != "content" and (form.grammar is not None or thinking.budget is not None):
            requests = [self._reasoning_first(each, state, thinking.budget) for each in requests]
        # All answers have the same prompt, so only the first of them reports its log-probabilities.
        requests = [requests[0], *(replace(each, prompt_logprobs=0) for each in requests[1:])]
        vocabulary = await self._vocabulary(logprobs is not None or request.prompt_logprobs is not None)
        chat_form = ChatForm(
            model.name,
            form.calls,
            request.parallel_tool_calls is False,
            bool(request.logprobs),
            vocabulary,
            form.call_begins,
            text_parameters(form.tools or ()),
            request.prompt_logprobs,
            bool(request.return_token_ids),
        )
        answer = ChatAnswer(requests, chat_form, writer)
        text = self._answer_text(request, vocabulary if request.logprobs else None)
        text = replace(text, reasoning=self._model.reasoning, state=state)
        choices = self._choices(source, requests, text, call, _piece_sink(answer, requests, sink))
        async with aclosing(written_answer(answer, choices)) as chunks:
            async for chunk in chunks:
                yield chunk

    def complete(self, request: CompletionRequest, call: Call) -> AsyncGenerator[CompletionChunk, None]:
        return self._complete(request, call, ChunkWriter())

    def relay_completion(
        self,
        request: CompletionRequest,
        call: Call,
        encode: Encode[CompletionChunk],
        sink: Sink[EventBlock] | None = None,
    ) -> AsyncGenerator[EventBlock, None]:
        """Like `complete`, as events."""
        return self._complete(request, call, EventWriter(encode), sink)

    async def _complete(
        self,
        request: CompletionRequest,
        call: Call,
        writer: Writer[CompletionChunk, Written],
        sink: Sink[Written] | None = None,
    ) -> AsyncGenerator[Written, None]:
        model, n = self._model, request.n or 1
        if request.best_of not in (None, n):
            raise RequestError("best_of is not supported; leave it out, or set it to n", param="best_of")
        if request.suffix:
            raise RequestError("suffix is not supported; write the format for a gap into the prompt", param="suffix")
        check_min_tokens(request, request.max_tokens)
        grammar, param = requested_grammar(request)
        prompts = await self._prompts(
            request.prompt, "prompt", call.client, split_special_tokens=request.split_special_tokens is not False
        )
        if len(prompts) * n > MAX_ANSWERS:
            raise RequestError(
                f"prompt and n request {len(prompts) * n:,} answers; request at most {MAX_ANSWERS:,} at once",
                param="prompt",
            )
        echoes_tokens = bool(request.echo) and request.logprobs is not None
        alternatives = _prompt_alternatives(request, request.logprobs if echoes_tokens else None)
        terms = self._terms(call, request.max_tokens, request.logprobs, alternatives)
        requests = [
            each
            for prompt in prompts
            for each in await self._constrained(token_requests(prompt.ids, request, terms), grammar, param, call)
        ]
        echoes = [prompt.text(model.tokenizer) for prompt in prompts for _ in range(n)] if request.echo else []
        vocabulary = await self._vocabulary(request.logprobs is not None or alternatives is not None)
        form = CompletionForm(
            model.name,
            model.tokenizer,
            n,
            echoes,
            vocabulary,
            request.logprobs,
            request.prompt_logprobs,
            bool(request.return_token_ids),
        )
        answer = CompletionAnswer(requests, form, writer)
        text = self._answer_text(request, None if request.logprobs is None else vocabulary)
        text = replace(text, lists_end=echoes_tokens)
        choices = self._choices(self._engine, requests, text, call, _piece_sink(answer, requests, sink))
        async with aclosing(written_answer(answer, choices)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:  # noqa: ARG002
        raise RequestError("this model generates text and makes no embeddings; use an embedding model", param="model")

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        text, messages = request.prompt, request.messages
        if (text is None) == (messages is None):
            raise RequestError("give exactly one of prompt and messages", param="prompt")
        if messages is None:
            ids = await tokens_of_text(self._model, self.context, text or "", request)
        else:
            chat = read_chat(
                messages,
                tools=request.tools,
                add_generation_prompt=request.add_generation_prompt,
                variables=request.chat_template_kwargs,
            )
            ids, _ = await self._chat_prompt(chat, "")
        return TokenizeResponse(tokens=ids, count=len(ids), max_model_len=self.context)

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        return await text_of_tokens(self._model, request)

    def abilities(self) -> Abilities:
        model = self._model
        return Abilities(
            model.tokenizer_sha256,
            model.vocab_size,
            tools=model.tools is not None,
            embeds=False,
            verify=self.max_drafts > 0,
        )

    @property
    def drafter(self) -> Engine:
        return self._engine

    @property
    def max_drafts(self) -> int:
        return min(self._engine.max_drafts, MAX_DRAFTS)

    def verification(self, request: VerifyOpen, call: Call) -> Verification:
        model = self._model
        if request.tokenizer_sha256 != model.tokenizer_sha256:
            raise RequestError(
                f"the client's tokenizer.json differs from that of {model.name}; draft with a model that has the same "
                "tokenizer",
                param="tokenizer_sha256",
                code="tokenizer_differs",
            )
        check_prompt(request.prompt, model.vocab_size, self.context, "prompt")
        sampling = Sampling(
            temperature=request.temperature or 0.0,
            top_k=request.top_k or 0,
            top_p=1.0 if request.top_p is None else request.top_p,
            min_p=request.min_p or 0.0,
            seed=None if request.seed is None else request.seed & WORD,
        )
        token_request = TokenRequest(
            request.prompt,
            request.max_tokens,
            sampling,
            priority=call.priority,
            deadline=call.deadline,
            adapter=self._adapter,
            client=call.client,
        )
        return Verification(self._engine, token_request)

    def state(self) -> ExecutorState:
        stats = self._engine.stats()
        failure = stats.failure.message if stats.failure is not None else None
        return ExecutorState(
            ready=not self._closed and failure is None,
            detail="closed" if self._closed else failure or self._device or "serving",
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
            kv_waste=stats.kv_waste,
            memory_bytes=self._memory_bytes,
            prefix_queries=stats.prefix_queries,
            prefix_hits=stats.prefix_hits,
            preemptions=stats.preemptions,
            draft_tokens=stats.drafted_tokens,
            accepted_tokens=stats.accepted_tokens,
            steps=stats.steps,
            restarts=stats.restarts,
            silent_seconds=stats.silent_seconds,
            overhead_seconds=stats.overhead_seconds,
        )

    async def close(self) -> None:
        self._closed = True
        self._workers.close()
        await self._engine.close()

    async def _chat_prompt(self, chat: Chat, client: str) -> ChatPrompt:
        """Raises RequestError. A prompt that is many times too long is refused before it is rendered or encoded."""
        tokenizer, template, run = self._model.tokenizer, self._workers.template, self._model.long_texts.run
        texts = [chat.messages, chat.options]
        try:
            marked = await run(texts, client, lambda: mark_chat(tokenizer, chat, self.context))
            if template is None:
                text = await run(texts, client, lambda: render_chat(tokenizer, marked))
            else:
                text = await template.render(marked.messages, marked.options, client)
            reasoning = self._model.reasoning
            begun = [text, chat.begun, chat.begun_reasoning]
            return await run(begun, client, lambda: encode_rendered(tokenizer, marked, text, self.context, reasoning))
        except RequestError as error:
            raise RequestError(error.message, **{"param": "messages", **error.details}) from error

    def _terms(self, call: Call, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None) -> Terms:
        return Terms(max_tokens, logprobs, prompt_logprobs, call.priority, call.deadline, self._adapter, call.client)

    async def _constrained(
        self, requests: Sequence[TokenRequest], grammar: GrammarSource | None, param: str, call: Call
    ) -> list[TokenRequest]:
        """Add a grammar's constraint to each request. All requests have the same prompt."""
        if grammar is None:
            return list(requests)
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

    def _choices(
        self,
        source: TokenSource,
        requests: Sequence[TokenRequest],
        text: AnswerText,
        call: Call,
        sink: Sink[Piece] | None,
    ) -> list[Choice]:
        observed = ObservedTokens(source, call)
        return [answer_choice(observed, self._model.tokenizer, each, text, sink) for each in requests]

    def _answer_text(self, request: GenerationRequest, vocabulary: Vocabulary | None) -> AnswerText:
        check_token_ids(request, self._model.vocab_size)
        return AnswerText(
            StopAutomaton(stops_of(request)),
            include_stop=bool(request.include_stop_str_in_output),
            skip_special_tokens=request.skip_special_tokens is not False,
            vocabulary=vocabulary,
            lists_ids=bool(request.return_token_ids),
        )

    async def _prompts(
        self,
        given: str | list[int] | list[str] | list[list[int]],
        param: str,
        client: str,
        *,
        split_special_tokens: bool = True,
    ) -> list[Prompt]:
        model, context = self._model, self.context
        return await model.long_texts.run(
            given,
            client,
            lambda: read_prompts(
                model.tokenizer, given, model.vocab_size, context, param, split_special_tokens=split_special_tokens
            ),
        )

    async def _vocabulary(self, is_needed: bool) -> Vocabulary | None:
        return await asyncio.to_thread(lambda: self._model.vocabulary) if is_needed else None


def _piece_sink(
    answer: Answer[Written], requests: Sequence[TokenRequest], sink: Sink[Written] | None
) -> Sink[Piece] | None:
    """The sink for the pieces of an answer, None if it has none or several choices."""
    return None if sink is None or len(requests) != 1 else PieceSink(answer, sink)


def _prompt_alternatives(request: GenerationRequest, echoed: int | None) -> int | None:
    """How many alternatives each token of the prompt gets, None for no log-probabilities. ``echoed`` are those of an
    echo. A rank needs all that the device lists.
    """
    return echoed if request.prompt_logprobs is None else ALTERNATIVES


def _max_tokens(request: ChatCompletionRequest) -> int | None:
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise RequestError("max_tokens and max_completion_tokens mean the same; use one of them", param="max_tokens")
    return request.max_completion_tokens if request.max_tokens is None else request.max_tokens
