"""Writes the multiples of a number as a language of digits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from nearfar.compiler.errors import RequestError

from .automaton import Choice, Language, Multiple, text_language
from .schema_merge import json_text

# Each listed multiple is a branch of the grammar. Otherwise each remainder is a state, in each length.
_MOST_LISTED = 300
_MOST_REMAINDERS = 1000
_MOST_PLACES = 9


def multiples(step: object, bounds: Mapping[str, Any], where: str) -> Language:
    """The decimals that ``multipleOf`` allows: each by itself if the ``bounds`` leave few, else by their remainder.

    It has numbers outside of the bounds too. Raises RequestError for a step of too many remainders.
    """
    if isinstance(step, bool) or not isinstance(step, int | float) or step <= 0:
        raise RequestError(f"{where}.multipleOf must be a number above 0", keyword="multipleOf")
    exact = {key: Decimal(repr(value)) for key, value in {**bounds, "step": step}.items()}
    places = _places(exact["step"])
    digits = max(map(_places, exact.values()))
    scaled = {key: int(value.scaleb(digits)) for key, value in exact.items()}
    whole = scaled.pop("step")
    first = max((-(-value // whole) for key, value in scaled.items() if "inimum" in key), default=-math.inf)
    last = min((value // whole for key, value in scaled.items() if "aximum" in key), default=math.inf)
    if last - first < _MOST_LISTED / (places + 1):
        return Choice(
            tuple(
                text_language(text)
                for index in range(int(first), int(last) + 1)
                for text in _spelled(index * whole, digits, places)
            )
        )
    remainders = whole // 10 ** (digits - places)
    if remainders > _MOST_REMAINDERS or places > _MOST_PLACES:
        raise unsupported_multiple(step, where)
    return Multiple(remainders, places)


def unsupported_multiple(step: object, where: str) -> RequestError:
    return RequestError(
        f"{where}: multipleOf {json_text(step)} is not supported, because its grammar would be too large; add a "
        f"minimum and a maximum that leave at most {_MOST_LISTED // 10} values, or remove it",
        keyword="multipleOf",
    )


def _places(value: Decimal) -> int:
    """Digits behind the point."""
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _spelled(value: int, digits: int, places: int) -> list[str]:
    """``value`` / 10^digits with at most ``places`` digits behind the point, also with zeros at its end."""
    sign, text = "-" if value < 0 else "", str(abs(value)).zfill(digits + 1)
    integral, fraction = text[: len(text) - digits], text[len(text) - digits :]
    least = len(fraction.rstrip("0"))
    return [f"{sign}{integral}{'.' if count else ''}{fraction[:count]}" for count in range(least, places + 1)]
