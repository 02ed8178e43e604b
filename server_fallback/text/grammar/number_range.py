"""Writes the numbers between bounds as languages of digits, without exponents and with few digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from nearfar.compiler.errors import RequestError

from .automaton import Choice, Language, Repeat, Series, Set
from .characters import single

# A double holds any number of 15 digits, and any integer up to the second limit.
_LARGEST = 10**15 - 1
_LARGEST_INTEGER = 2**53 - 1
_EXTRA_DIGITS = 9
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_DOT = Set(single("."))


@dataclass(frozen=True, slots=True)
class _End:
    """A bound at ``value`` / 10^digits. If it is open, the value itself is outside of the range."""

    value: int
    is_open: bool


def integer_range(bounds: Mapping[str, Any], where: str) -> Language | None:
    """An integer within the bounds, or None if none exists.

    Without a bound of 16 digits, an integer has at most 15 digits. Raises RequestError if the bounds allow only
    integers that a double does not hold.
    """
    low, high = _ends(bounds, where, _LARGEST_INTEGER)
    first, last = _steps(low, high, 10 ** _decimals(bounds))
    return _joined(
        [
            *(_negated(_exact(max(-last, 1), -first, 0)) if first < 0 else []),
            *(_exact(max(first, 0), last, 0) if last >= 0 else []),
        ]
    )


def number_range(bounds: Mapping[str, Any], where: str) -> Language | None:
    """A number of at most 15 digits before the point within the bounds, or None if none exists.

    Raises RequestError for a bound with more digits than that behind the point, or if the bounds allow only larger
    numbers.
    """
    digits = _decimals(bounds)
    low, high = _ends(bounds, where, _LARGEST)
    zero = _End(0, False)
    below = _magnitudes(zero if high.value > 0 else _minus(high), _minus(low), digits) if low.value < 0 else []
    above = _magnitudes(zero if low.value < 0 else low, high, digits) if high.value >= 0 else []
    return _joined([*_negated(below), *above])


def _magnitudes(low: _End, high: _End, digits: int) -> list[Language]:
    """Decimals of ``digits`` places and more from low to high, both at least 0."""
    parts: list[Language] = []
    for places in range(digits):
        first, last = _steps(low, high, 10 ** (digits - places))
        parts += _exact(first, last, places)
    point = [_DOT] if digits == 0 else []
    # Digits after the last decimal stay below the next step, so all steps but the highest may have any of them.
    if low.is_open and low.value < high.value:
        tail = [*point, _more(_EXTRA_DIGITS - 1), _digit(1, 9)]
        parts += [Series((step, *tail)) for step in _exact(low.value, low.value, digits)]
    for step in _exact(low.value + low.is_open, high.value - 1, digits):
        with_digits = (
            [step, Series((step, _DOT, _digit(0, 9), _more(_EXTRA_DIGITS)))]
            if digits == 0
            else [Series((step, _more(_EXTRA_DIGITS)))]
        )
        parts += with_digits
    if not high.is_open and (high.value > low.value or (high.value == low.value and not low.is_open)):
        parts += _exact(high.value, high.value, digits)
    return parts


def _steps(low: _End, high: _End, step: int) -> tuple[int, int]:
    """The first and the last multiple of ``step`` within the ends."""
    first = low.value // step + 1 if low.is_open else -(-low.value // step)
    last = -(-high.value // step) - 1 if high.is_open else high.value // step
    return first, last


def _exact(first: int, last: int, places: int) -> list[Language]:
    """The integers from first to last, both at least 0, with a dot before the last ``places`` digits."""
    parts: list[Language] = []
    for width in range(places + 1, max(len(str(last)), places + 1) + 1):
        low = first if width == places + 1 else max(first, 10 ** (width - 1))
        high = min(last, 10**width - 1)
        if low > high:
            continue
        for digits in _same_width(str(low).zfill(width), str(high).zfill(width)):
            parts.append(
                Series((*digits[: width - places], _DOT, *digits[width - places :]) if places else tuple(digits))
            )
    return parts


def _same_width(low: str, high: str) -> list[list[Language]]:
    """Lists of digits that together are the numbers from low to high, which have the same length."""
    if not low:
        return [[]]
    first, last, low_rest, high_rest = int(low[0]), int(high[0]), low[1:], high[1:]
    zeros, nines = "0" * len(low_rest), "9" * len(low_rest)

    def lead(start: int, stop: int, rests: list[list[Language]]) -> list[list[Language]]:
        return [[_digit(start, stop), *rest] for rest in rests]

    if first == last:
        return lead(first, last, _same_width(low_rest, high_rest))
    start = first if low_rest == zeros else first + 1
    stop = last if high_rest == nines else last - 1
    return [
        *(lead(first, first, _same_width(low_rest, nines)) if start > first else []),
        *(lead(start, stop, [[_digit(0, 9)] * len(low_rest)]) if start <= stop else []),
        *(lead(last, last, _same_width(zeros, high_rest)) if stop < last else []),
    ]


def _ends(bounds: Mapping[str, Any], where: str, largest: int) -> tuple[_End, _End]:
    """The ends of the range within -largest to largest. Bounds outside of that hold anyway."""
    digits = _decimals(bounds)
    values = {name: Decimal(repr(bounds[name])) for name in _BOUNDS if name in bounds}
    for name, value in values.items():
        is_lower = name in ("minimum", "exclusiveMinimum")
        if digits > 15 or (value > largest if is_lower else value < -largest):
            raise RequestError(
                f"{where}: the bound {bounds[name]} has more than 15 digits before or after the point; give a nearer "
                "one"
            )
    # Few digits by default: each digit is a state, and compiling tries the entire vocabulary on each state.
    has_large = any(_LARGEST < abs(value) <= largest for value in values.values())
    limit = largest if has_large else _LARGEST
    scaled = {name: int(value.scaleb(digits)) for name, value in values.items() if abs(value) <= limit}
    minimum, maximum, above, below = (scaled.get(name) for name in _BOUNDS)
    low, high = _End(-limit * 10**digits, False), _End(limit * 10**digits, False)
    if minimum is not None:
        low = _End(minimum, False)
    if above is not None and above >= low.value:
        low = _End(above, True)
    if maximum is not None:
        high = _End(maximum, False)
    if below is not None and below <= high.value:
        high = _End(below, True)
    return low, high


def _decimals(bounds: Mapping[str, Any]) -> int:
    """Digits behind the point of the bound that has the most."""
    exponents = (Decimal(repr(bounds[name])).normalize().as_tuple().exponent for name in _BOUNDS if name in bounds)
    return max([0, *(-exponent for exponent in exponents if isinstance(exponent, int))])


def _minus(end: _End) -> _End:
    return _End(-end.value, end.is_open)


def _more(most: int) -> Language:
    return Repeat(_digit(0, 9), 0, most)


def _negated(parts: Sequence[Language]) -> list[Language]:
    return [Series((Set(single("-")), part)) for part in parts]


def _joined(parts: Sequence[Language]) -> Language | None:
    return Choice(tuple(parts)) if parts else None


def _digit(first: int, last: int) -> Language:
    return Set(((0x30 + first, 0x30 + last),))
