"""Grammar rules for JSON objects: their named properties in the schema's order, then further properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.compiler.errors import RequestError

from .ebnf import RuleBook, repeat
from .marked_strings import MarkedStrings
from .schema_merge import Schema, json_text, list_of
from .schema_parts import checked_record, choice, count_of, space
from .schema_strings import StringRules

_NAME_KEYWORDS = ("type", "enum", "const", "pattern", "format", "minLength", "maxLength")


@dataclass(frozen=True, slots=True)
class _Member:
    """A property; ``text`` is None if its schema allows no value."""

    required: bool
    text: str | None


class ObjectRules:
    """Adds the rules of objects to a book.

    ``value_of`` gives the expression of a value from its schema and its location. ``expand`` gives the schema that a
    schema with ``$ref`` stands for. A subclass changes what stands around and between the members.
    """

    begin, end, separator = '"{"', '"}"', '","'

    def __init__(
        self,
        book: RuleBook,
        strings: StringRules | MarkedStrings,
        value_of: Callable[[object, str], str | None],
        expand: Callable[[object, str], Schema],
    ) -> None:
        self._book = book
        self._strings = strings
        self._value_of = value_of
        self._expand = expand

    def of(self, schema: Mapping[str, Any], where: str) -> str | None:
        """The expression of an object that is valid in ``schema``; None if no object is. Raises RequestError."""
        least, most = count_of(schema, "minProperties", where) or 0, count_of(schema, "maxProperties", where)
        named = checked_record(schema.get("properties"), f"{where}.properties")
        patterns = checked_record(schema.get("patternProperties"), f"{where}.patternProperties")
        required = list_of(schema.get("required"))
        further = schema.get("additionalProperties", "properties" not in schema and not required)
        for name in required:
            # A required name without a schema may have any value, unless additionalProperties restricts it.
            named.setdefault(name, schema.get("additionalProperties", True))
        names = self._names(schema.get("propertyNames", True), f"{where}.propertyNames")
        if names is not None and patterns:
            raise _unsupported_names(where, "patternProperties")
        if isinstance(names, list):
            others = {name: further for name in names if name not in named}
            named = {**{name: value if name in names else False for name, value in named.items()}, **others}
            further = False
        elif names is not None and named:
            raise _unsupported_names(where, "properties or required")
        if patterns:
            # The rules cannot express which of several patterns a name matches, or that a listed name matches one.
            if len(patterns) > 1 or named:
                raise RequestError(
                    f"{where}: patternProperties is supported only with one pattern, and without properties or "
                    "required beside it"
                )
            ((pattern, further),) = patterns.items()
            key_where = f"{where}.patternProperties"
            additional = self._further_member(self._strings.matching(pattern, key_where), further, key_where)
            self._book.demand(len('"":,'))
        else:
            key = None
            if (names is None or isinstance(names, list)) and (further is not False or not self._strings.is_marked):
                key = self._strings.other_key(named, where)
            if isinstance(names, Mapping):
                if self._strings.is_marked:
                    raise _unsupported_names(where, "a tool call that is not JSON")
                key = self._strings.of(names, f"{where}.propertyNames")
            additional = self._further_member(key, further, f"{where}.additionalProperties")
            self._book.demand(len('"a":,'))
        return self._object(named, required, additional, least, most, where)

    def _names(self, schema: object, where: str) -> list[str] | Mapping[str, Any] | None:
        """The names that ``propertyNames`` allows: a list, the schema of a string, or None if it allows all names."""
        expanded = self._expand(schema, where)
        if isinstance(expanded, bool):
            return None if expanded else []
        for key in expanded:
            if key not in _NAME_KEYWORDS:
                raise RequestError(
                    f"{where}: the keyword '{key}' is not supported in propertyNames; "
                    f"supported: {', '.join(_NAME_KEYWORDS)}",
                    keyword=key,
                )
        if "type" in expanded and "string" not in list_of(expanded["type"]):
            return []
        others = {key: value for key, value in expanded.items() if key != "type"}
        if not others:
            return None
        if "enum" not in others and "const" not in others:
            return others
        if len(others) > 1:
            raise RequestError(
                f"{where}: has another keyword beside enum or const; list only the names that it allows",
                keyword="propertyNames",
            )
        values = [others["const"]] if "const" in others else others["enum"]
        return list(dict.fromkeys(value for value in values if isinstance(value, str)))

    def _further_member(self, key: str | None, schema: object, where: str) -> str | None:
        value = self._value_of(schema, where)
        return None if value is None or key is None else self.member(key, value)

    def member(self, key: str, value: str) -> str:
        return f'{key} ":" {space(self._book)} {value}'

    def _object(
        self,
        named: Mapping[str, Any],
        required: Sequence[str],
        additional: str | None,
        least: int,
        most: int | None,
        where: str,
    ) -> str | None:
        self._book.demand(
            len("{}") + sum(len(json_text(name).encode(errors="surrogatepass")) + len(":,") for name in named)
        )
        members = []
        for name, schema in named.items():
            value = self._value_of(schema, f"{where}.{name}")
            if value is not None or name in required:
                text = None if value is None else self.member(self._strings.key(name, where), value)
                members.append(_Member(name in required, text))
        inside = self._members(members, additional, least, most)
        return None if inside is None else f"{self.begin} {inside}"

    def _members(self, members: Sequence[_Member], additional: str | None, least: int, most: int | None) -> str | None:
        """All members and the closing brace.

        The rules are built from the last member to the first. ``tails[done]`` is what follows if ``done`` members
        precede.
        """
        counted = least > 1 or most is not None
        # If the count does not matter, it only matters whether any member precedes.
        top = len(members) if counted else min(1, len(members))
        tails = [self._further(additional, done, least, most) for done in range(top + 1)]
        for index in range(len(members) - 1, -1, -1):
            member = members[index]
            earlier: list[str | None] = []
            for done in range(min(index, top) + 1):
                after = tails[min(done + 1, top)]
                present = None
                if member.text is not None and after is not None and (most is None or done < most):
                    present = f"{self._comma(done)} {member.text} {after}"
                body = choice([present, None if member.required else tails[done]])
                earlier.append(None if body is None else self._book.add("member", body))
            tails = earlier
        return tails[0]

    def _further(self, additional: str | None, done: int, least: int, most: int | None) -> str | None:
        """Further properties, and the closing brace. Their names may repeat, so only the first one surely counts."""
        missing, room = max(least - done, 0), None if most is None else most - done
        more = None
        if additional is not None and (room is None or room >= 1) and missing <= 1:
            others = repeat(f"{self._comma(1)} {additional}", 0, None if room is None else room - 1)
            more = f"{self._comma(done)} {additional} {others} {space(self._book)} {self.end}"
        end = self.end if done == 0 else f"{space(self._book)} {self.end}"
        return choice([None if missing > 0 or (room is not None and room < 0) else end, more])

    def _comma(self, done: int) -> str:
        return space(self._book) if done == 0 else f"{self.separator} {space(self._book)}"


def _unsupported_names(where: str, other: str) -> RequestError:
    return RequestError(
        f"{where}: propertyNames is not supported with {other} beside it, unless it lists the names with enum; "
        "remove one of them",
        keyword="propertyNames",
    )
