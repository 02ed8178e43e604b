"""Keys and values of attention_mma in shared memory: stages of some tokens each, which are filled in turn while earlier
ones are used.
"""

from __future__ import annotations

from typing import Protocol

from ...ir.heads import Heads
from ..builder import Array, KernelBuilder, Scalar, address_of, maximum, minimum, number, select
from ..pages import Pages
from ..vectors import lane_of, vector
from .functions import copy_16_bytes, load_transposed, pair


class PageLists(Protocol):
    """The pages of a batch's sequences."""

    def page_of(self, first_page: Scalar, key: Scalar) -> Scalar:
        """The page of a key of the sequence whose pages start at ``first_page`` of the list."""


class KvStages:
    """Keys and values of ``keys`` tokens in each of ``stages``, as 16-bit floats; zeros beyond the last key.

    Rows are not padded: the offset of 16 bytes within a row depends on the row, so that the threads of a warp that read
    at once use different banks. The argument "kv" is copied in pieces of 16 bytes, or dequantized.
    """

    # The elements of a value whose fragments `load_values` reads at once.
    value_elements = 16

    def __init__(
        self, kernel: KernelBuilder, heads: Heads, batch: PageLists, keys: int, stages: int, *, write: bool = False
    ) -> None:
        """``write``: the kernel writes pages too."""
        self.dtype = heads.activation
        self._kernel, self._heads, self._batch, self._keys, self._stages = kernel, heads, batch, keys, stages
        self._octets = heads.head_dim // 8
        self._pages = Pages(kernel, heads, write=False) if heads.form is not None else None
        if self._pages is None:
            self._kv = kernel.buffer(
                "kv", ("P", 2, heads.num_kv_heads, heads.page_size, self._octets), "uint32x4", write=write
            )

    def allocate(self, thread: Scalar, threads: int, kv_head: Scalar) -> None:
        self._thread, self._threads, self._kv_head = thread, threads, kv_head
        shape = (self._stages, 2, self._keys, self._octets)
        self._tiles = self._kernel.shared("kv_tiles", shape, "uint32x4")
        self._octet = self._kernel.local("octet_words", 1, "uint32x4")

    def start(
        self,
        stage: Scalar | int,
        first_page: Scalar,
        start_key: Scalar,
        length: Scalar,
        skipped: Scalar | None = None,
    ) -> None:
        """Start to fill a stage with the keys from ``start_key`` on, of ``length`` in all. It holds them after a wait
        for the group that `functions.commit_copies` closes next, and a barrier. A ``skipped`` key is left to
        `set_octet`; then ``length`` may be 0.
        """
        kernel, page_size = self._kernel, self._heads.page_size
        for start in range(0, self._keys * self._octets, self._threads):
            item = kernel.let("item", self._thread + start)
            row, octet = kernel.let("row", item // self._octets), kernel.let("octet", item % self._octets)
            last = length - 1 if skipped is None else maximum(length - 1, 0)
            key = kernel.let("key", minimum(start_key + row, last))
            page = kernel.let("page", self._batch.page_of(first_page, key))
            present = start_key + row < length
            for plane in range(2):
                offset = self._offset_of(plane, row, octet)
                if self._pages is None:
                    source = address_of(self._kv, page, plane, self._kv_head, key % page_size, octet)
                    with kernel.when(True if skipped is None else start_key + row != skipped):
                        copy_16_bytes(address_of(self._tiles, stage, plane, row, offset), source, select(present, 1, 0))
                    continue
                quads = [
                    kernel.let("quad", self._pages.load(page, plane, self._kv_head, key % page_size, octet * 2 + half))
                    for half in range(2)
                ]
                words = [
                    pair(self._heads.activation, lane_of(quad, low), lane_of(quad, low + 1))
                    for quad in quads
                    for low in (0, 2)
                ]
                filled = select(present, vector(*words), number(0, "uint32x4"))
                self._tiles[stage, plane, row, offset] = filled

    def set_octet(self, stage: Scalar, plane: Scalar, row: Scalar, octet: Scalar, words: Scalar) -> None:
        """Eight elements of a key (plane 0) or a value (plane 1) that no copy fills."""
        offset = select(plane == 0, self._offset_of(0, row, octet), self._offset_of(1, row, octet))
        self._tiles[stage, plane, row, offset] = words

    def write_page(self, page: Scalar, plane: Scalar, key: Scalar, octet: Scalar, words: Scalar) -> None:
        """Write eight elements to a page."""
        self._kv[page, plane, self._kv_head, key % self._heads.page_size, octet] = words

    def load_keys(self, stage: Scalar, row: Scalar, block: int, quarter: Scalar, words: Array) -> None:
        """Eight elements of a key in four words. A quarter of a warp may read octets 4 i to 4 i + 3 of rows 2 j and
        2 j + 1.
        """
        self._octet[0] = self._tiles[stage, 0, row, self._offset_of(0, row, block * 4 + quarter)]
        for word in range(4):
            words[word] = lane_of(self._octet[0], word)

    def load_values(self, stage: Scalar, first: Scalar | int, lane: Scalar, group: int, words: Array) -> None:
        """The fragments of 16 values from row ``first`` on, of the 16 elements of a group, in four words."""
        row = first + lane % 16
        offset = self._offset_of(1, row, group * 2 + lane // 16)
        load_transposed(address_of(words, 0), address_of(self._tiles, stage, 1, row, offset))

    def _offset_of(self, plane: int, row: Scalar, octet: Scalar) -> Scalar:
        """Where an octet is in its row: 16 bytes at the same offset of adjacent rows share banks if a row is a multiple
        of 128 bytes; else every other row does.
        """
        aligned = self._octets % 8 == 0
        if plane == 0:
            return octet ^ (row % 2 * 4) if aligned else octet
        return octet ^ (row % 8) if aligned else octet ^ (row // 2 % 4)
