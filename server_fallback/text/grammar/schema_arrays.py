"""Grammar rules for JSON arrays: their leading items, their other items and their length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nearfar.compiler.errors import RequestError

from .ebnf import RuleBook, repeat
from .schema_merge import Schema
from .schema_parts import checked_list, choice, count_of, space
from .schema_sets import listed_values, set_expression, unsupported_set


def array_expression(
    book: RuleBook,
    schema: Mapping[str, Any],
    where: str,
    value_of: Callable[[object, str], str | None],
    expand: Callable[[object, str], Schema],
) -> str | None:
    """The expression of an array that is valid in ``schema``; None if no array is. Raises RequestError.

    From the schema of an item and its location, ``value_of`` gives its expression, and ``expand`` the schema that it
    refers to.
    """
    least, most = count_of(schema, "minItems", where) or 0, count_of(schema, "maxItems", where)
    items = schema.get("items")
    # Before draft 2020-12, ``items`` was the list of leading items and ``additionalItems`` described the others.
    is_list = isinstance(items, list)
    prefix = checked_list(schema.get("prefixItems", items if is_list else None), f"{where}.prefixItems")
    following = schema.get("additionalItems") if is_list else items
    if not isinstance(schema.get("uniqueItems", False), bool):
        raise RequestError(f"{where}.uniqueItems must be true or false", keyword="uniqueItems")
    if schema.get("uniqueItems") and (most is None or most > 1):
        values = None if prefix or following is None else listed_values(following, f"{where}.items", expand)
        if values is None:
            raise unsupported_set(where)
        return set_expression(book, values, least, most, where, lambda value: value_of(value, f"{where}.items") or '""')
    first = [value_of(item, f"{where}.prefixItems[{index}]") for index, item in enumerate(prefix[:most])]
    if None in first:
        return None
    demanded = book.demanded
    item = value_of(not prefix if following is None else following, f"{where}.items")
    low = max(least - len(first), 0)
    one = book.demanded - demanded + len(",")
    book.demand(len("[]") + len(first) * len(",") + max(low - 1, 0) * one)
    high = 0 if item is None else None if most is None else most - len(first)
    if high is not None and low > high:
        return None
    comma, begin, end = f'"," {space(book)}', f'"[" {space(book)}', f'{space(book)} "]"'
    # Without leading items, the first item has no comma before it.
    bare = 0 if first else 1
    more = "" if high == 0 else repeat(f"{comma} {item}", max(low - bare, 0), None if high is None else high - bare)
    if first:
        return f"{begin} {f' {comma} '.join(map(str, first))} {more} {end}"
    if high == 0:
        return f'{begin} "]"'
    some = f"{begin} {item} {more} {end}"
    return some if low > 0 else choice([some, f'{begin} "]"'])
