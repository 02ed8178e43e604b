"""PipelineExecutor: answers chats by the steps of a pipeline, with the models of this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, Protocol

import numpy as np

from nearfar.compiler.runtime.errors import NearfarError, RequestError, Unavailable

from ..executors.encoder_executor import EncoderExecutor
from ..executors.executor import Call, Executor, ExecutorState, Ranks, UnknownModel
from ..retrieval.store import Passage, VectorStore
from ..schema.chat import ChatCompletionChunk, ChatCompletionRequest, Message
from ..schema.completions import AnswerRequest, CompletionRequest
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.fold import ChatFold
from ..schema.pipeline import PipelineTrace, StepTime, UsedPassage
from ..schema.rerank import RerankRequest
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from ..text.output import Answering, Changed, Output, folded
from .plan import PLACEHOLDER, Plan, inputs_of
from .schema import ChatStep, EmbedStep, PipelineStep, RerankStep, SearchStep, Step

Value = str | np.ndarray | list[Passage]
# Of an inner step's answer that requests no number.
INNER_MAX_TOKENS = 256
# Fields of a request that a step sets itself.
OWN_FIELDS = frozenset({"model", "messages", "stream", "stream_options"})


class PipelineModels(Protocol):
    """The models of this process by name. All methods raise UnknownModel."""

    async def executor(self, name: str) -> Executor: ...

    def using(self, name: str) -> AbstractAsyncContextManager[Executor]: ...

    def state(self, name: str) -> ExecutorState: ...


@dataclass(slots=True)
class Run:
    """One request: its values so far, the times of its steps, and the models that it uses."""

    request: ChatCompletionRequest
    call: Call
    began: float = field(default_factory=time.monotonic)
    values: dict[str, Value] = field(default_factory=dict)
    times: list[StepTime] = field(default_factory=list)
    held: AsyncExitStack = field(default_factory=AsyncExitStack)

    def trace(self, last: Step) -> PipelineTrace:
        """The steps before the last one, and the passages that it reads."""
        found: list[Passage] = []
        for name in inputs_of(last):
            value = self.values.get(name)
            found += value if isinstance(value, list) else []
        passages = [
            UsedPassage(source=each.source, begins=each.begins, ends=each.ends, score=each.score, text=each.text)
            for each in found
        ]
        return PipelineTrace(steps=self.times, passages=passages or None)


class PipelineExecutor:
    """An `Executor`. It owns the ``stores``, by their names in the file, and ``inner``, the executors of the pipelines
    in it by their paths in the file, but not the models.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        models: PipelineModels,
        stores: Mapping[str, VectorStore],
        inner: Mapping[str, PipelineExecutor],
        context: int,
    ) -> None:
        self._plan, self._name, self._models = plan, name, models
        self._stores, self._inner = stores, inner
        self._running = 0
        self.context = context

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
        if isinstance(request, CompletionRequest):
            self._refuse()
        run = Run(request, call, values={"question": _question(request.messages)})
        self._running += 1
        try:
            async with run.held:
                await self._run_steps(run)
                await self._last(run, output)
        finally:
            self._running -= 1

    async def _last(self, run: Run, output: Output[ChatCompletionChunk]) -> None:
        """The chunks of the last step, as this pipeline's."""
        last, begins, is_first = self._plan.last, time.monotonic(), True

        def as_ours(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
            nonlocal is_first
            trace = None
            if is_first:
                trace, is_first = run.trace(last), False
            elif any(choice.finish_reason is not None for choice in chunk.choices):
                trace = PipelineTrace(steps=[*run.times, _time(last, run, begins)])
            return chunk.model_copy(update={"model": self._name, "nearfar": trace})

        answering = await self._answering(last, run, run.call, is_last=True)
        await answering(Changed(output, as_ours))
        self._ended(last, run, begins)

    async def _run_steps(self, run: Run) -> None:
        """Each step begins when its inputs are there. Raises the first error, after the others were cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}

        async def after(step: Step, needed: Sequence[asyncio.Task[None]]) -> None:
            for task in needed:
                await task
            await self._run_step(step, run)

        try:
            async with asyncio.TaskGroup() as group:
                for step in self._plan.order:
                    needed = [tasks[name] for name in inputs_of(step) if name in tasks]
                    tasks[step.output] = group.create_task(after(step, needed))
        except* NearfarError as errors:
            raise errors.exceptions[0] from None

    async def _run_step(self, step: Step, run: Run) -> None:
        begins, call = time.monotonic(), _inner_call(run.call)
        match step:
            case EmbedStep():
                executor = await self._encoder(step.model, run)
                run.values[step.output] = (await executor.vectors([_text(run, step.input)], call, is_query=True))[0]
            case SearchStep():
                vector = run.values[step.input]
                assert isinstance(vector, np.ndarray)
                run.values[step.output] = await asyncio.to_thread(self._stores[step.store].search, vector, step.limit)
            case RerankStep():
                run.values[step.output] = await self._rerank(step, run, call)
            case ChatStep() | PipelineStep():
                answer = await folded(await self._answering(step, run, call, is_last=False), ChatFold())
                run.values[step.output] = answer.choices[0].message.content or ""
        self._ended(step, run, begins)

    async def _rerank(self, step: RerankStep, run: Run, call: Call) -> list[Passage]:
        passages = run.values[step.input]
        assert isinstance(passages, list)
        executor = await self._executor(step.model, run)
        assert isinstance(executor, Ranks)
        if not passages:
            return []
        answer = await executor.rerank(
            RerankRequest(
                model=step.model,
                query=_text(run, step.query),
                documents=[passage.text for passage in passages],
                top_n=step.limit,
                truncate=True,
            ),
            call,
        )
        return [replace(passages[each.index], score=each.relevance_score) for each in answer.results]

    async def _answering(
        self, step: ChatStep | PipelineStep, run: Run, call: Call, *, is_last: bool
    ) -> Answering[ChatCompletionChunk]:
        request, messages = run.request, list(run.request.messages)
        if step.prompt is not None:
            if is_last:
                _require_no_images(messages)
            messages = [Message(role="user", content=_filled(step.prompt, run))]
        given: dict[str, Any] = {"temperature": 0.0, "max_completion_tokens": INNER_MAX_TOKENS}
        if is_last:
            given = {name: getattr(request, name) for name in request.model_fields_set - OWN_FIELDS}
        model = self._name
        if isinstance(step, ChatStep):
            model = step.model
            if step.system is not None:
                messages = _with_system(messages, _filled(step.system, run))
            if step.max_tokens is not None and (not is_last or _limit(request) is None):
                given["max_completion_tokens"] = step.max_tokens
            if step.temperature is not None and (not is_last or request.temperature is None):
                given["temperature"] = step.temperature
        request = ChatCompletionRequest.model_construct(**given, model=model, messages=messages, stream=True)
        if isinstance(step, PipelineStep):
            return partial(self._inner[step.pipeline].answer, request, call)
        executor = await self._executor(step.model, run)
        return partial(executor.answer, request, call)

    async def _executor(self, name: str, run: Run) -> Executor:
        try:
            return await run.held.enter_async_context(self._models.using(name))
        except RequestError as error:
            raise Unavailable(f"{self._name}: its model {name} is not loaded; load it again") from error

    async def _encoder(self, name: str, run: Run) -> EncoderExecutor:
        executor = await self._executor(name, run)
        if not isinstance(executor, EncoderExecutor):
            raise Unavailable(f"{self._name}: its model {name} makes no embeddings any more; load the pipeline again")
        return executor

    def _ended(self, step: Step, run: Run, begins: float) -> None:
        ended = _time(step, run, begins)
        run.times.append(ended)
        if run.call.observe_step is not None:
            run.call.observe_step(ended, begins)

    # --- the rest of an executor ---

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:  # noqa: ARG002
        self._refuse()

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:  # noqa: ARG002
        self._refuse()

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:  # noqa: ARG002
        self._refuse()

    def state(self) -> ExecutorState:
        for name in self.model_names():
            try:
                is_ready = self._models.state(name).ready
            except UnknownModel:
                return ExecutorState(ready=False, detail=f"its model {name} is not loaded", running=self._running)
            if not is_ready:
                return ExecutorState(ready=False, detail=f"its model {name} is not ready", running=self._running)
        steps = len(self._plan.file.steps)
        return ExecutorState(ready=True, detail=f"pipeline of {steps} steps", running=self._running)

    def model_names(self) -> list[str]:
        """The models of its steps and of those of the pipelines in it."""
        own = [step.model for step in self._plan.file.steps if isinstance(step, EmbedStep | RerankStep | ChatStep)]
        return list(dict.fromkeys([*own, *(name for each in self._inner.values() for name in each.model_names())]))

    async def close(self) -> None:
        for store in self._stores.values():
            await asyncio.to_thread(store.close)
        for inner in self._inner.values():
            await inner.close()

    def _refuse(self) -> NoReturn:
        raise RequestError(f"{self._name}: a pipeline answers only /v1/chat/completions", param="model")


def _time(step: Step, run: Run, begins: float) -> StepTime:
    """The time of a step that ends now; ``begins`` is a time of `time.monotonic`."""
    return StepTime(
        name=step.output,
        kind=step.kind,
        model=step.store if isinstance(step, SearchStep) else getattr(step, "model", None),
        started_ms=round((begins - run.began) * 1e3, 3),
        ms=round((time.monotonic() - begins) * 1e3, 3),
    )


def _inner_call(call: Call) -> Call:
    """The call of a step whose tokens the client does not see."""
    return replace(
        call,
        expect_tokens=None,
        observe_queue=None,
        observe_token=None,
        observe_prompt_logprobs=None,
        observe_step=None,
    )


def _question(messages: Sequence[Message]) -> str:
    """Raises RequestError if the chat has no text of the user."""
    for message in reversed(messages):
        if message.role == "user" and (text := _message_text(message)).strip():
            return text
    raise RequestError("a pipeline needs a message of the user with text", param="messages")


def _require_no_images(messages: Sequence[Message]) -> None:
    """Raises RequestError for an image, which no prompt of a step has."""
    place = next((index for index, message in enumerate(messages) if message.images), None)
    if place is not None:
        raise RequestError(
            f"messages[{place}] has an image, but this pipeline answers a prompt of its own, which has texts only; "
            "leave the image out",
            param=f"messages[{place}].content",
        )


def _message_text(message: Message) -> str:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(text for part in content if isinstance(text := getattr(part, "text", None), str))


def _with_system(messages: Sequence[Message], text: str) -> list[Message]:
    """Before the client's own system message, if it has one: templates accept only one."""
    first = messages[0]
    if first.role in ("system", "developer"):
        return [first.model_copy(update={"content": f"{text}\n\n{_message_text(first)}"}), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def _text(run: Run, name: str) -> str:
    value = run.values[name]
    assert isinstance(value, str)
    return value


def _filled(template: str, run: Run) -> str:
    """A text with its values. Passages are numbered, so that an answer can cite them."""

    def value(name: str) -> str:
        found = run.values[name]
        if isinstance(found, str):
            return found
        assert isinstance(found, list)
        return "\n\n".join(f"[{number}] {each.source}\n{each.text}" for number, each in enumerate(found, 1))

    return PLACEHOLDER.sub(lambda match: value(match[1]), template)


def _limit(request: ChatCompletionRequest) -> int | None:
    return request.max_completion_tokens if request.max_tokens is None else request.max_tokens
