"""Helpers that the rules of every JSON type share: choices, white space, and the checks of a keyword's value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nearfar.compiler.errors import RequestError

from .ebnf import RuleBook, alternatives


def choice(expressions: Iterable[str | None]) -> str | None:
    """Any one of the expressions that are not None; None if all are."""
    ways = [expression for expression in expressions if expression is not None]
    if len(ways) < 2:
        return ways[0] if ways else None
    return alternatives([f"({way})" for way in ways])


def space(book: RuleBook) -> str:
    """White space between JSON tokens: nothing, one space, or a new line with its indent.

    It is bounded, because a model could otherwise write spaces for ever.
    """
    if not book.spaced:
        return '""'
    return book.once("space", lambda: '"" | " " | "\\n" [ \\t]{0,20}')


def count_of(schema: Mapping[str, Any], key: str, where: str) -> int | None:
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


def checked_list(value: object, where: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise RequestError(f"{where} must be a list")
    return list(value) if isinstance(value, list) else []


def checked_record(value: object, where: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise RequestError(f"{where} must be an object")
    return dict(value) if isinstance(value, Mapping) else {}
