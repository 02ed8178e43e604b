"""Writes a source as rules that xgrammar compiles.

Schemas and patterns become the same rules as in the browser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearfar.compiler.errors import RequestError

from .argument_syntax import gemma_expression, xml_expression
from .automaton import language_rule
from .ebnf import RuleBook, alternatives, literal, literal_texts
from .ebnf_check import check_ebnf
from .json_schema import parse_schema, schema_expression
from .regex import parse_regex
from .source import CallsOrForm, EbnfSource, GrammarSource, JsonSource, RegexSource, Tag, TagsSource

if TYPE_CHECKING:
    from .xgrammar_binding import CompiledGrammar, GrammarCompiler

# Each byte of a token can open nested JSON, which adds a few bytes to the completion.
_LEAST_RESERVE = 64
# Mistral's ids of calls: letters and digits (the validators of mistral-common).
_ID_LENGTH = 9


@dataclass(frozen=True, slots=True)
class Rules:
    """A source in xgrammar's form.

    ``text`` is EBNF, or, for tags with a trigger and for calls beside a form, a structural tag in JSON. ``endings`` are
    texts that may complete an answer, the longest first. ``reserve`` is an upper bound of the tokens that one token can
    add to the shortest completion.
    """

    text: str
    endings: tuple[str, ...]
    reserve: int


def compile_source(compiler: GrammarCompiler, source: GrammarSource) -> tuple[CompiledGrammar, Rules]:
    """Compile a source. Raises RequestError, and RuntimeError if xgrammar refuses the rules."""
    rules = source_rules(source)
    if isinstance(source, CallsOrForm) or (isinstance(source, TagsSource) and source.trigger is not None):
        return compiler.compile_structural_tag(rules.text), rules
    return compiler.compile_grammar(rules.text), rules


def source_rules(source: GrammarSource) -> Rules:
    """Raises RequestError."""
    book = RuleBook()
    match source:
        case JsonSource(schema):
            return _rules(book.rooted(schema_expression(book, parse_schema(schema))), [book])
        case RegexSource(pattern):
            where = "the regular expression"
            rule = language_rule(book, parse_regex(pattern, where), "answer", where)
            if rule is None:
                raise RequestError(f"{where} matches no text")
            return _rules(book.rooted(rule), [book])
        case EbnfSource(grammar):
            check_ebnf(grammar)
            literals = literal_texts(grammar)
            return Rules(grammar, _longest_first(literals), _LEAST_RESERVE + sum(map(_most_bytes, literals)))
        case TagsSource(trigger=None):
            return _rules(book.rooted(_calls(book, source)), [book])
        case TagsSource(trigger=trigger):
            grammar = book.rooted(_calls(book, source))
            tag = {"type": "tag", "begin": trigger, "content": {"type": "grammar", "grammar": grammar}, "end": ""}
            form = {"type": "triggered_tags", "triggers": [trigger], "tags": [tag]}
            return _rules(json.dumps({"type": "structural_tag", "format": form}), [book])
        case CallsOrForm(calls, answer):
            ways_rules = [_call_rules(calls), source_rules(answer)]
            either = {"type": "or", "elements": [{"type": "grammar", "grammar": rules.text} for rules in ways_rules]}
            return Rules(
                json.dumps({"type": "structural_tag", "format": either}),
                _longest_first(dict.fromkeys(ending for rules in ways_rules for ending in rules.endings)),
                sum(rules.reserve for rules in ways_rules),
            )


def _call_rules(calls: TagsSource) -> Rules:
    """Raises RequestError, which says that the tools are wrong and not the answer's form."""
    try:
        return source_rules(calls)
    except RequestError as error:
        raise RequestError(f"tools: {error.message}") from error


def _rules(text: str, books: Sequence[RuleBook]) -> Rules:
    reserve = (
        _LEAST_RESERVE + sum(book.demanded for book in books) + max((book.longest_end for book in books), default=0)
    )
    return Rules(text, _longest_first(dict.fromkeys(ending for book in books for ending in book.endings)), reserve)


def _longest_first(endings: Iterable[str]) -> tuple[str, ...]:
    """A short one may be a piece of anything that repeats, where a long one ends it."""
    return tuple(sorted(endings, key=len, reverse=True))


def _most_bytes(literal_text: str) -> int:
    return len(
        re.sub(r"\\U.{8}", lambda escape: "x" if escape[0] < "\\U00000080" else "xxxx", literal_text).encode(
            errors="surrogatepass"
        )
    )


def _calls(book: RuleBook, source: TagsSource) -> str:
    """The expression of all calls, without the trigger that begins them."""
    ways = []
    trigger = source.trigger or ""
    for tag in source.tags:
        begin = tag.begin if source.begin else tag.begin.removeprefix(trigger)
        book.demand(len((begin + tag.middle + tag.end).encode()))
        head = literal(begin + tag.middle)
        if source.gap:
            book.demand(len(source.gap.encode()) + _ID_LENGTH)
            head = f"{literal(begin)} {book.once('call_id', lambda: _optional_id(source.gap))} {literal(tag.middle)}"
        ways.append(book.add("way", f"{head} {_value(book, tag, source)} {literal(tag.end)}"))
    one = book.add("tag", alternatives(ways))
    if source.separator is not None:
        book.demand(len(source.separator.encode()))
        one = f"{one} ({literal(source.separator)} {one})*"
    if not source.begin:
        return one
    book.demand(len(source.begin.encode()) + len(source.end.encode()))
    book.endings[source.end] = None
    return f"{literal(source.begin.removeprefix(trigger))} {one} {literal(source.end)}"


def _optional_id(gap: str) -> str:
    return f'{literal(gap)} [A-Za-z0-9]{{{_ID_LENGTH}}} | ""'


def _value(book: RuleBook, tag: Tag, source: TagsSource) -> str:
    schema = parse_schema(tag.schema)
    match source.arguments:
        case "json":
            return schema_expression(book, schema)
        case "gemma":
            return gemma_expression(book, schema)
        case "xml":
            return xml_expression(book, schema)
