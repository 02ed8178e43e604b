"""SharedScript: calls the functions of `web/src/shared`, without Node, in QuickJS."""

from __future__ import annotations

import json
from datetime import datetime
from importlib.resources import files
from typing import Any

FILE = "shared.js"
# Enough for the largest prompt. A template that loops must not take a machine's memory or time.
MEMORY_BYTES = 512 * 2**20
CALL_SECONDS = 30
# Templates nest: a tree's depth is the script's depth of calls.
STACK_BYTES = 4 * 2**20


class SharedScript:
    """An interpreter with the script. Only the thread that made it may use it."""

    def __init__(self) -> None:
        import quickjs

        context = quickjs.Context()
        context.set_memory_limit(MEMORY_BYTES)
        context.set_max_stack_size(STACK_BYTES)
        context.set_time_limit(CALL_SECONDS)
        context.eval(source())
        self._context = context
        self._render = context.eval("nearfar.render")

    def supported(self) -> dict[str, list[str]]:
        """The names of "filters" and "tests" that the browser has, and of "lacking_methods" and "lacking_functions"
        that only Jinja2 has.
        """
        names: dict[str, list[str]] = json.loads(self._context.eval("nearfar.supported()"))
        return names

    def render(self, template: str, chat: dict[str, Any], now: datetime) -> dict[str, str]:
        """A chat's prompt as the browser renders it: {"text"}, or {"error", "message"}. ``template`` is JSON; see
        `web/src/shared/index.ts`.
        """
        import quickjs

        time = [now.year, now.month, now.day, now.hour, now.minute, now.second, now.microsecond // 1000]
        try:
            answer: dict[str, str] = json.loads(self._render(template, json.dumps(chat), json.dumps(time)))
        except quickjs.JSException as error:
            return {"error": "internal", "message": str(error).strip()}
        return answer


def source() -> str:
    return (files(__package__) / FILE).read_text(encoding="utf-8")
