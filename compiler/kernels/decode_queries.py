"""The work of one workgroup of attention_few_rows: one new token of a sequence after the other, whose keys and values
are on their pages already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..ir.heads import Heads, Scores
from .builder import KernelBuilder, cast
from .decode_range import DecodeOptions, DecodeRange, Ranges
from .new_heads import query_rows
from .scores import last_key, scaled


class StoredRange(DecodeRange):
    """The ranges of the new tokens of each sequence that has at most ``max_rows``, and a token's queries in workgroup
    memory.
    """

    ranges: Ranges

    def __init__(
        self,
        kernel: KernelBuilder,
        facts: Heads,
        scores: Scores,
        options: DecodeOptions,
        max_rows: int,
        *,
        q_in_scratch: bool,
    ) -> None:
        assert options.split is not None, options
        self.scores = scores
        self._q = query_rows(kernel, facts, scratch=q_in_scratch)
        self._seq_starts = kernel.buffer("seq_starts", (["add", facts.sequences, 1],), "int32")
        self._reach = kernel.buffer("reach", (facts.rows,), "int32") if scores.reach else None
        super().__init__(kernel, facts, options, Ranges(facts, scores.window, options.split, max_rows), write=False)
        self.queries = kernel.shared("queries", (options.heads, facts.vectors), facts.vector_dtype)

    @contextmanager
    def rows(self) -> Iterator[None]:
        """A loop over the sequence's new tokens, except those for which this range is empty."""
        kernel, scores = self.kernel, self.scores
        with self.ranges.rows(kernel, self._seq_starts, self.sequence) as (row, token):
            last = None if scores.causal else self.positions[self._seq_starts[self.sequence + 1] - 1]
            last = last if self._reach is None else self._reach[row]
            end = kernel.let("end", last_key(scores, self.positions[row], last) + 1)
            self.find_keys(scores.window, row, token, end)
            with kernel.when(self.count > 0):
                yield

    def load_queries(self) -> None:
        """Scale the row's queries. Ends without a barrier."""
        kernel, facts, threads = self.kernel, self.facts, self.options.threads
        items = self.options.heads * facts.vectors
        for start in range(0, items, threads):
            item = kernel.let("item", self.thread + start)
            with kernel.when(True if start + threads <= items else item < items):
                head, index = kernel.let("head", item // facts.vectors), kernel.let("index", item % facts.vectors)
                query = cast(self._q[self.row, self.first_head + head, index], facts.vector_dtype)
                self.queries[head, index] = scaled(facts, self.scores, query)
