"""Grammar rules for JSON arrays: their leading items, their other items and their length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nearfar.compiler.errors import RequestError

from .ebnf import RuleBook, repeat
from .schema_parts import checked_list, choice, count_of, space


def array_expression(
    book: RuleBook, schema: Mapping[str, Any], where: str, value_of: Callable[[object, str], str | None]
) -> str | None:
    """The expression of an array that is valid in ``schema``; None if no array is. Raises RequestError.

    ``value_of`` gives the expression of an item from its schema and its location.
    """
    least, most = count_of(schema, "minItems", where) or 0, count_of(schema, "maxItems", where)
    items = schema.get("items")
    # Before draft 2020-12, ``items`` was the list of leading items and ``additionalItems`` described the others.
    is_list = isinstance(items, list)
    prefix = checked_list(schema.get("prefixItems", items if is_list else None), f"{where}.prefixItems")
    following = schema.get("additionalItems") if is_list else items
    if schema.get("uniqueItems") is True and (most is None or most > 1):
        raise RequestError(
            f"{where}: the keyword 'uniqueItems' is not supported, because a grammar cannot compare items; remove it "
            "(in pydantic, use a list instead of a set), and drop equal items from the answer",
            keyword="uniqueItems",
        )
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
