"""An agent: asks a model for one step after another, runs the tools that it calls, and ends with its answer or at a
bound. What a step may do is decided in `web/src/shared/agent/loop.ts`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript

from .events import (
    AgentCall,
    AgentEvent,
    AgentResult,
    AgentStep,
    AskedCall,
    CallEnded,
    Calling,
    CallOutcome,
    Ended,
    EndReason,
    Reasoning,
    Routed,
    StepBegan,
    Text,
    Withdrawn,
)
from .tools import Tool, ToolSource
from .written import Piece, Written

if TYPE_CHECKING:
    from ..router.hybrid import Leaving

T = TypeVar("T")
_OWN_PARAMETERS = ("messages", "tools", "tool_choice", "stream", "n", "parallel_tool_calls", "stake", "max_tokens")
_PIECES: Mapping[str, Callable[..., AgentEvent]] = {"text": Text, "reasoning": Reasoning, "withdrawn": Withdrawn}


class ChatSource(Protocol):
    """A `Hybrid`, or a client such as `openai.AsyncOpenAI`."""

    @property
    def chat(self) -> Any: ...


class Agent:
    """Runs tasks with a model and tools.

    ``routes``: whether the engine has a policy that reads stakes and labels, by default whether it is a `Hybrid`; True
    for an `openai.AsyncOpenAI` of a `nearfar gateway`. ``parameters`` are further ones of each chat, such as
    ``temperature``, and for OpenAI's client ``model``. ``approve`` decides whether a call of a tool whose ``allow`` is
    "ask" runs. ``answer`` is a JSON schema of an object, for an answer that is data.
    """

    def __init__(
        self,
        engine: ChatSource,
        tools: Sequence[ToolSource],
        *,
        approve: Callable[[AskedCall], bool | Awaitable[bool]] | None = None,
        bounds: Mapping[str, float] | None = None,
        routing: Mapping[str, float] | None = None,
        answer: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        routes: bool | None = None,
    ) -> None:
        """Raises RequestError for options that can never work."""
        self.engine, self.tools, self.approve = engine, tuple(tools), approve
        self.parameters = dict(parameters or {})
        own = next((name for name in _OWN_PARAMETERS if name in self.parameters), None)
        if own is not None:
            raise RequestError(f"parameters: {own} is set by the agent; remove it", param=f"parameters.{own}")
        self.is_hybrid = _is_hybrid(engine)
        self.routes = self.is_hybrid if routes is None else routes
        options = {"bounds": bounds, "routing": routing, "answer": answer}
        self.first: dict[str, Any] = SharedScript.of_thread().ask("agentOpen", options)

    async def run(self, task: str | Sequence[Mapping[str, Any]]) -> AgentResult:
        """Run a task: a text, or the messages of a chat. Cancelling ends it at once, also within a tool.

        Raises RequestError for tools that cannot be called, and the errors of the engine and of ``approve``. An error
        of a tool does not end the run: the model receives it as text.
        """
        async with aclosing(self.events(task)) as events:
            async for event in events:
                if isinstance(event, Ended):
                    return event.result
        raise AssertionError("a run ends with a result")

    async def events(self, task: str | Sequence[Mapping[str, Any]]) -> AsyncGenerator[AgentEvent, None]:
        """As `run`, with all that happens. Closing them ends the run."""
        run = _Run(self, task)
        try:
            async with aclosing(run.events()) as events:
                async for event in events:
                    yield event
        except _Late:
            run.end("seconds")
        yield Ended(run.result())


@dataclass(frozen=True, slots=True)
class _Executed:
    outcome: CallOutcome
    text: str = ""
    error: Exception | None = None
    left: str | None = None


class _Late(Exception):
    """The run's seconds are over."""


class _Run:
    def __init__(self, agent: Agent, task: str | Sequence[Mapping[str, Any]]) -> None:
        self._agent, self._state = agent, agent.first
        self._began = time.monotonic()
        messages = [{"role": "user", "content": task}] if isinstance(task, str) else task
        self._messages = [dict(message) for message in messages]
        self._steps: list[AgentStep] = []
        # Of the results that the model has read.
        self._labels: list[str] = []
        self._end: tuple[EndReason, str | None, Any] = ("steps", None, None)

    def end(self, reason: EndReason, text: str | None = None, answer: Any = None) -> None:
        self._end = (reason, text, answer)

    def result(self) -> AgentResult:
        return AgentResult(*self._end, self._steps, self._messages, self._state["tokens"], self._seconds())

    async def events(self) -> AsyncGenerator[AgentEvent, None]:
        tools = await self._list_tools()
        listed = [entry for entry, _ in tools]
        while True:
            plan = self._ask("agentNextStep", self._state, self._seconds(), len(tools))
            if plan["end"] is not None:
                self.end(plan["end"])
                return
            step: int = self._state["step"]
            yield StepBegan(step, plan["stake"])
            written = Written()
            try:
                async with aclosing(self._pieces(written, listed, plan)) as pieces:
                    async for kind, *piece in pieces:
                        yield _PIECES[kind](step, *piece)
            except RequestError as refusal:
                if not self._ask("agentOutOfTokens", self._state, plan["max_tokens"], refusal.details):
                    raise
                self.end("tokens")
                return
            route, tokens, calls = written.route, written.tokens, written.made
            text = None if not written.text and calls else written.text
            yield Routed(step, route)
            made = {
                "calls": len(calls), "finish_reason": written.finish_reason, "tokens": tokens,
                "max_tokens": plan["max_tokens"],
            }  # fmt: skip
            after = self._ask("agentAfterStep", self._state, made)
            self._state = after["state"]
            record = AgentStep(plan["stake"], route, tokens)
            self._steps.append(record)
            self._messages.append(_assistant(text, calls))
            if after["end"] is not None:
                self.end(after["end"], text, text)
                return
            for identity, name, arguments in calls:
                verdict = self._ask("agentJudge", self._state, listed, {"name": name, "arguments": arguments})
                if verdict["verdict"] == "end":
                    self.end(verdict["reason"])
                    return
                if verdict["verdict"] == "answer":
                    # So that the conversation can go on: servers require a result of each call.
                    self._messages.append(_result(identity, "(the user has received it)"))
                    self.end(verdict["reason"], verdict["text"], verdict["values"])
                    return
                tool = tools[verdict["index"]][1] if verdict["verdict"] == "run" else None
                source_name, server = (name, None) if tool is None else (tool.name, tool.server)
                yield Calling(step, source_name, server, arguments)
                if tool is None:
                    executed = _Executed("refused", verdict["text"])
                else:
                    executed = await self._execute(tool, arguments)
                    self._labels += tool.labels
                outcome = executed.outcome
                about = {"tool": name, "key": verdict["key"], "reads": tool is not None and tool.reads}
                done = self._ask("agentAfterCall", self._state, about, outcome, executed.text)
                self._state = done["state"]
                labels = tool.labels if tool is not None and self._agent.routes else ()
                self._messages.append(_result(identity, done["text"], labels))
                call = AgentCall(source_name, server, arguments, outcome, done["text"], executed.error, executed.left)
                record.calls.append(call)
                yield CallEnded(step, call)

    async def _execute(self, tool: Tool, arguments: str) -> _Executed:
        # Python's integers have all of their digits, which the shared script's have not.
        values, leaving, leaves = json.loads(arguments or "{}"), None, None
        is_private = asks = False
        if tool.remote and self._agent.is_hybrid:
            leaving = await self._leaving(tool, arguments)
            is_private, leaves = leaving is None, arguments
            if leaving is not None:
                calls = leaving.messages[0].tool_calls or []
                leaves = calls[0].function.arguments
            # What must stay leaves as it is, if somebody approves it.
            asks = leaving is None or leaving.asks
        if tool.allow == "ask" or asks:
            asked = AskedCall(tool.name, tool.server, tool.description, arguments, values, leaves, is_private)
            approved = self._agent.approve(asked) if self._agent.approve is not None else False
            if isinstance(approved, Awaitable):
                approved = await self._within(approved)
            if not isinstance(approved, bool):
                raise RequestError("approve must return True or False, or an awaitable of it", param="approve")
            if not approved:
                return _Executed("denied")
        try:
            result = await self._within(tool.call(values if leaves in (None, arguments) else json.loads(leaves)))
        except _Late:
            raise
        except Exception as error:
            text = str(error) or type(error).__name__
            return _Executed("failed", text if leaving is None else leaving.restored(text), error, leaves)
        text = result.text if leaving is None else leaving.restored(result.text)
        return _Executed("failed" if result.failed else "ran", text, None, leaves)

    async def _leaving(self, tool: Tool, arguments: str) -> Leaving | None:
        """What leaves this machine with a call; None if the policy keeps its arguments here. What a model writes after
        it has read a private result may be private as well.
        """
        function = {"name": tool.name, "arguments": arguments}
        call = {"id": "call", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        engine: Any = self._agent.engine
        found: Leaving | None = await self._within(engine.leaving([message], self._labels))
        return found

    async def _pieces(
        self, written: Written, listed: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]
    ) -> AsyncGenerator[Piece, None]:
        """What the model writes. Raises _Late."""
        chunks = aiter(await self._within(self._create(listed, plan)))
        try:
            while True:
                try:
                    chunk = await self._within(anext(chunks))
                except StopAsyncIteration:
                    return
                for piece in written.add(chunk):
                    yield piece
        finally:
            # A Hybrid's generator, or an OpenAI client's stream.
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    async def _create(self, listed: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> Any:
        agent, stake = self._agent, plan["stake"]
        routed: dict[str, Any] = {}
        if agent.routes:
            sent = {"stake": {"weight": stake["weight"], "doubt": stake["doubt"]}}
            # OpenAI's client sends no unknown parameter but so.
            routed = sent if agent.is_hybrid else {"extra_body": {**agent.parameters.get("extra_body", {}), **sent}}
        if not agent.is_hybrid:
            routed["stream_options"] = {"include_usage": True}
        return await agent.engine.chat.completions.create(
            **{**agent.parameters, **routed},
            messages=self._messages,
            tools=self._ask("agentOffered", self._state, listed),
            tool_choice=plan["tool_choice"],
            parallel_tool_calls=False,
            max_tokens=plan["max_tokens"],
            stream=True,
        )

    async def _list_tools(self) -> list[tuple[Mapping[str, Any], Tool]]:
        """The tools by the names that the model knows, each with its entry."""
        listed = [tool for source in self._agent.tools for tool in await self._within(source.list())]
        entries = self._ask("agentTools", [tool.entry() for tool in listed])
        self._ask("agentApproval", entries, self._agent.approve is not None)
        shown = [tool for tool in listed if tool.allow != "never"]
        labelled = next((tool for tool in shown if tool.labels), None)
        if labelled is not None and not self._agent.routes:
            raise RequestError(
                f"results of {labelled.name} have labels, which only a Hybrid's policy reads; give the agent a Hybrid, "
                "or routes=True for a gateway",
                param="tools",
            )
        return list(zip(entries, shown, strict=True))

    async def _within(self, work: Awaitable[T]) -> T:
        """Wait until the run's time is over. Raises _Late."""
        left = self._state["bounds"]["seconds"] - self._seconds()
        scope = asyncio.timeout(max(0.0, left))
        try:
            async with scope:
                return await work
        except TimeoutError:
            if scope.expired():
                raise _Late from None
            raise

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    @staticmethod
    def _ask(name: str, *values: Any) -> Any:
        return SharedScript.of_thread().ask(name, *values)


def _is_hybrid(engine: object) -> bool:
    # An application with another engine need not have installed what a Hybrid imports.
    module = sys.modules.get("nearfar.server_fallback.router.hybrid")
    return module is not None and isinstance(engine, module.Hybrid)


def _assistant(text: str | None, calls: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
            for identity, name, arguments in calls
        ]
    return message


def _result(identity: str, text: str, labels: Sequence[str] = ()) -> dict[str, Any]:
    labelled = {"labels": list(labels)} if labels else {}
    return {"role": "tool", "tool_call_id": identity, "content": text, **labelled}
