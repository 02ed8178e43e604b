"""Writes the multiples of a number as a language of digits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nearfar.compiler.errors import RequestError

from .automaton import Choice, Language, text_language
from .regex import parse_regex
from .schema_merge import json_text

# Each listed multiple is a branch of the grammar.
_MOST_LISTED = 1000
_DIGITS = 15


def multiples(step: object, bounds: Mapping[str, Any], where: str) -> Language:
    """The multiples of ``multipleOf`` of at most 15 digits: of 0.1, 0.01 and so on, of a divisor of 1000, and of any
    integer if the ``bounds`` leave at most 1000.

    Raises RequestError for others: a grammar of digits cannot enforce them.
    """
    decimals = next((count for count in range(1, 10) if step == float(f"1e-{count}")), None)
    if decimals is not None:
        return parse_regex(rf"-?(0|[1-9]\d{{0,{_DIGITS - 1}}})(\.\d{{1,{decimals}}})?", where)
    if isinstance(step, int | float) and not isinstance(step, bool) and step >= 1 and step == int(step):
        whole = int(step)
        low = max((value for key, value in bounds.items() if "inimum" in key), default=-math.inf)
        high = min((value for key, value in bounds.items() if "aximum" in key), default=math.inf)
        if high - low < _MOST_LISTED * whole:
            listed = range(math.ceil(low / whole), math.floor(high / whole) + 1)
            return Choice(tuple(text_language(str(each * whole)) for each in listed))
        digits = next((count for count in range(4) if 10**count % whole == 0), None)
        if digits == 0:
            return parse_regex(rf"-?(0|[1-9]\d{{0,{_DIGITS - 1}}})", where)
        if digits is not None:
            ends = "|".join(f"{end:0{digits}d}" for end in range(0, 10**digits, whole))
            short = "|".join(str(each) for each in range(0, 10**digits, whole))
            return parse_regex(rf"-?({short}|[1-9]\d{{0,{_DIGITS - 1 - digits}}}({ends}))", where)
    raise RequestError(
        f"{where}: multipleOf {json_text(step)} is not supported: a grammar of digits can hold 0.1, 0.01 and so on, "
        "the divisors of 1000, and integers with a minimum and a maximum that leave at most 1000 values; add these "
        "bounds, or remove it",
        keyword="multipleOf",
    )
