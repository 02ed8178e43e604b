"""Pages: keys and values of every layer. A page belongs to one sequence and is as long as its context; it grows with
its content.

MLX's arrays are values, so a copy of a page costs nothing until either is written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearfar.compiler.runtime.batch import Batch

# The number of tokens by which a page grows.
STEP = 256


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of one sequence: rows [first, stop) of the batch, which follow ``start`` tokens on ``page``."""

    page: int
    start: int
    first: int
    stop: int

    @property
    def length(self) -> int:
        """Tokens of the sequence, including the new ones."""
        return self.start + self.stop - self.first


def spans_of(batch: Batch) -> list[Span]:
    ends = batch.seq_starts.tolist()
    starts, pages = batch.positions[batch.seq_starts[:-1]].tolist(), batch.page_ids[batch.page_indptr[:-1]].tolist()
    return [Span(*each) for each in zip(pages, starts, ends[:-1], ends[1:], strict=True)]


def sampled_spans(batch: Batch) -> list[Span]:
    """Each sampled row as a span of one token, which follows all earlier ones of its sequence."""
    sequences = np.searchsorted(batch.seq_starts, batch.sample_rows, side="right") - 1
    pages = batch.page_ids[batch.page_indptr[sequences]].tolist()
    starts = batch.positions[batch.sample_rows].tolist()
    return [Span(page, start, row, row + 1) for row, (page, start) in enumerate(zip(pages, starts, strict=True))]


# Keys or values of a page, one array of the activations' dtype, or codes, scales and biases: each (1, K, capacity,
# elements of a row).
Arrays = tuple[Any, ...]


class Pages:
    """``groups``: for each layer's state in the graph, None if keys and values are not quantized, or the number of
    elements that share the scale of their 8-bit integers. MLX computes nothing until `written` is evaluated.
    """

    def __init__(self, groups: Mapping[str, int | None], num_pages: int) -> None:
        self.groups = groups
        self._layers: dict[str, list[tuple[Arrays, Arrays] | None]] = {name: [None] * num_pages for name in groups}

    def append(self, name: str, span: Span, keys: Any, values: Any) -> None:
        """Append a span's new keys and values (1, K, n, D) to the tokens on its page."""
        pages = self._layers[name]
        # A new sequence frees the memory of the previous one.
        old = pages[span.page] if span.start else None
        old_keys, old_values = old or (None, None)
        group = self.groups[name]
        pages[span.page] = (
            self._placed(old_keys, keys, span.start, group),
            self._placed(old_values, values, span.start, group),
        )

    def read(self, name: str, span: Span, first: int) -> tuple[Arrays, Arrays]:
        """Keys and values of a span's sequence from position ``first`` on, (1, K, length - first, elements of a row),
        including the new ones.
        """
        page = self._layers[name][span.page]
        assert page is not None, (name, span)
        keys, values = (tuple(array[:, :, first : span.length] for array in arrays) for arrays in page)
        return keys, values

    def _placed(self, old: Arrays | None, rows: Any, start: int, group: int | None) -> Arrays:
        import mlx.core as mx

        new = (rows,) if group is None else mx.quantize(rows, group_size=group, bits=8)
        return tuple(updated(None if old is None else old[index], array, start) for index, array in enumerate(new))

    def written(self, spans: Sequence[Span]) -> list[Any]:
        """The arrays of the spans' pages, to be evaluated."""
        pages = [layer[span.page] for layer in self._layers.values() for span in spans]
        return [array for page in pages for arrays in page or () for array in arrays]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, from the first of each pair to the second."""
        for pages in self._layers.values():
            for source, destination in pairs:
                pages[destination] = pages[source]

    def clear(self) -> None:
        self._layers.clear()


def updated(array: Any | None, rows: Any, start: int) -> Any:
    """``array`` (1, K, capacity, D) with ``rows`` (1, K, n, D) at positions from ``start`` on, grown if they do not
    fit. MLX writes in place if nothing else refers to the array.
    """
    import mlx.core as mx

    _, heads, count, width = rows.shape
    capacity = -(-(start + count) // STEP) * STEP
    if array is None:
        array = mx.zeros((1, heads, capacity, width), rows.dtype)
    elif array.shape[2] < capacity:
        array = mx.concatenate([array, mx.zeros((1, heads, capacity - array.shape[2], width), rows.dtype)], axis=2)
    return mx.slice_update(array, rows, mx.array([start]), [2])
