"""Grammar rules for JSON arrays whose items are all different, if few values are listed for an item."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nearfar.compiler.errors import RequestError

from .ebnf import RuleBook
from .schema_merge import Schema, allowed_constants, constants_of, json_text, merge, types_of
from .schema_parts import checked_list, choice, space

# The sets of items that may be written already. Each is a rule: all sets of 8 values.
_MOST_SETS = 256
_MAX_DEPTH = 100


def listed_values(
    schema: object, where: str, expand: Callable[[object, str], Schema], depth: int = 0
) -> list[Any] | None:
    """All values of the schema, each once, if it lists them and they are neither lists nor objects; otherwise None.

    ``expand`` gives the schema that a reference leads to.
    """
    expanded = expand(schema, where)
    if isinstance(expanded, bool) or depth > _MAX_DEPTH:
        return None if expanded else []
    for key in ("allOf", "anyOf", "oneOf"):
        if key not in expanded:
            continue
        own: Schema = {name: value for name, value in expanded.items() if name != key}
        parts = [expand(part, where) for part in checked_list(expanded[key], f"{where}.{key}")]
        if key == "allOf":
            for part in parts:
                own = merge(own, part, where)
            return listed_values(own, where, expand, depth + 1)
        branches = [listed_values(merge(own, part, where), where, expand, depth + 1) for part in parts]
        return None if None in branches else _different([value for branch in branches for value in branch or []])
    return _own_values(expanded, where)


def set_expression(
    book: RuleBook, values: Sequence[Any], least: int, most: int | None, where: str, value_of: Callable[[object], str]
) -> str | None:
    """The expression of an array of different ``values`` in any order; None if there are fewer than ``least``.

    ``value_of`` gives the expression of a value from its schema. Raises RequestError if they are too many.
    """
    most = len(values) if most is None else min(most, len(values))
    if sum(math.comb(len(values), count) for count in range(most + 1)) > _MOST_SETS:
        raise unsupported_set(where)
    book.demand(len("[]") + most * len(","))
    if most < least:
        return None
    items = [book.add("item", value_of({"const": value})) for value in values]
    members = [book.add("member", f'"," {space(book)} {item}') for item in items]
    end = f'{space(book)} "]"'
    sets = sorted(range(2 ** len(values)), key=int.bit_count, reverse=True)
    rules: dict[int, str | None] = {}
    for taken in sets:
        count = taken.bit_count()
        if count > most:
            continue
        following = (
            f"{(members if taken else items)[index]} {rules[taken | 1 << index]}"
            for index in range(len(values))
            if count < most and not taken >> index & 1
        )
        body = choice([*following, *(['"]"' if taken == 0 else end] if count >= least else [])])
        rules[taken] = book.add("set", body or '""')
    return f'"[" {space(book)} {rules[0]}'


def unsupported_set(where: str) -> RequestError:
    return RequestError(
        f"{where}: the keyword 'uniqueItems' is not supported for these items, because a grammar cannot compare them; "
        "list at most 8 values for an item (an enum), or remove the keyword (in pydantic, declare list[...] instead of "
        "a set, and call set() on the answer)",
        keyword="uniqueItems",
    )


def _own_values(schema: Mapping[str, Any], where: str) -> list[Any] | None:
    if constants_of(schema) is not None:
        values = _different(allowed_constants(schema, where))
    elif set(types_of(schema)) <= {"boolean", "null"}:
        values = [value for name in types_of(schema) for value in ((False, True) if name == "boolean" else (None,))]
    else:
        return None
    return None if any(isinstance(value, list | dict) for value in values) else values


def _different(values: Sequence[Any]) -> list[Any]:
    return list({json_text(value): value for value in values}.values())
