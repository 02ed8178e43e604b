"""Written: what a model writes in one step, from the chunks of its answer, as `web/src/agent/written.ts`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from nearfar.compiler.shared.script import SharedScript

ANSWER = "answer"
# What it is, and the fields of its event after the step.
Piece = tuple[Literal["text"], str | None, str] | tuple[Literal["reasoning"], str] | tuple[Literal["withdrawn"]]


@dataclass(slots=True)
class WrittenCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Written:
    """``tokens`` is None if a server does not count them. Chunks are those of a `Hybrid` or of an OpenAI client."""

    text: str = ""
    calls: dict[int, WrittenCall] = field(default_factory=dict)
    finish_reason: str = "stop"
    tokens: int | None = None
    route: Any = None

    @property
    def made(self) -> list[tuple[str, str, str]]:
        """The calls: id, name and arguments."""
        return [(call.id, call.name, call.arguments) for _, call in sorted(self.calls.items())]

    def add(self, chunk: Any) -> Iterator[Piece]:
        """The pieces that a chunk adds."""
        route, usage = getattr(chunk, "route", None), getattr(chunk, "usage", None)
        choice = chunk.choices[0] if chunk.choices else None
        ends = choice is not None and choice.finish_reason is not None
        if route is not None and not ends and _switched_at(route) == 0 and (self.text or self.calls):
            self.text = ""
            self.calls.clear()
            yield ("withdrawn",)
        self.route = self.route if route is None else route
        self.tokens = self.tokens if usage is None else usage.completion_tokens
        if choice is None:
            return
        delta = choice.delta
        self.finish_reason = choice.finish_reason or self.finish_reason
        if thought := getattr(delta, "reasoning_content", None):
            yield "reasoning", thought
        if delta.content:
            self.text += delta.content
            yield "text", None, delta.content
        for each in delta.tool_calls or ():
            yield from self._add_call(each)

    def _add_call(self, delta: Any) -> Iterator[Piece]:
        call, function = self.calls.setdefault(delta.index, WrittenCall()), delta.function
        call.id = delta.id or call.id
        if function is None:
            return
        call.name = function.name or call.name
        before, added = call.arguments, function.arguments or ""
        call.arguments += added
        if call.name == ANSWER:
            ask = SharedScript.of_thread().ask
            added = ask("agentAnswerBegun", call.arguments)[len(ask("agentAnswerBegun", before)) :]
        if added:
            yield "text", None if call.name == ANSWER else call.name, added


def _switched_at(route: Any) -> int | None:
    """A client of OpenAI has a route as a mapping."""
    switched_at: int | None = route.get("switched_at") if isinstance(route, dict) else route.switched_at
    return switched_at
