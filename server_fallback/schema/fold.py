"""Add up the chunks of a streamed answer to the complete answer.

The last chunk must have the usage, as `executors.executor.Executor` promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from nearfar.compiler.runtime.errors import Unavailable

from .chat import (
    AnswerFunction,
    AnswerMessage,
    AnswerToolCall,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChunkChoice,
    ToolCallDelta,
)
from .common import FinishReason, TokenLogprob
from .completions import Completion, CompletionChoice, CompletionChunk, CompletionChunkChoice, CompletionLogprobs
from .functions import FunctionCallDelta
from .pipeline import PipelineTrace
from .route import Route

# What an answer reports once of its prompt.
PROMPT_FIELDS = ("prompt_token_ids", "prompt_logprobs")


class ChatFold:
    """A `Fold` of chats."""

    def __init__(self) -> None:
        self._choices: dict[int, _ChatParts] = {}
        self._last: ChatCompletionChunk | None = None
        self._route: Route | None = None
        self._trace: PipelineTrace | None = None
        self._prompt: dict[str, Any] = {}

    def add(self, chunk: ChatCompletionChunk) -> None:
        if withdraws(self._route, chunk.route):
            self._choices.clear()
        self._route = chunk.route or self._route
        if chunk.nearfar is not None:
            passages = chunk.nearfar.passages or (None if self._trace is None else self._trace.passages)
            self._trace = PipelineTrace(steps=chunk.nearfar.steps, passages=passages)
        for choice in chunk.choices:
            self._choices.setdefault(choice.index, _ChatParts()).add(choice)
        self._prompt |= _given(chunk, (*PROMPT_FIELDS, "transcripts", "receipts", "parts"))
        self._last = chunk

    def answer(self) -> ChatCompletion:
        """Raises Unavailable if the chunks ended too early."""
        last = self._last
        if last is None or last.usage is None:
            raise cut_off()
        return ChatCompletion(
            id=last.id,
            created=last.created,
            model=last.model,
            choices=[parts.choice(index) for index, parts in sorted(self._choices.items())],
            usage=last.usage,
            route=self._route,
            nearfar=self._trace,
            **self._prompt,
        )


class CompletionFold:
    """A `Fold` of completions."""

    def __init__(self) -> None:
        self._choices: dict[int, list[CompletionChunkChoice]] = {}
        self._last: CompletionChunk | None = None
        self._route: Route | None = None

    def add(self, chunk: CompletionChunk) -> None:
        if withdraws(self._route, chunk.route):
            self._choices.clear()
        self._route = chunk.route or self._route
        for choice in chunk.choices:
            self._choices.setdefault(choice.index, []).append(choice)
        self._last = chunk

    def answer(self) -> Completion:
        """Raises Unavailable if the chunks ended too early."""
        last = self._last
        if last is None or last.usage is None:
            raise cut_off()
        folded = [_folded_text(index, parts) for index, parts in sorted(self._choices.items())]
        return Completion(
            id=last.id,
            created=last.created,
            model=last.model,
            choices=folded,
            usage=last.usage,
            route=self._route,
            receipts=last.receipts,
            parts=last.parts,
        )


def withdraws(before: Route | None, now: Route | None) -> bool:
    """Whether a chunk's route withdraws the text before it, because the other side began the answer again."""
    return before is not None and now not in (None, before) and now.switched_at == 0


def fold_calls(deltas: Iterable[ToolCallDelta]) -> list[AnswerToolCall]:
    """The tool calls that the parts of one answer add up to."""
    calls: dict[int, _CallParts] = {}
    for delta in deltas:
        call = calls.setdefault(delta.index, _CallParts())
        call.id = delta.id or call.id
        call.add(delta.function)
    return [AnswerToolCall(id=call.id, function=call.function) for _, call in sorted(calls.items())]


@dataclass(slots=True)
class _CallParts:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def add(self, function: FunctionCallDelta | None) -> None:
        if function is not None:
            self.name = function.name or self.name
            self.arguments.append(function.arguments or "")

    @property
    def function(self) -> AnswerFunction:
        return AnswerFunction(name=self.name, arguments="".join(self.arguments))


@dataclass(slots=True)
class _ChatParts:
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    function: _CallParts = field(default_factory=_CallParts)
    logprobs: list[TokenLogprob] | None = None
    token_ids: list[int] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None

    def add(self, choice: ChunkChoice) -> None:
        self.texts.append(choice.delta.content or "")
        self.reasoning.append(choice.delta.reasoning_content or "")
        self.calls += choice.delta.tool_calls or ()
        self.annotations += choice.delta.annotations or ()
        self.function.add(choice.delta.function_call)
        if choice.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += choice.logprobs.content or ()
        if choice.token_ids is not None:
            self.token_ids = [*(self.token_ids or ()), *choice.token_ids]
        self.finish_reason = choice.finish_reason or self.finish_reason
        self.stop_reason = choice.stop_reason or self.stop_reason

    def choice(self, index: int) -> ChatChoice:
        if self.finish_reason is None:
            raise cut_off()
        text, reasoning = "".join(self.texts), "".join(self.reasoning) or None
        calls = fold_calls(self.calls)
        function = self.function.function if self.function.name else None
        return ChatChoice(
            index=index,
            # A message with only calls or reasoning has no content.
            message=AnswerMessage(
                content=None if (calls or function or reasoning) and not text else text,
                reasoning_content=reasoning,
                tool_calls=calls or None,
                function_call=function,
                annotations=self.annotations or None,
            ),
            logprobs=None if self.logprobs is None else ChatLogprobs(content=self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            token_ids=self.token_ids,
        )


def _folded_text(index: int, parts: Sequence[CompletionChunkChoice]) -> CompletionChoice:
    finish_reasons = [part.finish_reason for part in parts if part.finish_reason is not None]
    if not finish_reasons:
        raise cut_off()
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    token_ids = [part.token_ids for part in parts if part.token_ids is not None]
    prompt: dict[str, Any] = {}
    for part in parts:
        prompt |= _given(part, PROMPT_FIELDS)
    return CompletionChoice(
        index=index,
        text="".join(part.text for part in parts),
        logprobs=_joined(logprobs) if logprobs else None,
        finish_reason=finish_reasons[-1],
        stop_reason=parts[-1].stop_reason,
        token_ids=[token_id for ids in token_ids for token_id in ids] if token_ids else None,
        **prompt,
    )


def _given(part: BaseModel, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(part, name)) is not None}


def _joined(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    listed = all(part.top_logprobs is not None for part in parts)
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs or ()] if listed else None,
        text_offset=[offset for part in parts for offset in part.text_offset],
    )


def cut_off() -> Unavailable:
    return Unavailable("the answer was cut off before its end; send the request again")
