"""An engine whose answers are written down."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from nearfar.server_fallback.agent import function_tool
from nearfar.server_fallback.agent.tools import ToolSource

# A call: the tool, and its arguments as values or as text.
Script = Sequence[tuple[str, Any]] | str
ANSWERED: Script = [("answer", {"text": "done"})]
LIGHT: dict[str, Any] = {
    "type": "object",
    "properties": {"room": {"enum": ["kitchen", "bath"]}, "level": {"type": "integer", "minimum": 0, "maximum": 100}},
    "required": ["room", "level"],
    "additionalProperties": False,
}
DIM = {"room": "kitchen", "level": 30}


class ScriptedEngine:
    """Answers in turn, then repeats the last. ``asked`` are the requests as they were. ``hangs``: it never answers."""

    def __init__(self, *scripts: Script, hangs: bool = False) -> None:
        self.scripts, self.hangs = scripts, hangs
        self.asked: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    async def create(self, **parameters: Any) -> Any:
        step = len(self.asked)
        self.asked.append(copy.deepcopy(parameters))
        if self.hangs:
            await asyncio.Event().wait()
        script = self.scripts[min(step, len(self.scripts) - 1)]
        calls = [] if isinstance(script, str) else script
        # In the pieces of a stream: a text in two, the arguments of a call in two, then the end and the usage.
        deltas = [delta(content=half) for half in halves(script)] if isinstance(script, str) else []
        for index, (name, values) in enumerate(calls):
            first, rest = halves(values if isinstance(values, str) else json.dumps(values))
            deltas.append(delta(index, id=f"call_{step}_{index}", name=name, arguments=first))
            deltas.append(delta(index, arguments=rest))

        async def stream() -> AsyncGenerator[Any, None]:
            for each in deltas:
                yield chunk(SimpleNamespace(delta=each, finish_reason=None))
            yield chunk(SimpleNamespace(delta=delta(), finish_reason="tool_calls" if calls else "stop"))
            yield chunk(usage=SimpleNamespace(completion_tokens=5))

        assert parameters["stream"]
        return stream()

    def last_result(self, step: int) -> str:
        """What the model reads last in this step."""
        text: str = self.asked[step]["messages"][-1]["content"]
        return text


def halves(text: str) -> tuple[str, str]:
    return text[:3], text[3:]


def chunk(*choices: Any, usage: Any = None) -> Any:
    return SimpleNamespace(choices=list(choices), usage=usage)


def delta(index: int | None = None, *, id: str | None = None, content: str | None = None, **function: str) -> Any:
    """``index``: of a call."""
    made = SimpleNamespace(name=function.get("name"), arguments=function.get("arguments"))
    calls = None if index is None else [SimpleNamespace(index=index, id=id, function=made)]
    return SimpleNamespace(content=content, tool_calls=calls)


def light(done: list[Mapping[str, Any]] | None = None, **changes: Any) -> ToolSource:
    def set_light(room: str, level: int) -> str:
        if done is not None:
            done.append({"room": room, "level": level})
        return f"{room} is at {level}"

    return function_tool(set_light, **{"description": "Set a light", "parameters": LIGHT, **changes})
