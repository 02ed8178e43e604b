"""Writes the schema of a function's parameters as rules for arguments that are not JSON.

"gemma": ``{key:<|"|>text<|"|>,other:[1,true]}``. "xml": ``<parameter=key>`` elements in a row, whose text is a string
itself, or JSON for all other types. See `ToolFormatEntry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nearfar.compiler.errors import RequestError

from ..text_properties import is_text
from .ebnf import RuleBook, literal
from .json_schema import SchemaRules, schema_expression
from .marked_strings import MarkedStrings
from .schema_merge import Schema, constants_of
from .schema_objects import ObjectRules

_WHERE = "the function's parameters"
_XML_END = "\n</parameter>\n"


def gemma_expression(book: RuleBook, schema: Schema) -> str:
    """The expression of arguments in Gemma's syntax. Raises RequestError."""
    book.spaced = False
    return schema_expression(book, schema, _WHERE, MarkedStrings(book, '<|"|>', '<|"|>', "<|"))


def xml_expression(book: RuleBook, schema: Schema) -> str:
    """The expression of ``<parameter=key>`` elements. Raises RequestError, also if the schema is not an object's."""
    rules = SchemaRules(book, schema, _WHERE)
    expanded = rules.expand(schema, _WHERE)
    if not isinstance(expanded, Mapping) or {"anyOf", "oneOf", "allOf"} & set(expanded) or constants_of(expanded):
        raise RequestError(f"{_WHERE}: must be the schema of one object, without anyOf, oneOf, allOf or constants")
    expression = _XmlObject(book, rules).of(expanded, _WHERE)
    if expression is None:
        raise RequestError(f"{_WHERE} allows no value at all")
    return expression


class _XmlObject(ObjectRules):
    """The elements of one object; nothing stands between them."""

    begin = end = separator = '""'

    def __init__(self, book: RuleBook, rules: SchemaRules) -> None:
        texts = MarkedStrings(book, "", _XML_END, "</parameter>")

        def value(schema: object, where: str) -> str | None:
            expanded = rules.expand(schema, where)
            if expanded is True:
                return texts.any()
            if not is_text(expanded):
                inside = rules.of(schema, where)
                return None if inside is None else f"{inside} {literal(_XML_END)}"
            assert isinstance(expanded, Mapping)
            constants: Sequence[Any] | None = expanded.get("enum", [expanded["const"]] if "const" in expanded else None)
            if constants is None:
                return texts.of(expanded, where)
            ways = [literal(texts.constant(each, where)) for each in constants if isinstance(each, str)]
            return f"({' | '.join(ways)})" if ways else None

        super().__init__(book, texts, value, rules.expand)

    def member(self, key: str, value: str) -> str:
        return f"{literal('<parameter=')} {key} {literal('>' + chr(10))} {value}"
