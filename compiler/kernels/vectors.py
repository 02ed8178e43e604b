"""Vectors: dtypes and indices of several lanes, and lanes put together, selected and summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .builder import Scalar, maximum, number, select
from .tir import tirx


def with_lanes(dtype: str, lanes: int) -> str:
    """The dtype of a vector; that of a scalar for one lane."""
    return f"{dtype}x{lanes}" if lanes > 1 else dtype


def floats(lanes: int) -> str:
    """The dtype of ``lanes`` float32."""
    return with_lanes("float32", lanes)


def lanes_of(x: Scalar) -> int:
    return int(str(x.ty).partition("x")[2] or 1)


def ramp(start: Scalar | int, lanes: int) -> Scalar:
    """``lanes`` neighbouring indices from ``start`` on; a single one is a plain index."""
    return tirx.Ramp(start, 1, lanes) if lanes > 1 else start


def splat(value: Scalar, lanes: int = 4) -> Scalar:
    """The same value in every lane; the value itself for one lane."""
    return tirx.Broadcast(value, lanes) if lanes > 1 else value


def like(x: Scalar, value: float) -> Scalar:
    """A constant with as many lanes as ``x``."""
    return number(value, str(x.ty))


def vector(*values: Scalar) -> Scalar:
    """A vector of scalars."""
    return join(*values, lanes=range(len(values)))


def shifted(value: Scalar, *shifts: int) -> Scalar:
    """The unsigned value shifted right, by a different number of bits in each lane."""
    return splat(value, len(shifts)) >> vector(*(tirx.const(shift, "uint32") for shift in shifts))


# --- lanes ---


def join(*vectors: Scalar, lanes: Sequence[int]) -> Scalar:
    """A vector of selected lanes of several vectors of the same length, numbered consecutively."""
    return tirx.Shuffle(list(vectors), [tirx.const(lane, "int32") for lane in lanes])


def take_lanes(x: Scalar, lanes: Sequence[int]) -> Scalar:
    """A vector of selected lanes of another vector."""
    return join(x, lanes=lanes)


def lane_of(value: Scalar, lane: int) -> Scalar:
    """One lane of a vector."""
    return take_lanes(value, [lane])


def lane_at(value: Scalar, lane: Scalar) -> Scalar:
    """The lane of a vector of 4 with an index known at run time."""
    first, second, third, fourth = (lane_of(value, i) for i in range(4))
    return select(lane < 2, select(lane == 0, first, second), select(lane == 2, third, fourth))


def as_four(value: Scalar, lanes: int) -> Scalar:
    """A vector of ``lanes`` lanes, padded with zeros to 4."""
    zero = number(0, "float32")
    return value if lanes == 4 else vector(lane_of(value, 0), lane_of(value, 1), zero, zero)


def first_lanes(value: Scalar, lanes: int) -> Scalar:
    """The inverse of `as_four`."""
    return value if lanes == 4 else vector(lane_of(value, 0), lane_of(value, 1))


def part_of(values: list[Scalar], part: Scalar, size: int) -> list[Scalar]:
    """The ``size`` values that thread ``part`` uses."""
    parts = len(values) // size
    chosen = values[-size:]
    for i in reversed(range(parts - 1)):
        chosen = [
            select(part % parts == i, one, other)
            for one, other in zip(values[i * size : (i + 1) * size], chosen, strict=True)
        ]
    return chosen


# --- sums of lanes ---


def sum_lanes(value: Scalar, lanes: int = 4) -> Scalar:
    """The sum of a vector's lanes, from the first to the last."""
    return sum((lane_of(value, lane) for lane in range(1, lanes)), lane_of(value, 0))


def sum_of_lanes(x: Scalar) -> Scalar:
    """The sum of a vector's lanes, by repeatedly adding its halves."""
    return fold_lanes(x, lambda a, b: a + b)


def largest_of_lanes(x: Scalar) -> Scalar:
    return fold_lanes(x, maximum)


def fold_lanes(x: Scalar, combine: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
    """The lanes of a vector, combined by halves."""
    lanes = lanes_of(x)
    if lanes == 1:
        return x
    if lanes == 2:
        return combine(lane_of(x, 0), lane_of(x, 1))
    half = lanes // 2
    return fold_lanes(combine(take_lanes(x, range(half)), take_lanes(x, range(half, lanes))), combine)
