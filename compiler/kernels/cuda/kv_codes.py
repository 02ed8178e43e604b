"""8-bit keys and values of `attention_decode_mma`, integers or floats, in shared memory: stages of some tokens each, as
pages hold them, which are filled in turn while earlier ones are used. They become float16 in registers, without their
scales, which multiply scores and weights.
"""

from __future__ import annotations

from ...ir.heads import Heads
from ..builder import Array, KernelBuilder, Scalar, address_of, maximum, minimum, reinterpret
from ..vectors import lane_of, vector
from .functions import copy_16_bytes, copy_element, load_transposed, unpack_bytes
from .kv_stages import PageLists


class KvCodes:
    """Codes of ``keys`` tokens in each of ``stages``, and their scales. Codes of tokens that do not exist are whatever
    was there before, and so are their scales, which may be NaN.

    As in `KvStages`, the offset of codes within a row depends on the row, so that the threads of a warp that read at
    once use different banks.
    """

    dtype = "float16"
    # The elements of a value whose fragments `load_values` reads at once: tiles of the even ones, then of the odd ones,
    # of each 16.
    value_elements = 32

    def __init__(self, kernel: KernelBuilder, heads: Heads, batch: PageLists, keys: int, stages: int) -> None:
        form = heads.form
        assert form is not None, heads
        self._kernel, self._heads, self._batch, self._keys, self._stages = kernel, heads, batch, keys, stages
        self._kind = "e4m3" if form.floats else "signed"
        self.words, self._units = form.words(heads.head_dim), heads.head_dim // 16
        shape = ("P", 2, heads.num_kv_heads, heads.page_size * self.words)
        self._kv = kernel.buffer("kv", shape, "uint32", write=True)

    def allocate(self, thread: Scalar, threads: int, kv_head: Scalar) -> None:
        assert threads == 2 * self._keys, (threads, self._keys)
        self._thread, self._threads, self._kv_head = thread, threads, kv_head
        kernel, stages, keys = self._kernel, self._stages, self._keys
        self._tiles = kernel.shared("code_tiles", (stages, 2, keys, 2 * self._units), "uint32x2")
        self._scales = kernel.shared("scale_tiles", (stages, 2, keys), "uint32")
        self._eight = kernel.local("eight_codes", 1, "uint32x2")
        self._raw = kernel.local("raw_values", 4, "uint32")
        self._unpacked = kernel.local("unpacked", 4, "uint32")

    def start(self, stage: Scalar | int, first_page: Scalar, start_key: Scalar, length: Scalar) -> None:
        """Start to fill a stage with the keys from ``start_key`` on, of ``length`` in all, which may be 0. It holds
        them after a wait for the group that `functions.commit_copies` closes next, and a barrier.
        """
        kernel, page_size = self._kernel, self._heads.page_size

        def page_of(row: Scalar) -> tuple[Scalar, Scalar]:
            key = kernel.let("key", minimum(start_key + row, maximum(length - 1, 0)))
            return kernel.let("page", self._batch.page_of(first_page, key)), kernel.let("in_page", key % page_size)

        for start in range(0, self._keys * self._units, self._threads):
            item = kernel.let("item", self._thread + start)
            row, unit = kernel.let("row", item // self._units), kernel.let("unit", item % self._units)
            page, in_page = page_of(row)
            with kernel.when(start_key + row < length):
                for plane in range(2):
                    place = self._value_place(row, unit) if plane else self._key_place(row, unit * 2)
                    shared = address_of(self._tiles, stage, plane, row, place)
                    word = in_page * (self.words - 1) + unit * 4
                    copy_16_bytes(shared, address_of(self._kv, page, plane, self._kv_head, word), 1)
        plane, row = kernel.let("plane", self._thread // self._keys), kernel.let("row", self._thread % self._keys)
        page, in_page = page_of(row)
        with kernel.when(start_key + row < length):
            word = page_size * (self.words - 1) + in_page
            source = address_of(self._kv, page, plane, self._kv_head, word)
            copy_element(address_of(self._scales, stage, plane, row), source, 4)

    def write_page(self, page: Scalar, key: Scalar, new: Array) -> None:
        """Write the words of a new key and value, (2, words), to a page."""
        kernel, codes = self._kernel, self.words - 1
        in_page = kernel.let("new_in_page", key % self._heads.page_size)
        for start in range(0, 2 * self.words, self._threads):
            item = kernel.let("item", self._thread + start)
            with kernel.when(item < 2 * self.words):
                plane, word = kernel.let("plane", item // self.words), kernel.let("word", item % self.words)
                with kernel.when(word < codes):
                    self._kv[page, plane, self._kv_head, in_page * codes + word] = new[plane, word]
                with kernel.when(word == codes):
                    self._kv[page, plane, self._kv_head, self._heads.page_size * codes + in_page] = new[plane, word]

    def set_row(self, stage: Scalar, row: Scalar, new: Array) -> None:
        """The words of a new key and value in a stage, in which no copy writes them."""
        kernel = self._kernel
        for start in range(0, 2 * self._units, self._threads):
            item = kernel.let("item", self._thread + start)
            with kernel.when(item < 2 * self._units):
                unit = kernel.let("unit", item % self._units)
                for plane in range(2):
                    with kernel.when(item // self._units == plane):
                        place = self._value_place(row, unit) if plane else self._key_place(row, unit * 2)
                        for half in range(2):
                            first = unit * 4 + half * 2
                            self._tiles[stage, plane, row, place + half] = vector(
                                new[plane, first], new[plane, first + 1]
                            )
        with kernel.when(self._thread < 2):
            self._scales[stage, self._thread, row] = new[self._thread, self.words - 1]

    def scale(self, plane: int, stage: Scalar, row: Scalar) -> Scalar:
        return reinterpret(self._scales[stage, plane, row], "float32")

    def load_keys(self, stage: Scalar, row: Scalar, block: int, quarter: Scalar, words: Array) -> None:
        """Eight elements of a key in four words: elements 0 and 2, 1 and 3, 4 and 6, 5 and 7."""
        self._eight[0] = self._tiles[stage, 0, row, self._key_place(row, block * 4 + quarter)]
        self._unpack(words, *(lane_of(self._eight[0], lane) for lane in range(2)))

    def load_values(self, stage: Scalar, first: Scalar | int, lane: Scalar, group: int, words: Array) -> None:
        """The fragments of 16 values from row ``first`` on, of the 32 elements of a group, in eight words."""
        row = first + lane % 16
        unit = self._value_place(row, group * 2 + lane // 16)
        # Each word has two adjacent elements of two adjacent keys.
        load_transposed(address_of(self._raw, 0), address_of(self._tiles, stage, 1, row, unit))
        for half in range(2):
            self._unpack(self._unpacked, self._raw[half * 2], self._raw[half * 2 + 1])
            for word in range(4):
                words[half * 4 + word] = self._unpacked[word % 2 * 2 + word // 2]

    def _unpack(self, words: Array, first: Scalar, second: Scalar) -> None:
        unpack_bytes(self._kind, address_of(words, 0), first, second)

    def _key_place(self, row: Scalar, unit: Scalar) -> Scalar:
        """Where 8 codes of a key are in its row, in units of 8 codes. 16 threads read four units of four rows."""
        if self._units % 8 == 0:
            return unit ^ (row % 4 * 4)
        return unit ^ (row // 2 % 2 * 4) if self._units % 4 == 0 else unit

    def _value_place(self, row: Scalar, unit: Scalar) -> Scalar:
        """Where 16 codes of a value are in its row, in units of 8 codes. Eight threads read a unit of eight rows."""
        if self._units % 8 == 0:
            return (unit ^ (row % 8)) * 2
        return (unit ^ (row // 2 % 4) if self._units % 4 == 0 else unit ^ (row // 4 % 2)) * 2


def shared_bytes(heads: Heads, keys: int) -> int:
    """The shared memory of a stage."""
    return 2 * keys * (heads.head_dim + 4)
