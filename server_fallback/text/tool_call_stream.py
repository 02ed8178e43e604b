"""Reads tool calls out of the streamed pieces of an answer, in the order in which OpenAI's API streams them.

The result does not depend on how the text is divided into pieces. Text that looks like a call but is not one is
returned as text. The model's `ToolFormatEntry` defines its format of calls.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nearfar.compiler.bundle.entries import ToolFormatEntry

from .argument_readers import ArgumentReader, GemmaReader, JsonReader, XmlReader, overlap
from .call_head import Wait, find_head


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
# text: outside of calls. head: in a call whose name is not known yet. arguments: in its arguments. object: in the JSON
# object of a call of a list, after its arguments. between: after a call of a list. tail: before the text that ends a
# call or a list.
_Mode = Literal["text", "head", "arguments", "object", "between", "tail"]

# The text that may precede a call that is the complete answer.
_LEAD = re.compile(r"\A[\s;]*")


class ToolCallStream:
    """With ``begins``, the answer has calls only if it begins with one of these texts; otherwise it is all text.

    ``texts`` are the parameters of each function that are strings, for formats that write them without quotes.
    """

    def __init__(
        self,
        form: ToolFormatEntry,
        new_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex}",
        begins: Sequence[str] | None = None,
        texts: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        self._form, self._texts = form, texts or {}
        # None once the kind of the answer is known.
        self._begins = begins
        self._only_text = False
        self._new_id = new_id
        self._mode: _Mode = "text"
        # Text whose kind is not yet known.
        self._held = ""
        # The beginning of the current call, in case it turns out not to be a call.
        self._opened = ""
        self._calls = 0
        self._reader: ArgumentReader = JsonReader()
        self._in_list = False
        # Whether text arrived that is not a call, after which a format without a marker has no calls.
        self._has_text = False

    @property
    def calls(self) -> int:
        """Calls so far."""
        return self._calls

    @property
    def complete(self) -> bool:
        """Whether the answer so far ends with a call whose arguments are complete."""
        return self._calls > 0 and self._mode not in ("head", "arguments") and not self._has_text

    @property
    def undecided(self) -> str:
        """The end of the text so far, of which is not known whether it is a call."""
        return self._opened + self._held

    def feed(self, text: str) -> list[ToolCallEvent]:
        self._held += text
        return _joined(self._advance(ended=False))

    def finish(self) -> list[ToolCallEvent]:
        """The text that is still held back at the end of the answer. The arguments of a call that was cut off stay
        incomplete.
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
        match self._mode:
            case "text":
                return self._marked_text(ended) if self._form.marker else self._whole_answer(ended)
            case "head":
                return self._head(ended)
            case "arguments":
                return self._arguments()
            case "object":
                self._object()
            case "between":
                self._between()
            case "tail":
                self._tail(ended)
        return []

    def _marked_text(self, ended: bool) -> list[ToolCallEvent]:
        marker = self._form.marker
        start = self._held.find(marker)
        if start >= 0:
            text = self._take(start)
            self._opened = self._take(len(marker))
            self._mode, self._in_list = "head", False
            return self._text(text) if text.strip() or self._has_text else []
        # White space before a call is dropped, and the start of a marker may become a complete one.
        blank = not self._has_text and not self._held.strip()
        kept = 0 if ended else len(self._held) if blank else overlap(self._held, marker)
        rest = self._held[: len(self._held) - kept]
        if not self._has_text and not rest.strip() and not ended:
            return []
        return self._text(self._take(len(rest)))

    def _whole_answer(self, ended: bool) -> list[ToolCallEvent]:
        lead = self._form.lead
        if not self._has_text:
            rest = _LEAD.sub("", self._held, count=1)
            skipped = len(self._held) - len(rest)
            if rest.startswith("{") or (lead and rest.startswith(lead)):
                self._opened = self._take(skipped + (0 if rest.startswith("{") else len(lead)))
                self._mode = "head"
                return []
            if not ended and lead.startswith(rest):
                return []
            if not rest and self._calls:
                self._take(skipped)
                return []
        return self._text(self._take(len(self._held)))

    def _head(self, ended: bool) -> list[ToolCallEvent]:
        bracket = re.match(r"\s*\[", self._held) if self._form.begin and not self._in_list else None
        if bracket is not None:
            self._in_list = True
            self._opened += self._take(bracket.end())
        head = find_head(self._form, self._held)
        if isinstance(head, Wait):
            return self._is_text() if ended else []
        if head is None:
            return self._is_text()
        self._take(head.length)
        self._mode, self._opened = "arguments", ""
        self._reader = self._new_reader(head.name)
        self._calls += 1
        events: list[ToolCallEvent] = [CallEvent(self._calls - 1, self._new_id(), head.name)]
        if head.arguments is not None:
            # The keys have another order: the entire call was read at once.
            self._mode = "between" if self._in_list else "tail"
            text = json.dumps(head.arguments, ensure_ascii=False, separators=(",", ":"))
            events.append(ArgumentsEvent(self._calls - 1, text))
        return events

    def _new_reader(self, name: str) -> ArgumentReader:
        match self._form.arguments:
            case "json":
                return JsonReader()
            case "gemma":
                return GemmaReader()
            case "xml":
                return XmlReader(self._texts.get(name, frozenset()), self._form.close)

    def _arguments(self) -> list[ToolCallEvent]:
        length, text, done = self._reader.read(self._held)
        self._take(length)
        if done:
            self._mode = "object" if self._in_list else "tail"
            self._reader = JsonReader(depth=1)
        return [ArgumentsEvent(self._calls - 1, text)]

    def _object(self) -> None:
        """Other keys of a call, such as its id, are dropped."""
        length, _, done = self._reader.read(self._held)
        self._take(length)
        if done:
            self._mode = "between"

    def _between(self) -> None:
        self._take(len(self._held) - len(self._held.lstrip()))
        if self._held.startswith(","):
            self._take(1)
            self._mode = "head"
        elif self._held.startswith("]"):
            self._take(1)
            self._mode = "tail"
        elif self._held:
            self._to_text()

    def _tail(self, ended: bool) -> None:
        """The end of a call: its object's closing brace, and the closing marker.

        Other text before a closing marker is dropped, because the call was already emitted.
        """
        close, marker = self._form.close, self._form.marker
        if close:
            ends = [at for at in (self._held.find(close), self._held.find(marker)) if at >= 0]
            unclear = 0 if ended else max(overlap(self._held, close), overlap(self._held, marker))
            self._take(min(ends) if ends else len(self._held) - unclear)
            if ends:
                self._take(len(close) if self._held.startswith(close) else 0)
                self._to_text()
            return
        brace = re.match(r"\s*\}", self._held)
        if brace is not None and not self._in_list and self._form.after_arguments:
            self._take(brace.end())
        if self._held.strip() or brace is not None:
            self._to_text()

    def _to_text(self) -> None:
        self._mode, self._has_text, self._in_list = "text", False, False

    def _is_text(self) -> list[ToolCallEvent]:
        """The text that was held back as a call is not a call."""
        opened, self._opened = self._opened, ""
        self._mode = "text"
        # The marker is emitted first, so that the text after it is read again.
        rest = "" if self._form.marker else self._take(len(self._held))
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
