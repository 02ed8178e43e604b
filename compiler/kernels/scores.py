"""The scores of attention: which keys a row sees, the soft-cap, and the weights of a running softmax.

A query is scaled as it is loaded, so kernels pass the dot product of a scaled query with a key to `capped`. Positions
are those of a row's sequence. ``last`` is the row's reach if it has one; otherwise it is the position of the sequence's
last new token, which only attention that is not causal reads.
"""

from __future__ import annotations

from ..ir.expr import Expr
from ..ir.heads import Heads, Scores
from .builder import Array, KernelBuilder, Scalar, all_of, cast, exp, maximum, minimum, number
from .maths import soft_capped
from .vectors import splat

# The score of a key that a row does not see: minus infinity, which WGSL must not compute with. `weight` makes 0 of it.
LOWEST = -3.0e38


def scaled(heads: Heads, scores: Scores, query: Scalar) -> Scalar:
    """A vector of a query, float32, as `capped` expects it in products."""
    return query * splat(number(scores.scale, "float32"), heads.lanes)


def before_keys(sinks: Array | None, head: Scalar) -> tuple[Scalar | float, int]:
    """The largest score and the sum of weights before all keys. A sink is a key without a value."""
    return (LOWEST, 0) if sinks is None else (sinks[head], 1)


def capped(kernel: KernelBuilder, scores: Scores, score: Scalar) -> Scalar:
    """softcap * tanh(score / softcap), float32; the score itself if there is no soft-cap."""
    return score if scores.softcap is None else soft_capped(kernel, scores.softcap, score)


class DistanceBias:
    """The biases of scores by the distance of key and row; see `ops.attention.distance_biases`."""

    def __init__(self, kernel: KernelBuilder, heads: Heads, scores: Scores) -> None:
        self._distances = scores.distances
        self._bias = kernel.buffer("distance_bias", (heads.num_heads * scores.distances,), "float32")

    def of(self, head: Scalar, position: Scalar, key: Scalar) -> Scalar:
        """That of a key with the row at a position. ``key`` may be one that fills up a tile."""
        return self._bias[head * self._distances + self._distances // 2 + key - position]


def distance_bias(kernel: KernelBuilder, heads: Heads, scores: Scores) -> DistanceBias | None:
    return DistanceBias(kernel, heads, scores) if scores.has_bias else None


class DistanceHeads:
    """The heads by which distances change scores; see `ops.attention.distance_products`."""

    def __init__(self, kernel: KernelBuilder, heads: Heads, scores: Scores) -> None:
        self._heads, self._scores = heads, scores
        shape = (1 if scores.own_heads else 2, heads.num_heads, scores.distance_heads, heads.vectors)
        self._vectors = kernel.buffer("distance_heads", shape, heads.vector_dtype)
        rows = None if scores.own_heads else kernel.buffer("distance_rows", (scores.distances,), "float32")
        self._rows: Array | None = rows

    def row_of(self, position: Scalar, key: Scalar) -> Scalar:
        """That of a key's distance from the row at a position. ``key`` may be one that fills up a tile."""
        distance = self._scores.distances // 2 + key - position
        if self._rows is None:
            return distance
        row = cast(self._rows[distance], "int32")
        return minimum(maximum(row, 0), self._scores.distance_heads - 1)

    def product(self, query: Scalar, key: Scalar, head: Scalar, row: Scalar, vector: Scalar) -> Scalar:
        """What a vector of a scaled query and one of a key add to a score, besides their own product. Both are zeros
        beyond the last vector.
        """
        vector = minimum(vector, self._heads.vectors - 1)
        if self._rows is None:
            return query * self._vectors[0, head, row, vector]
        for_query, for_key = (self._vectors[part, head, row, vector] for part in range(2))
        return query * for_query + key * scaled(self._heads, self._scores, for_key)


def distance_heads(kernel: KernelBuilder, heads: Heads, scores: Scores) -> DistanceHeads | None:
    return DistanceHeads(kernel, heads, scores) if scores.distance_heads else None


def weight(score: Scalar, largest: Scalar) -> Scalar:
    """exp(score - largest): the weight of a key, and the factor of sums whose largest score so far was ``score``.

    Before a row's first visible key both are `LOWEST` and the weights are 1. The factor of that key is 0, so it clears
    the sums.
    """
    return exp(score - largest)


def first_key(scores: Scores, position: Scalar) -> Scalar | int:
    """The first key that the row at a position sees."""
    return 0 if scores.window is None else maximum(position - (scores.window - 1), 0)


def last_key(scores: Scores, position: Scalar, last: Scalar | None = None) -> Scalar:
    """The last key that the row at a position sees."""
    if scores.causal and not scores.reach:
        return position
    assert last is not None
    return last if scores.reach or scores.window is None else minimum(last, position + (scores.window - 1))


def sees(scores: Scores, key: Scalar, position: Scalar, last: Scalar | None = None) -> Scalar:
    """Whether the row at a position sees a key."""
    within = key > position - scores.window if scores.window is not None else True
    return all_of(key <= last_key(scores, position, last), within)


def first_page_key(heads: Heads, window: int | None, position: Scalar) -> Scalar | int:
    """The first key of the first page that the row at a position sees a key of. Kernels that read whole pages start
    here.
    """
    if window is None:
        return 0
    return maximum(position - (window - 1), 0) // heads.page_size * heads.page_size


def longest_reach(heads: Heads, window: int | None, max_rows: int = 1) -> Expr:
    """The most keys from `first_page_key` to the last key that a row sees, in sequences of at most ``max_rows`` new
    tokens.
    """
    return "T" if window is None else ["min", "T", window + heads.page_size - 1 + max_rows - 1]
