"""SharedScript: calls the functions of `web/src/shared`, without Node, in QuickJS."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import datetime
from importlib.resources import files
from typing import Any

from ..runtime.errors import RequestError, Unavailable

FILE = "shared.js"
# Enough for the largest prompt. A template that loops must not take a machine's memory or time.
MEMORY_BYTES = 512 * 2**20
CALL_SECONDS = 30.0
# Templates and schemas nest: a tree's depth is the script's depth of calls. The limit must lie within the stack of any
# thread that Python starts: 8 MB or more on Linux and macOS, but only 2 MB on Windows.
STACK_BYTES = (1 if sys.platform == "win32" else 4) * 2**20
_OUT_OF_MEMORY = ("InternalError: out of memory", "InternalError: stack overflow")
_INTERRUPTED = "InternalError: interrupted"
# These change an answer that the script keeps, so they are not repeated.
_CHANGING = ("stepAnswer", "watchAnswer")
_of_thread = threading.local()


class SharedScript:
    """An interpreter with the script. Only the thread that made it may use it."""

    def __init__(self) -> None:
        import quickjs

        context = quickjs.Context()
        context.set_memory_limit(MEMORY_BYTES)
        context.set_max_stack_size(STACK_BYTES)
        context.eval(source())
        self._context = context
        self._functions: dict[str, Any] = {}

    @classmethod
    def of_thread(cls) -> SharedScript:
        """The script of this thread, which its first call makes."""
        if not hasattr(_of_thread, "script"):
            _of_thread.script = cls()
        script: SharedScript = _of_thread.script
        return script

    def call(self, name: str, *arguments: str) -> Any:
        """What a function of `web/src/shared/index.ts` returns for JSON texts.

        For an exception this is {"error", "message"} with the kind of the error. Raises MemoryError.
        """
        import quickjs

        if name not in self._functions:
            self._functions[name] = self._context.eval(f"nearfar.{name}")
        try:
            return json.loads(self._within_time(name, *arguments))
        except quickjs.JSException as error:
            message = str(error).strip()
            if message.startswith(_OUT_OF_MEMORY):
                raise MemoryError(message) from None
            return {"error": "internal", "message": message}

    def _within_time(self, name: str, *arguments: str) -> str:
        """What the function returns within `CALL_SECONDS` of this thread's time.

        QuickJS counts the time of all threads of the process. If it interrupts a call whose own thread had less, the
        call is repeated with twice the limit, up to what all processors can do in `CALL_SECONDS`.
        """
        import quickjs

        limit, most = CALL_SECONDS, CALL_SECONDS * (os.cpu_count() or 1)
        while True:
            self._context.set_time_limit(limit)
            began = time.thread_time()
            try:
                text: str = self._functions[name](*arguments)
                return text
            except quickjs.JSException as error:
                had_its_time = time.thread_time() - began >= CALL_SECONDS or limit >= most
                if had_its_time or name in _CHANGING or not str(error).startswith(_INTERRUPTED):
                    raise
            limit = min(2 * limit, most)

    def ask(self, name: str, *values: Any) -> Any:
        """As `call`, with values for their JSON. Raises RequestError and Unavailable as the function throws them, and
        RuntimeError for any other exception.
        """
        return self.ask_text(name, *map(json.dumps, values))

    def ask_text(self, name: str, *arguments: str) -> Any:
        """As `ask`, with JSON texts."""
        answer = self.call(name, *arguments)
        if isinstance(answer, dict) and "error" in answer:
            kind = {"request": RequestError, "unavailable": Unavailable}.get(answer["error"])
            raise RuntimeError(answer["message"]) if kind is None else kind(answer["message"], **answer["details"])
        return answer

    def supported(self) -> dict[str, list[str]]:
        """The names of "filters" and "tests" that the browser has, and of "lacking_methods" and "lacking_functions"
        that only Jinja2 has.
        """
        names: dict[str, list[str]] = self.call("supported")
        return names

    def wrong_tree_part(self, tree: list[Any]) -> str | None:
        """The path of the first part of a chat template's syntax tree that is wrong; None if it is a tree."""
        path: str | None = self.call("wrongTreePart", json.dumps(tree))
        return path

    def render(self, template: str, chat: dict[str, Any], now: datetime) -> dict[str, str]:
        """A chat's prompt as the browser renders it: {"text"}, or {"error", "message"}. ``template`` is JSON; see
        `web/src/shared/index.ts`.
        """
        time = [now.year, now.month, now.day, now.hour, now.minute, now.second, now.microsecond // 1000]
        answer: dict[str, str] = self.call("render", template, json.dumps(chat), json.dumps(time))
        return answer


def source() -> str:
    return (files(__package__) / FILE).read_text(encoding="utf-8")
