"""A source as rules that xgrammar compiles. Schemas and patterns become rules as they do in the browser, so that both hold to the same."""

from __future__ import annotations

import json
from typing import Any

from nearfar.compiler.errors import RequestError

from .automaton import language_rule
from .ebnf import RuleBook, alternatives, literal
from .json_schema import parse_schema, schema_expression
from .regex import parse_regex
from .source import EbnfSource, GrammarSource, JsonSource, RegexSource, Tag, TagsSource


def compile_source(compiler: Any, source: GrammarSource) -> Any:
    """The source compiled by an `xgrammar.GrammarCompiler`. Raises RequestError, and RuntimeError where xgrammar refuses the rules."""
    if isinstance(source, TagsSource) and source.trigger is not None:
        tags = [
            {"type": "tag", "begin": tag.begin, "content": {"type": "grammar", "grammar": _value_rules(tag)}, "end": tag.end}
            for tag in source.tags
        ]
        form = {"type": "triggered_tags", "triggers": [source.trigger], "tags": tags}
        return compiler.compile_structural_tag(json.dumps({"type": "structural_tag", "format": form}))
    return compiler.compile_grammar(source_rules(source))


def source_rules(source: GrammarSource) -> str:
    """The rules as text, from ``root``. Raises RequestError."""
    book = RuleBook()
    match source:
        case JsonSource(schema):
            return book.rooted(schema_expression(book, parse_schema(schema)))
        case RegexSource(pattern):
            where = "the regular expression"
            rule = language_rule(book, parse_regex(pattern, where), "answer", where)
            if rule is None:
                raise RequestError(f"{where} matches no text")
            return book.rooted(rule)
        case EbnfSource(grammar):
            return grammar
        case TagsSource(tags, separator):
            ways = [book.add("way", f"{literal(tag.begin)} {_value(book, tag)} {literal(tag.end)}") for tag in tags]
            one = book.add("tag", alternatives(ways))
            return book.rooted(one if separator is None else f"{one} ({literal(separator)} {one})*")


def _value_rules(tag: Tag) -> str:
    book = RuleBook()
    return book.rooted(_value(book, tag))


def _value(book: RuleBook, tag: Tag) -> str:
    return schema_expression(book, parse_schema(tag.schema))
