"""Sets of characters: inclusive ranges of code points, ascending and apart."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
# The characters that UTF-8 can encode: surrogates are not characters.
ANY: Ranges = ((0, 0xD7FF), (0xE000, LAST))


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def intersect(left: Iterable[tuple[int, int]], right: Iterable[tuple[int, int]]) -> Ranges:
    others = tuple(right)
    both = ((max(a, c), min(b, d)) for a, b in left for c, d in others)
    return union((first, last) for first, last in both if first <= last)


def subtract(source: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]) -> Ranges:
    inverse: list[tuple[int, int]] = []
    following = 0
    for first, last in union(taken):
        if first > following:
            inverse.append((following, first - 1))
        following = last + 1
    if following <= LAST:
        inverse.append((following, LAST))
    return intersect(source, inverse)


def single(character: str) -> Ranges:
    return ((ord(character), ord(character)),)
