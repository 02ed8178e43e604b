"""EventTemplate: the bytes around the text in an upstream's events, and the bytes that we send around the same text.

All events of an answer that bring only a piece of text are equal except for that piece. From the first of them, which
is parsed and checked like any other chunk, a template is made. The following ones are recognised by a comparison of
bytes and rewritten by one replacement for a whole run of them, with the same result as if each were parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .sse import data_of

# A text that no server sends, which marks the position of the text.
MARK = "nearfar-7d1f0c52e4a9"
# Texts of JSON strings, one per line. Escapes of surrogates are left out: half of a pair is an error, so each is
# parsed.
TEXTS = re.compile(
    rb'(?:[^"\\\x00-\x09\x0b-\x1f]|\\(?:["\\/bfnrt]|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})))*'
)
# The keys of a choice's delta, or of a choice, that hold text.
TEXT_KEYS = ("content", "reasoning_content", "reasoning", "text")
# A short text may also occur elsewhere in its event.
MAX_OCCURRENCES = 8


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive events of one template: ``sent`` are the bytes that we send for them. ``pieces`` is how many of them
    have a text or a part of a call, ``text`` their text; calls have none. ``end`` is where the run ends.
    """

    sent: bytes
    pieces: int
    text: str
    end: int


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """Received events are ``before`` + text + ``after``, as the text of a JSON string, and we send ``sent_before`` +
    text + ``sent_after``. ``index`` is the choice's; ``is_call``: the text belongs to a tool call's arguments.
    """

    before: bytes
    after: bytes
    sent_before: bytes
    sent_after: bytes
    index: int
    is_call: bool

    def run(self, block: bytes, start: int) -> Run | None:
        """The events of this template at ``start``, in a block of whole events; None if none is there."""
        if not block.startswith(self.before, start):
            return None
        # An event ends with an empty line, which no JSON string contains.
        end = block.find(self.after, start + len(self.before))
        if end < 0:
            return None
        if block.startswith(self.before, end + len(self.after)):
            *texts, last = block[start + len(self.before) :].split(self.after + self.before)
            last, found, _ = last.partition(self.after)
            # Otherwise the last event is a different one that only begins like these.
            texts += [last] if found else []
        else:
            texts = [block[start + len(self.before) : end]]
        if not are_texts(texts):
            texts = texts[: next(number for number, text in enumerate(texts) if not are_texts([text]))]
            if not texts:
                return None
        lines = b"\n".join(texts)
        try:
            text = lines.decode()
        except UnicodeDecodeError:
            return None
        if self.is_call:
            pieces, text = len(texts), ""
        else:
            pieces = len(texts) - texts.count(b"")
            text = text.replace("\n", "")
            text = json.loads(f'"{text}"') if "\\" in text else text
        size = sum(map(len, texts)) + len(texts) * (len(self.before) + len(self.after))
        sent = self.sent_before + (self.sent_after + self.sent_before).join(texts) + self.sent_after
        return Run(sent, pieces, text, start + size)


def are_texts(texts: Sequence[bytes]) -> bool:
    """Whether each is the text of a JSON string."""
    lines = b"\n".join(texts)
    return TEXTS.fullmatch(lines) is not None and lines.count(b"\n") == len(texts) - 1


def template_of(
    event: bytes, value: Mapping[str, Any], send: Callable[[dict[str, Any]], bytes | None]
) -> EventTemplate | None:
    """The template of an event with the object ``value``; None if it is not one piece of text. ``send`` makes our event
    from such an object.
    """
    choices = value.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    if choice.get("finish_reason") or choice.get("logprobs") or value.get("usage"):
        return None
    found = field_of_text(choice)
    data = data_of(event)
    if found is None or data is None:
        return None
    holder, key, is_call = found
    text, marked = holder[key], json.dumps(MARK).encode()
    holder[key] = MARK
    try:
        sent = send(dict(value))
        around = around_text(event, text, value)
    finally:
        holder[key] = text
    if sent is None or around is None or sent.count(marked) != 1:
        return None
    sent_before, _, sent_after = sent.partition(marked)
    before, after = around
    return EventTemplate(before, after, sent_before + b'"', b'"' + sent_after, choice.get("index") or 0, is_call)


def field_of_text(choice: dict[str, Any]) -> tuple[dict[str, Any], str, bool] | None:
    """The object and the key that hold the choice's only text, and whether it is a tool call's."""
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    fields = [(each, key) for each in (choice, delta) for key in TEXT_KEYS if each.get(key)]
    calls = delta.get("tool_calls")
    if not calls:
        return (*fields[0], False) if len(fields) == 1 and isinstance(fields[0][0][fields[0][1]], str) else None
    call = calls[0] if isinstance(calls, list) and len(calls) == 1 and isinstance(calls[0], dict) else {}
    function = call.get("function")
    is_part = isinstance(function, dict) and isinstance(function.get("arguments"), str) and function["arguments"]
    return (function, "arguments", True) if is_part and not fields and isinstance(function, dict) else None


def around_text(event: bytes, text: str, marked: Mapping[str, Any]) -> tuple[bytes, bytes] | None:
    """The bytes of an event before and after its text, with the quotes, found by replacing it with `MARK`; ``marked``
    is the object with the mark.
    """
    quoted = b'"' + text.encode("utf-8", "surrogatepass") + b'"'
    start = -1
    for _ in range(MAX_OCCURRENCES):
        start = event.find(quoted, start + 1)
        if start < 0:
            return None
        before, after = event[: start + 1], event[start + len(quoted) - 1 :]
        try:
            if json.loads(data_of(before + MARK.encode() + after) or b"") == marked:
                return before, after
        except (ValueError, RecursionError):
            continue
    return None
