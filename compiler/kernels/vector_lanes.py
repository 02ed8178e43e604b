"""Select some of several vectors, or some lanes of a vector, by an index known at run time or for another size."""

from __future__ import annotations

from .builder import Scalar, lane_of, number, select, vector


def part_of(vectors: list[Scalar], part: Scalar, size: int) -> list[Scalar]:
    """The ``size`` vectors of a block that thread ``part`` uses."""
    if size == len(vectors):
        return vectors
    parts = len(vectors) // size
    chosen = vectors[-size:]
    for i in reversed(range(parts - 1)):
        chosen = [
            select(part % parts == i, one, other)
            for one, other in zip(vectors[i * size : (i + 1) * size], chosen, strict=True)
        ]
    return chosen


def lane_at(value: Scalar, lane: Scalar) -> Scalar:
    """The lane of a vector of 4 with an index known at run time."""
    first, second, third, fourth = (lane_of(value, i) for i in range(4))
    return select(lane < 2, select(lane == 0, first, second), select(lane == 2, third, fourth))


def as_four(value: Scalar, lanes: int) -> Scalar:
    """A vector of ``lanes`` lanes, padded with zeros to 4."""
    return (
        value
        if lanes == 4
        else vector(lane_of(value, 0), lane_of(value, 1), number(0, "float32"), number(0, "float32"))
    )


def first_lanes(value: Scalar, lanes: int) -> Scalar:
    """The inverse of `as_four`."""
    return value if lanes == 4 else vector(lane_of(value, 0), lane_of(value, 1))
