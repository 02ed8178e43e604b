"""Writes a JSON Schema as grammar rules that allow only valid JSON, and refuses a schema that the rules cannot enforce.

The rules allow a part of what the schema allows: properties come in the schema's order, and a schema that names
properties allows no others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from nearfar.compiler.errors import RequestError

from .automaton import Choice, Intersection, language_rule, text_language
from .ebnf import RuleBook, literal
from .marked_strings import MarkedStrings
from .multiples import multiples, unsupported_multiple
from .number_range import integer_range, number_range
from .regex import parse_regex
from .schema_arrays import array_expression
from .schema_merge import (
    TYPES,
    Schema,
    allowed_constants,
    assertions,
    constants_of,
    exclusive,
    merge,
    resolve,
    types_of,
)
from .schema_objects import ObjectRules
from .schema_parts import checked_list, choice, space
from .schema_strings import StringRules

# Deeper than any useful schema.
_MAX_DEPTH = 100
# A double holds this number of digits exactly.
_INTEGER = r"-?(0|[1-9]\d{0,14})"
_DECIMAL = rf"{_INTEGER}(\.\d{{1,15}})?"
_NUMBER = rf"{_DECIMAL}([eE][+-]?\d{{1,2}})?"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def parse_schema(text: str) -> Schema:
    """Raises RequestError if the text is not a schema."""
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the JSON schema is not JSON: {error}") from error
    if not isinstance(value, bool | dict):
        raise RequestError("the JSON schema must be an object or a boolean")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a number that a double holds")
    return value


def schema_expression(
    book: RuleBook, schema: Schema, where: str = "the JSON schema", strings: MarkedStrings | None = None
) -> str:
    """Add the rules of ``schema`` to ``book`` and return the expression of a valid JSON text. Raises RequestError.

    With ``strings``, strings and property names are written in their way.
    """
    expression = SchemaRules(book, schema, where, strings).of(schema, where)
    if expression is None:
        raise RequestError(f"{where} allows no value at all")
    return expression


class SchemaRules:
    def __init__(self, book: RuleBook, root: Schema, top: str, strings: MarkedStrings | None = None) -> None:
        self._book = book
        self._root = root
        self._top = top
        self._refs: dict[str, str] = {}
        self._depth = 0
        self._strings: StringRules | MarkedStrings = StringRules(book) if strings is None else strings
        self._objects = ObjectRules(book, self._strings, self.of, self.expand)

    def of(self, schema: object, where: str, open_refs: tuple[str, ...] = ()) -> str | None:
        """The expression of a value; None if no value is valid.

        ``open_refs`` are the references that led here without a character between them.
        """
        if schema is True:
            return self._any()
        if schema is False:
            return None
        if not isinstance(schema, Mapping):
            raise RequestError(f"{where} must be a schema: an object or a boolean")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RequestError(f"{where}: is nested too deep, or merges with itself without end")
        try:
            return self._of_object(assertions(schema, where), where, open_refs)
        finally:
            self._depth -= 1

    def _of_object(self, schema: Mapping[str, Any], where: str, open_refs: tuple[str, ...]) -> str | None:
        if "$ref" in schema:
            others = {key: value for key, value in schema.items() if key != "$ref"}
            if not others:
                return self._reference(schema["$ref"], where, open_refs)
            return self.of(merge(self.expand({"$ref": schema["$ref"]}, where), others, where), where, open_refs)
        if "allOf" in schema:
            merged: Schema = {key: value for key, value in schema.items() if key != "allOf"}
            for part in checked_list(schema["allOf"], f"{where}.allOf"):
                merged = merge(merged, self.expand(part, where), where)
            return self.of(merged, where, open_refs)
        if "anyOf" in schema and "oneOf" in schema:
            raise RequestError(f"{where}: has anyOf and oneOf; remove one of them")
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._branches(key, schema, where, open_refs)
        return self._of_types(schema, where) if constants_of(schema) is None else self._constants(schema, where)

    def _branches(self, key: str, schema: Mapping[str, Any], where: str, open_refs: tuple[str, ...]) -> str | None:
        others = {name: value for name, value in schema.items() if name != key}
        branches = checked_list(schema[key], f"{where}.{key}")
        if others:
            branches = [merge(others, self.expand(branch, where), where) for branch in branches]
        if key == "oneOf":
            self._require_exclusive(branches, where)
        return choice(self.of(branch, f"{where}.{key}[{index}]", open_refs) for index, branch in enumerate(branches))

    def _of_types(self, schema: Mapping[str, Any], where: str) -> str | None:
        types = types_of(schema)
        for name in types:
            if name not in TYPES:
                raise RequestError(f"{where}: type {json.dumps(name)} is not one of {', '.join(TYPES)}")
        if not schema:
            return self._any()
        return choice(
            self._of_type(name, schema, where) for name in types if not (name == "integer" and "number" in types)
        )

    def _of_type(self, name: str, schema: Mapping[str, Any], where: str) -> str | None:
        match name:
            case "null":
                return self._literal("null")
            case "boolean":
                self._book.demand(len("true"))
                return '("true" | "false")'
            case "string":
                return self._strings.of(schema, where)
            case "integer" | "number":
                return self._number(name, schema, where)
            case "array":
                return array_expression(self._book, schema, where, self.of, self.expand)
            case _:
                return self._objects.of(schema, where)

    def _reference(self, ref: Any, where: str, open_refs: tuple[str, ...]) -> str:
        """Each reference has one rule, so that a schema may contain itself."""
        if ref in open_refs:
            raise RequestError(f"{where}: $ref {json.dumps(ref)} refers to itself")
        target = resolve(self._root, ref, where)
        if ref in self._refs:
            return self._refs[ref]
        name = self._refs[ref] = self._book.reserve("ref")
        body = self.of(target, f"{self._top} at {ref}", (*open_refs, ref))
        if body is None:
            raise RequestError(f"{where}: $ref '{ref}' allows no value at all")
        return self._book.define(name, body)

    def expand(self, schema: object, where: str) -> Schema:
        """The schema that a reference leads to, without annotations."""
        target = schema
        for _ in range(_MAX_DEPTH):
            if isinstance(target, bool):
                return target
            if not isinstance(target, Mapping):
                raise RequestError(f"{where} must be a schema: an object or a boolean")
            expanded = assertions(target, where)
            if "$ref" not in expanded:
                return expanded
            others = {key: value for key, value in expanded.items() if key != "$ref"}
            target = merge(resolve(self._root, expanded["$ref"], where), others, where)
        raise RequestError(f"{where}: $ref refers to itself")

    def _require_exclusive(self, branches: Sequence[Schema], where: str) -> None:
        for index, branch in enumerate(branches):
            for earlier in range(index):
                if not exclusive(branch, branches[earlier], lambda schema: self.expand(schema, where)):
                    raise RequestError(
                        f"{where}: a value may be valid in both oneOf[{earlier}] and oneOf[{index}]; use anyOf, or "
                        "give "
                        "them a required property with different constants"
                    )

    def _constants(self, schema: Mapping[str, Any], where: str) -> str | None:
        values = allowed_constants(schema, where)
        texts = list(dict.fromkeys(self._strings.constant(value, where) for value in values))
        if len(texts) < 2:
            return self._literal(texts[0]) if texts else None
        return language_rule(self._book, Choice(tuple(text_language(text) for text in texts)), "value", where)

    def _number(self, name: str, schema: Mapping[str, Any], where: str) -> str | None:
        bounds = {key: schema[key] for key in _BOUNDS if key in schema}
        for key, value in bounds.items():
            # An int that is too large for a float is finite too.
            is_finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
            if isinstance(value, bool) or not is_finite:
                raise RequestError(f"{where}.{key} must be a number")
        is_integer, step = name == "integer", schema.get("multipleOf")
        if not bounds:
            self._book.demand(len("0"))
        if not bounds and step is None:
            return self._any_integer() if is_integer else self._any_number()
        numbers = (
            (integer_range(bounds, where) if is_integer else number_range(bounds, where))
            if bounds
            else parse_regex(_INTEGER if is_integer else _DECIMAL, where)
        )
        if numbers is None:
            return None
        if step is None:
            return language_rule(self._book, numbers, "value", where)
        steps = multiples(step, bounds, where)
        try:
            return language_rule(self._book, Intersection((numbers, steps)), "value", where)
        except RequestError as error:
            raise unsupported_multiple(step, where) from error

    def _literal(self, text: str) -> str:
        self._book.demand(len(text.encode(errors="surrogatepass")))
        return literal(text)

    def _any(self) -> str:
        self._book.demand(len("0"))
        gap, string, number = space(self._book), self._strings.any(), self._any_number()
        member = f'{self._strings.any_key()} ":" {gap} any_value'
        objects = f'"{{" ({gap} {member} ("," {gap} {member})* {gap})? "}}"'
        arrays = f'"[" ({gap} any_value ("," {gap} any_value)* {gap})? "]"'
        return self._book.once(
            "any_value", lambda: f'{objects} | {arrays} | {string} | {number} | "true" | "false" | "null"'
        )

    def _any_integer(self) -> str:
        return self._book.once("any_integer", lambda: self._pattern_rule(_INTEGER))

    def _any_number(self) -> str:
        return self._book.once("any_number", lambda: self._pattern_rule(_NUMBER))

    def _pattern_rule(self, pattern: str) -> str:
        return language_rule(self._book, parse_regex(pattern, self._top), "value", self._top) or ""
