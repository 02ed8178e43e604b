"""The kinds of grammar that a request can require.

They are plain values, because they are keys of a cache and are sent to another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class JsonSource:
    """JSON that is valid in a schema, which is given as text. {"type": "object"} allows any JSON object."""

    schema: str


@dataclass(frozen=True, slots=True)
class RegexSource:
    """A text that an ECMAScript pattern matches completely."""

    pattern: str


@dataclass(frozen=True, slots=True)
class EbnfSource:
    """A text of a grammar in xgrammar's EBNF, from its rule root."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Tag:
    """A value of a schema, which is given as text, between two texts. An id of the call may follow ``begin``; then
    ``middle`` precedes the value.
    """

    begin: str
    schema: str
    end: str
    middle: str = ""


@dataclass(frozen=True, slots=True)
class TagsSource:
    """``begin``, one of ``tags`` or, with a separator, any number of them, and ``end``.

    With a ``trigger``, any text is allowed, and each trigger in it begins such a text. ``arguments`` is the syntax of
    the values, and ``gap`` precedes ids; "" means that calls have none (see `ToolFormatEntry`).
    """

    tags: tuple[Tag, ...]
    separator: str | None
    trigger: str | None = None
    begin: str = ""
    end: str = ""
    arguments: Literal["json", "gemma", "xml"] = "json"
    gap: str = ""


FormSource = JsonSource | RegexSource | EbnfSource


@dataclass(frozen=True, slots=True)
class CallsOrForm:
    """Either ``calls``, which have no trigger, or ``form``, whose texts never begin like a call."""

    calls: TagsSource
    form: FormSource


GrammarSource = FormSource | TagsSource | CallsOrForm


def call_begins(calls: TagsSource) -> tuple[str, ...]:
    """The texts with which calls without a trigger begin."""
    return tuple(f"{calls.begin}{tag.begin}{'' if calls.gap else tag.middle}" for tag in calls.tags)
