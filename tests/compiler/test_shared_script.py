"""The time of a call of the shared script: that of its own thread."""

from __future__ import annotations

from typing import Any

import pytest
import quickjs

from nearfar.compiler.shared import script as shared
from nearfar.compiler.shared.script import SharedScript


class Interrupted:
    """A function that QuickJS interrupts the first ``times`` times, because of what other threads did."""

    def __init__(self, times: int) -> None:
        self.times, self.calls = times, 0

    def __call__(self, *_: str) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise quickjs.JSException("InternalError: interrupted\n    at a")
        return "[]"


def call(name: str, function: Any) -> Any:
    script = SharedScript()
    script._functions[name] = function
    return script.call(name, "1")


INTERRUPTED = {"error": "internal", "message": "InternalError: interrupted\n    at a"}


def test_a_call_is_repeated_that_other_threads_have_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert call("textInputs", Interrupted(2)) == []
    # All processors have worked for the time of a call.
    busy = Interrupted(3)
    assert (call("textInputs", busy), busy.calls) == (INTERRUPTED, 3)


def test_a_call_that_changes_an_answer_is_not_repeated() -> None:
    changing = Interrupted(1)
    assert (call("watchAnswer", changing), changing.calls) == (INTERRUPTED, 1)


def test_a_call_that_does_not_end_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "CALL_SECONDS", 0.05)
    script = SharedScript()
    script._functions["endless"] = script._context.eval("() => { for (;;); }")
    assert script.call("endless")["message"].startswith("InternalError: interrupted")
