"""Reads tool calls out of the streamed pieces of an answer, in the order in which OpenAI's API streams them.

The result does not depend on how the text is divided into pieces. Text that looks like a call but is not one is
returned as text.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .tools import TOOL_CALL, ToolFormat


@dataclass(frozen=True, slots=True)
class TextEvent:
    text: str


@dataclass(frozen=True, slots=True)
class CallEvent:
    """A call begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsEvent:
    index: int
    text: str


ToolCallEvent = TextEvent | CallEvent | ArgumentsEvent
# text: outside of calls. head: in a call whose name is not known yet. arguments: in its arguments. tail: after its
# arguments, before its end.
_Mode = Literal["text", "head", "arguments", "tail"]

_CLOSE = "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_STRING = r'"(?:[^"\\]|\\.)*"'
_TYPE = r'(?:"type"\s*:\s*"function"\s*,\s*)?'
# A call up to the start of its arguments.
_HEAD = re.compile(
    rf'\s*\{{\s*{_TYPE}"name"\s*:\s*({_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)', re.DOTALL
)
_FIRST_KEY = re.compile(rf"\s*\{{\s*({_STRING})", re.DOTALL)
# What may come before a call.
_LEAD = re.compile(r"\A[\s;]*")
_OBJECT_OR_NOTHING = re.compile(r"\s*(\{|\Z)")
_KEYS = ("name", "type", "arguments", "parameters")


class _Nesting:
    """Follows JSON text until its first object ends."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: str, start: int = 0) -> int:
        """The index after the object's closing brace; -1 if ``text`` does not contain it."""
        for position in range(start, len(text)):
            character = text[position]
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return position + 1
        return -1


class ToolCallStream:
    """With ``begins``, the answer has calls only if it begins with one of these texts; otherwise it is all text."""

    def __init__(
        self,
        form: ToolFormat,
        new_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex}",
        begins: Sequence[str] | None = None,
    ) -> None:
        self._form = form
        # None once it is known what the answer is.
        self._begins = begins
        self._only_text = False
        self._new_id = new_id
        self._mode: _Mode = "text"
        # Text not decided on.
        self._held = ""
        # How the call at hand began, for when it is none.
        self._opened = ""
        self._calls = 0
        self._nesting = _Nesting()
        # Whether the brace that ends the call's own object is taken with its arguments.
        self._brace_taken = False
        # Whether text arrived that is not a call, after which llama3 has no calls.
        self._has_text = False

    @property
    def calls(self) -> int:
        """Calls so far."""
        return self._calls

    @property
    def whole(self) -> bool:
        """Whether the answer so far ends with a call whose arguments are complete."""
        return self._calls > 0 and self._mode in ("text", "tail") and not self._has_text

    def feed(self, text: str) -> list[ToolCallEvent]:
        self._held += text
        return _joined(self._advance(ended=False))

    def finish(self) -> list[ToolCallEvent]:
        """What is still held back at the end of the answer.

        The arguments of a call that was cut off stay incomplete.
        """
        return _joined(self._advance(ended=True))

    def _advance(self, *, ended: bool) -> list[ToolCallEvent]:
        events: list[ToolCallEvent] = []
        while True:
            before = (self._mode, len(self._held))
            events += self._step(ended)
            open_call = ended and self._mode == "head"
            if (not self._held and not open_call) or (self._mode, len(self._held)) == before:
                return events

    def _step(self, ended: bool) -> list[ToolCallEvent]:
        if self._begins is not None:
            if not ended and any(begin != self._held and begin.startswith(self._held) for begin in self._begins):
                return []
            self._only_text = not self._held.startswith(tuple(self._begins))
            self._begins = None
        if self._only_text:
            return self._text(self._take(len(self._held)))
        if self._mode == "text":
            return self._hermes_text(ended) if self._form == "hermes" else self._llama_text(ended)
        if self._mode == "head":
            return self._head(ended)
        if self._mode == "arguments":
            return self._arguments()
        self._tail(ended)
        return []

    def _hermes_text(self, ended: bool) -> list[ToolCallEvent]:
        start = self._held.find(TOOL_CALL)
        if start >= 0:
            text = self._take(start)
            self._opened = self._take(len(TOOL_CALL))
            self._mode = "head"
            return self._text(text) if text.strip() or self._has_text else []
        # White space before a call is dropped, and the start of a tag may become a complete tag.
        blank = not self._has_text and not self._held.strip()
        kept = 0 if ended else len(self._held) if blank else _overlap(self._held, TOOL_CALL)
        rest = self._held[: len(self._held) - kept]
        if not self._has_text and not rest.strip() and not ended:
            return []
        return self._text(self._take(len(rest)))

    def _llama_text(self, ended: bool) -> list[ToolCallEvent]:
        if not self._has_text:
            rest = _LEAD.sub("", self._held, count=1)
            lead = len(self._held) - len(rest)
            if rest.startswith((_PYTHON_TAG, "{")):
                self._opened = self._take(lead + (0 if rest.startswith("{") else len(_PYTHON_TAG)))
                self._mode = "head"
                return []
            if not ended and _PYTHON_TAG.startswith(rest):
                return []
            if not rest and self._calls:
                self._take(lead)
                return []
        return self._text(self._take(len(self._held)))

    def _head(self, ended: bool) -> list[ToolCallEvent]:
        match = _HEAD.match(self._held)
        name = None if match is None else _parsed(match[1])
        if match is not None and isinstance(name, str):
            self._take(match.end())
            return [self._started(name)]
        # The keys have another order: the entire call is returned at once.
        end = self._held.find(_CLOSE) if self._form == "hermes" else _Nesting().end(self._held)
        if end >= 0:
            call = _call(_parsed(self._held[:end]))
            if call is None:
                return self._is_text()
            self._take(end)
            started = self._started(call[0])
            self._mode, self._brace_taken = "tail", True
            return [
                started,
                ArgumentsEvent(self._calls - 1, json.dumps(call[1], ensure_ascii=False, separators=(",", ":"))),
            ]
        key = _FIRST_KEY.match(self._held)
        is_impossible = not _OBJECT_OR_NOTHING.match(self._held) or (key is not None and _parsed(key[1]) not in _KEYS)
        return self._is_text() if ended or is_impossible else []

    def _started(self, name: str) -> CallEvent:
        self._mode, self._nesting, self._brace_taken = "arguments", _Nesting(), False
        self._calls += 1
        return CallEvent(self._calls - 1, self._new_id(), name)

    def _arguments(self) -> list[ToolCallEvent]:
        end = self._nesting.end(self._held)
        if end >= 0:
            self._mode = "tail"
        return [ArgumentsEvent(self._calls - 1, self._take(end if end >= 0 else len(self._held)))]

    def _tail(self, ended: bool) -> None:
        """The end of a call: its object's closing brace, and the tag.

        Other text there is dropped, because the call was already emitted.
        """
        if self._form == "hermes":
            end = self._held.find(_CLOSE)
            unclear = 0 if ended else _overlap(self._held, _CLOSE)
            self._take(end + len(_CLOSE) if end >= 0 else len(self._held) - unclear)
            if end >= 0:
                self._to_text()
            return
        brace = re.match(r"\s*\}", self._held)
        if brace is not None and not self._brace_taken:
            self._take(brace.end())
        if brace is not None or self._brace_taken or self._held.strip():
            self._to_text()

    def _to_text(self) -> None:
        self._mode, self._has_text = "text", False

    def _is_text(self) -> list[ToolCallEvent]:
        """The text that was held back as a call is not a call."""
        opened, self._opened = self._opened, ""
        self._mode = "text"
        # The tag is emitted first, so that the text after it is read again.
        rest = self._take(len(self._held)) if self._form == "llama3" else ""
        return self._text(opened + rest)

    def _text(self, text: str) -> list[ToolCallEvent]:
        if not text:
            return []
        self._has_text = True
        return [TextEvent(text)]

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken


def _joined(events: list[ToolCallEvent]) -> list[ToolCallEvent]:
    """The events with adjacent texts joined, and without empty ones."""
    result: list[ToolCallEvent] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, TextEvent) and isinstance(last, TextEvent):
            result[-1] = TextEvent(last.text + event.text)
        elif not isinstance(event, ArgumentsEvent) or event.text:
            result.append(event)
    return result


def _overlap(text: str, tag: str) -> int:
    """The length of the longest end of ``text`` that is a start of ``tag``."""
    longest = min(len(text), len(tag) - 1)
    return next((length for length in range(longest, 0, -1) if tag.startswith(text[-length:])), 0)


def _call(value: Any) -> tuple[str, dict[str, Any]] | None:
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments")
    if arguments is None:
        arguments = value.get("parameters")
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
