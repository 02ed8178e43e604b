"""What an answer may be held to, as a request says it: plain values, keys of a cache that travel to another process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JsonSource:
    """JSON that is valid in a schema, given as its text. Any JSON object: the schema {"type": "object"}."""

    schema: str


@dataclass(frozen=True, slots=True)
class RegexSource:
    """A text that an ECMAScript pattern matches as a whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class EbnfSource:
    """A text of a grammar in xgrammar's EBNF, from its rule root."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Tag:
    """JSON of a schema, given as its text, between two texts."""

    begin: str
    schema: str
    end: str


@dataclass(frozen=True, slots=True)
class TagsSource:
    """One of ``tags``, or, with a separator, any number of them. With a ``trigger`` any text, in which the trigger begins one of them."""

    tags: tuple[Tag, ...]
    separator: str | None
    trigger: str | None = None


FormSource = JsonSource | RegexSource | EbnfSource


@dataclass(frozen=True, slots=True)
class CallsOrForm:
    """Either ``calls``, which have no trigger, or ``form``, of which no text begins as a call does."""

    calls: TagsSource
    form: FormSource


GrammarSource = FormSource | TagsSource | CallsOrForm
