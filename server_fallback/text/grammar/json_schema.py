"""JSON Schema as grammar rules. A schema flows in, rules that make only valid JSON flow out; what they could not hold to is refused.

They make a part of what the schema allows: properties in the schema's order, and none but those that a schema with some names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.compiler.errors import RequestError

from .automaton import FOLLOWED, Choice, language_rule, text_language
from .characters import Ranges, single, subtract
from .ebnf import RuleBook, alternatives, char_class, literal, repeat
from .formats import FORMATS
from .number_range import integer_range, number_range
from .regex import parse_regex
from .schema_merge import (
    TYPES,
    Schema,
    assertions,
    constants_of,
    exclusive,
    json_text,
    list_of,
    merge,
    resolve,
    type_of_value,
    types_of,
)

# Characters of a string that get a rule each, for each of which the whole vocabulary is looked at once.
_MOST_RULES = 16
# Deeper than any schema that ends.
_MAX_DEPTH = 100
_HEX = "[0-9a-fA-F]"
# Any character that a JSON string holds as it is, and those of ASCII.
_PLAIN = r'[^\x00-\x1f"\\]'
_PLAIN_ASCII: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F))
# Digits that a double surely holds.
_INTEGER = r"-?(0|[1-9]\d{0,14})"
_NUMBER = rf"{_INTEGER}(\.\d{{1,15}})?([eE][+-]?\d{{1,2}})?"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def parse_schema(text: str) -> Schema:
    """Raises RequestError for a text that is no schema."""
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


def schema_expression(book: RuleBook, schema: Schema, where: str = "the JSON schema") -> str:
    """Add the rules of ``schema`` to ``book``; the expression of a JSON text that is valid. Raises RequestError."""
    expression = _SchemaRules(book, schema, where).of(schema, where)
    if expression is None:
        raise RequestError(f"{where} allows no value at all")
    return expression


@dataclass(frozen=True, slots=True)
class _Member:
    """A property; ``text`` is None where no value is valid."""

    needed: bool
    text: str | None


class _SchemaRules:
    def __init__(self, book: RuleBook, root: Schema, top: str) -> None:
        self._book = book
        self._root = root
        self._top = top
        self._refs: dict[str, str] = {}
        self._other_keys: dict[tuple[str, ...], str] = {}
        self._depth = 0

    def of(self, schema: object, where: str, open_refs: tuple[str, ...] = ()) -> str | None:
        """The expression of a value, None where none is valid. ``open_refs`` are followed without a character between."""
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
            return self.of(merge(self._expand({"$ref": schema["$ref"]}, where), others, where), where, open_refs)
        if "allOf" in schema:
            merged: Schema = {key: value for key, value in schema.items() if key != "allOf"}
            for part in _list(schema["allOf"], f"{where}.allOf"):
                merged = merge(merged, self._expand(part, where), where)
            return self.of(merged, where, open_refs)
        if "anyOf" in schema and "oneOf" in schema:
            raise RequestError(f"{where}: has anyOf and oneOf; keep one of them")
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._branches(key, schema, where, open_refs)
        return self._of_types(schema, where) if constants_of(schema) is None else self._constants(schema, where)

    def _branches(self, key: str, schema: Mapping[str, Any], where: str, open_refs: tuple[str, ...]) -> str | None:
        others = {name: value for name, value in schema.items() if name != key}
        branches = _list(schema[key], f"{where}.{key}")
        if others:
            branches = [merge(others, self._expand(branch, where), where) for branch in branches]
        if key == "oneOf":
            self._require_exclusive(branches, where)
        return self._choice(
            self.of(branch, f"{where}.{key}[{index}]", open_refs) for index, branch in enumerate(branches)
        )

    def _of_types(self, schema: Mapping[str, Any], where: str) -> str | None:
        types = types_of(schema)
        for name in types:
            if name not in TYPES:
                raise RequestError(f"{where}: type {json.dumps(name)} is not one of {', '.join(TYPES)}")
        if not schema:
            return self._any()
        return self._choice(
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
                return self._string(schema, where)
            case "integer" | "number":
                return self._number(name, schema, where)
            case "array":
                return self._array(schema, where)
            case _:
                return self._object(schema, where)

    def _reference(self, ref: Any, where: str, open_refs: tuple[str, ...]) -> str:
        """Each reference has one rule, so that schemas may hold themselves."""
        if ref in open_refs:
            raise RequestError(f"{where}: $ref {json.dumps(ref)} leads to itself with nothing between")
        target = resolve(self._root, ref, where)
        if ref in self._refs:
            return self._refs[ref]
        name = self._refs[ref] = self._book.reserve("ref")
        body = self.of(target, f"{self._top} at {ref}", (*open_refs, ref))
        if body is None:
            raise RequestError(f"{where}: $ref '{ref}' allows no value at all")
        return self._book.define(name, body)

    def _expand(self, schema: object, where: str) -> Schema:
        """The schema itself in place of a reference to it, without annotations."""
        target = schema
        for _ in range(_MAX_DEPTH):
            if isinstance(target, bool):
                return target
            if not isinstance(target, Mapping):
                raise RequestError(f"{where} must be a schema: an object or a boolean")
            said = assertions(target, where)
            if "$ref" not in said:
                return said
            others = {key: value for key, value in said.items() if key != "$ref"}
            target = merge(resolve(self._root, said["$ref"], where), others, where)
        raise RequestError(f"{where}: $ref leads to itself with nothing between")

    def _require_exclusive(self, branches: Sequence[Schema], where: str) -> None:
        for index, branch in enumerate(branches):
            for earlier in range(index):
                if not exclusive(branch, branches[earlier], lambda schema: self._expand(schema, where)):
                    raise RequestError(
                        f"{where}: a value may be valid in both oneOf[{earlier}] and oneOf[{index}]; use anyOf, or give them a constant "
                        "that differs"
                    )

    def _constants(self, schema: Mapping[str, Any], where: str) -> str | None:
        other = next((key for key in schema if key not in ("type", "const", "enum")), None)
        if other is not None:
            raise RequestError(
                f"{where}: '{other}' is beside const or enum; list only the values that it allows", keyword=other
            )
        values = [schema["const"]] if "const" in schema else schema["enum"]
        types = types_of(schema)
        allowed = [
            json_text(value)
            for value in values
            if type_of_value(value) in types or (type_of_value(value) == "integer" and "number" in types)
        ]
        if "const" in schema and "enum" in schema:
            allowed = [text for text in allowed if text in [json_text(value) for value in list_of(schema["enum"])]]
        texts = list(dict.fromkeys(allowed))
        if len(texts) < 2:
            return self._literal(texts[0]) if texts else None
        return language_rule(self._book, Choice(tuple(text_language(text) for text in texts)), "value", where)

    def _string(self, schema: Mapping[str, Any], where: str) -> str | None:
        pattern, form = schema.get("pattern"), schema.get("format")
        least, most = _count(schema, "minLength", where) or 0, _count(schema, "maxLength", where)
        if pattern is not None and form is not None:
            raise RequestError(f"{where}: has a pattern and a format; keep one of them")
        if pattern is not None or form is not None:
            if pattern is not None:
                if not isinstance(pattern, str):
                    raise RequestError(f"{where}.pattern must be a string")
                language = parse_regex(pattern, f"{where}.pattern", search=True)
            elif isinstance(form, str) and form in FORMATS:
                language = parse_regex(FORMATS[form], where)
            else:
                raise RequestError(f"{where}: the format {json.dumps(form)} is not one of {', '.join(FORMATS)}")
            self._book.demand(len('""'))
            return _quoted(language_rule(self._book, language, "string", where, least, most))
        if most is not None and least > most:
            return None
        if least > 0:
            self._book.endings["a" * least] = None
        self._book.demand(least + len('""'))
        return f'"\\"" {self._characters(least, most)}'

    def _number(self, name: str, schema: Mapping[str, Any], where: str) -> str | None:
        bounds = {key: schema[key] for key in _BOUNDS if key in schema}
        for key, value in bounds.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise RequestError(f"{where}.{key} must be a number")
        if "multipleOf" in schema and not (name == "integer" and schema["multipleOf"] == 1):
            raise RequestError(
                f"{where}: the keyword 'multipleOf' cannot be held to; take it out, or list the values with enum",
                keyword="multipleOf",
            )
        if not bounds:
            self._book.demand(len("0"))
            return self._any_integer() if name == "integer" else self._any_number()
        found = integer_range(bounds, where) if name == "integer" else number_range(bounds, where)
        return None if found is None else language_rule(self._book, found, "value", where)

    def _array(self, schema: Mapping[str, Any], where: str) -> str | None:
        least, most = _count(schema, "minItems", where) or 0, _count(schema, "maxItems", where)
        items = schema.get("items")
        # Before 2020, items was the list and additionalItems what came after it.
        is_list = isinstance(items, list)
        prefix = _list(schema.get("prefixItems", items if is_list else None), f"{where}.prefixItems")
        following = schema.get("additionalItems") if is_list else items
        if schema.get("uniqueItems") is True and (most is None or most > 1):
            raise RequestError(
                f"{where}: the keyword 'uniqueItems' cannot be held to; take it out", keyword="uniqueItems"
            )
        first = [self.of(item, f"{where}.prefixItems[{index}]") for index, item in enumerate(prefix[:most])]
        if None in first:
            return None
        demanded = self._book.demanded
        item = self.of(not prefix if following is None else following, f"{where}.items")
        low = max(least - len(first), 0)
        one = self._book.demanded - demanded + len(",")
        self._book.demand(len("[]") + len(first) * len(",") + max(low - 1, 0) * one)
        high = 0 if item is None else None if most is None else most - len(first)
        if high is not None and low > high:
            return None
        comma, begin, end = f'"," {self._space()}', f'"[" {self._space()}', f'{self._space()} "]"'
        # One without a comma before it where there is no prefix.
        bare = 0 if first else 1
        more = "" if high == 0 else repeat(f"{comma} {item}", max(low - bare, 0), None if high is None else high - bare)
        if first:
            return f"{begin} {f' {comma} '.join(map(str, first))} {more} {end}"
        if high == 0:
            return f'{begin} "]"'
        some = f"{begin} {item} {more} {end}"
        return some if low > 0 else self._choice([some, f'{begin} "]"'])

    def _object(self, schema: Mapping[str, Any], where: str) -> str | None:
        least, most = _count(schema, "minProperties", where) or 0, _count(schema, "maxProperties", where)
        named = _record(schema.get("properties"), f"{where}.properties")
        patterns = _record(schema.get("patternProperties"), f"{where}.patternProperties")
        required = list_of(schema.get("required"))
        if patterns:
            # Which of several patterns a name matches, and whether a property's name matches one, is beyond the rules.
            if len(patterns) > 1 or named or required:
                raise RequestError(
                    f"{where}: patternProperties can be held to only where it is one pattern, without properties or required beside it"
                )
            additional = self._pattern_member(*next(iter(patterns.items())), where)
            self._book.demand(len('"":,'))
        else:
            is_open = "properties" not in schema and not required
            following = schema.get("additionalProperties", is_open)
            for name in required:
                # A name that is required and not described may be anything, unless the schema says what others are.
                named.setdefault(name, schema.get("additionalProperties", True))
            value = self.of(following, f"{where}.additionalProperties")
            additional = None if value is None else f'{self._other_key(named)} ":" {self._space()} {value}'
            self._book.demand(len('"a":,'))
        self._book.demand(
            len("{}") + sum(len(json_text(name).encode(errors="surrogatepass")) + len(":,") for name in named)
        )
        members = []
        for name, described in named.items():
            value = self.of(described, f"{where}.{name}")
            if value is not None or name in required:
                text = None if value is None else f'{literal(json_text(name))} ":" {self._space()} {value}'
                members.append(_Member(name in required, text))
        inside = self._members(members, additional, least, most)
        return None if inside is None else f'"{{" {inside}'

    def _pattern_member(self, pattern: str, value: object, where: str) -> str | None:
        place = f"{where}.patternProperties"
        expression = self.of(value, place)
        key = _quoted(language_rule(self._book, parse_regex(pattern, place, search=True), "string", where))
        return None if expression is None or key is None else f'{key} ":" {self._space()} {expression}'

    def _members(self, members: Sequence[_Member], additional: str | None, least: int, most: int | None) -> str | None:
        """All members and the closing brace. From the last member backwards: what follows the first ``done`` of them that are there."""
        counted = least > 1 or most is not None
        # Where the count does not matter, only whether any is there.
        top = len(members) if counted else min(1, len(members))
        tails = [self._further(additional, done, least, most) for done in range(top + 1)]
        for index in range(len(members) - 1, -1, -1):
            member = members[index]
            earlier: list[str | None] = []
            for done in range(min(index, top) + 1):
                after = tails[min(done + 1, top)]
                taken = None
                if member.text is not None and after is not None and (most is None or done < most):
                    taken = f"{self._comma(done)} {member.text} {after}"
                body = self._choice([taken, None if member.needed else tails[done]])
                earlier.append(None if body is None else self._book.add("member", body))
            tails = earlier
        return tails[0]

    def _further(self, additional: str | None, done: int, least: int, most: int | None) -> str | None:
        """Further properties, and the closing brace. Their names may repeat, so only the first of them surely counts."""
        missing, room = max(least - done, 0), None if most is None else most - done
        more = None
        if additional is not None and (room is None or room >= 1) and missing <= 1:
            others = repeat(f"{self._comma(1)} {additional}", 0, None if room is None else room - 1)
            more = f'{self._comma(done)} {additional} {others} {self._space()} "}}"'
        none = (
            None if missing > 0 or (room is not None and room < 0) else '"}"' if done == 0 else f'{self._space()} "}}"'
        )
        return self._choice([none, more])

    def _comma(self, done: int) -> str:
        return self._space() if done == 0 else f'"," {self._space()}'

    def _other_key(self, names: Iterable[str]) -> str:
        """A name that is none of ``names``, without escapes so that no name has two spellings."""
        # A name that JSON must escape cannot be met.
        plain = tuple(name for name in names if json_text(name) == f'"{name}"')
        if plain not in self._other_keys:
            self._other_keys[plain] = self._book.add("key", f'("\\"" {self._unlike(plain)}) {FOLLOWED}')
        return self._other_keys[plain]

    def _unlike(self, rests: Sequence[str]) -> str:
        """The rest of a name, and its quote, that is none of ``rests``."""
        if not rests:
            return self._plain_rest()
        heads = list(dict.fromkeys(rest[0] for rest in rests if rest))
        plain = _PLAIN_ASCII
        for head in heads:
            plain = subtract(plain, single(head))
        return alternatives(
            [
                *([] if "" in rests else ['"\\""']),
                f"{char_class(plain)} {self._plain_rest()}",
                *([f"[^\\x00-\\x7f] {self._plain_rest()}"] if all(head < "\x80" for head in heads) else []),
                *(
                    f"{literal(head)} {self._unlike_rule([rest[1:] for rest in rests if rest.startswith(head)])}"
                    for head in heads
                ),
            ]
        )

    def _literal(self, text: str) -> str:
        self._book.demand(len(text.encode(errors="surrogatepass")))
        return literal(text)

    def _any(self) -> str:
        self._book.demand(len("0"))
        space, string, number = self._space(), self._any_string(), self._any_number()
        member = f'{string} ":" {space} any_value'
        objects = f'"{{" ({space} {member} ("," {space} {member})* {space})? "}}"'
        arrays = f'"[" ({space} any_value ("," {space} any_value)* {space})? "]"'
        return self._book.once(
            "any_value", lambda: f'{objects} | {arrays} | {string} | {number} | "true" | "false" | "null"'
        )

    def _any_integer(self) -> str:
        return self._book.once("any_integer", lambda: self._pattern_rule(_INTEGER))

    def _any_number(self) -> str:
        return self._book.once("any_number", lambda: self._pattern_rule(_NUMBER))

    def _pattern_rule(self, pattern: str) -> str:
        return language_rule(self._book, parse_regex(pattern, self._top), "value", self._top) or ""

    def _any_string(self) -> str:
        return self._book.once("any_string", lambda: f'("\\"" {self._characters(0, None)}) {FOLLOWED}')

    def _characters(self, least: int, most: int | None) -> str:
        """A string's ``least`` to ``most`` characters, and the quote behind them.

        A rule for each of a few characters; of many that are counted none is escaped, as xgrammar is slow where they may be.
        """
        if most is None and least == 0:
            return self._book.once("characters", lambda: self._one_more("characters", ends=True))
        if max(least, most or 0) > _MOST_RULES:
            character = self._book.once("plain_character", lambda: _PLAIN)
            return (
                f"{repeat(character, least, least)} characters"
                if most is None and self._characters(0, None)
                else f'{repeat(character, least, most)} "\\""'
            )
        following = self._characters(0, None) if most is None else self._book.once("quote", lambda: f'"\\"" {FOLLOWED}')
        for left in range((least if most is None else most) - 1, -1, -1):
            following = self._book.add("characters", self._one_more(following, ends=left >= least and most is not None))
        return following

    def _one_more(self, following: str, *, ends: bool) -> str:
        """One character and what follows it; escapes spell no surrogates, so that each is one. Or the quote, where it ``ends`` here."""
        code = f'"u" ([0-9a-ce-fA-CE-F] {_HEX} {_HEX} {_HEX} | [dD] [0-7] {_HEX} {_HEX})'
        escape = self._book.once("escape", lambda: f'"\\\\" (["\\\\/bfnrt] | {code})')
        quote = '"\\"" | ' if ends else ""
        return f"({quote}{_PLAIN} {following} | {escape} {following}) {FOLLOWED}"

    def _plain_rest(self) -> str:
        return self._book.once("plain_rest", lambda: f'({_PLAIN}* "\\"") {FOLLOWED}')

    def _unlike_rule(self, rests: Sequence[str]) -> str:
        return self._book.add("key", f"({self._unlike(rests)}) {FOLLOWED}")

    def _space(self) -> str:
        """Between tokens: nothing, a space, or a new line with its indent. Without a bound a model could go on with spaces for ever."""
        return self._book.once("space", lambda: '"" | " " | "\\n" [ \\t]{0,20}')

    def _choice(self, expressions: Iterable[str | None]) -> str | None:
        ways = [expression for expression in expressions if expression is not None]
        if len(ways) < 2:
            return ways[0] if ways else None
        return alternatives([f"({way})" for way in ways])


def _count(schema: Mapping[str, Any], key: str, where: str) -> int | None:
    value = schema.get(key)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not value >= 0
        or value != int(min(value, 2**31))
    ):
        raise RequestError(f"{where}.{key} must be a whole number of at least 0, and below 2^31")
    return int(value)


def _quoted(inside: str | None) -> str | None:
    return None if inside is None else f'"\\"" {inside}'


def _list(value: object, where: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise RequestError(f"{where} must be a list")
    return list(value) if isinstance(value, list) else []


def _record(value: object, where: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise RequestError(f"{where} must be an object")
    return dict(value) if isinstance(value, Mapping) else {}
