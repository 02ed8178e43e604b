"""The layout of KV pages for CPU kernels, within the memory of a page, plane and KV head in the plan's state.

Keys lie element by element, (D, page), so that a vector holds one element of neighbouring keys. Values lie token by
token, (page, D). Pages of integers hold the codes in the same order, then the float32 scales of the page's tokens.
Codes of 4 bits stay in their words of eight (`ir.kv_format`): keys are (D / 8, page) and values (page, D / 8) words.
"""

from __future__ import annotations

from ...ir.expr import Expr
from ...ir.heads import Heads
from ...ir.kv_format import KvFormat
from ..builder import Array, Scalar, cast, maximum, minimum, number, select
from ..vectors import floats, fold_lanes, join, ramp, with_lanes
from .builder import CpuKernelBuilder, Isa, pieces
from .hadamard import rotate
from .math import rounded


class Pages:
    """A layer's keys (plane 0) and values (plane 1) as the argument "kv".

    A row has ``width`` entries of ``parts`` codes: numbers, or bytes with two codes of 4 bits. Keys may be stored
    rotated.
    """

    def __init__(self, kernel: CpuKernelBuilder, heads: Heads, *, write: bool, scratch: Expr | None = None) -> None:
        """``scratch``: the number of float32 pages in scratch, which replace the argument."""
        self._kernel, self._heads, self.form = kernel, heads, heads.form
        self.parts = 1 if self.form is None else self.form.vectors
        self.width = heads.head_dim // self.parts
        size, page = self.width * heads.page_size, heads.page_size
        if scratch is not None:
            self._kv = kernel.scratch("pages", (scratch, 2, heads.num_kv_heads, size), "float32", write=write)
            return
        if self.form is None:
            self._kv = kernel.buffer("kv", ("P", 2, heads.num_kv_heads, size), heads.activation, write=write)
            return
        dtype = "uint8" if self.parts > 1 else "int8"
        self._kv = kernel.buffer("kv", ("P", 2, heads.num_kv_heads, size + 4 * page), dtype, write=write)
        words = ("P", 2, heads.num_kv_heads, size // 4 + page)
        self._scales, self._words = (kernel.view(self._kv, words, each) for each in ("float32", "uint32"))

    @property
    def quantized(self) -> bool:
        """Whether rows have scales."""
        return self.form is not None

    @property
    def zero(self) -> int:
        """The number that is subtracted from each loaded code, or 0 for floats."""
        return 0 if self.form is None else self.form.zero

    def key(self, page: Scalar, kv_head: Scalar, in_page: Scalar | int, element: Scalar, lanes: int) -> Scalar:
        """One element of ``lanes`` neighbouring keys from ``in_page`` on, as float32; quantized pages omit the scale.
        Not for codes of 4 bits.
        """
        (key,) = self._load(page, 0, kv_head, element * self._heads.page_size + in_page, lanes)
        return key

    def words(self, page: Scalar, kv_head: Scalar, in_page: Scalar | int, word: Scalar, lanes: int) -> Scalar:
        """One word of neighbouring keys. Only for codes of 4 bits."""
        return self._words[page, 0, kv_head, ramp(word * self._heads.page_size + in_page, lanes)]

    def value(self, page: Scalar, kv_head: Scalar, in_page: Scalar, entry: int, lanes: int) -> list[Scalar]:
        """Neighbouring entries of one value as float32, one vector for each of their parts; quantized pages omit
        ``zero`` and scale. Parts are in the order of `in_order`.
        """
        return self._load(page, 1, kv_head, in_page * self.width + entry, lanes)

    def in_order(self, parts: list[Scalar], entry: int, lanes: int) -> list[tuple[int, Scalar]]:
        """Vectors of neighbouring elements of a row, each with its first element, from the parts of entries."""
        if len(parts) == 1:
            return [(entry, parts[0])]
        # Of each word, the low halves of the four bytes precede the high ones.
        order = [part * lanes + word + byte for word in range(0, lanes, 4) for part in range(2) for byte in range(4)]
        halves = order[:lanes], order[lanes:]
        return [(2 * entry + index * lanes, join(*parts, lanes=each)) for index, each in enumerate(halves)]

    def scales(self, page: Scalar, plane: int, kv_head: Scalar, in_page: Scalar, lanes: int) -> Scalar:
        """The scales of neighbouring tokens. Only for quantized pages."""
        return self._scales[page, plane, kv_head, ramp(self._first_scale + in_page, lanes)]

    def prefetch(self, page: Scalar, plane: int, kv_head: Scalar, index: Scalar) -> None:
        """Prefetch an entry of a page's keys or values by its index among all of them."""
        self._kernel.prefetch(self._kv, (page, plane, kv_head, index))

    def _load(self, page: Scalar, plane: int, kv_head: Scalar, index: Scalar, lanes: int) -> list[Scalar]:
        stored = self._kv[page, plane, kv_head, ramp(index, lanes)]
        if self.form is None:
            return [cast(stored, floats(lanes))]
        integers = with_lanes("int32", lanes)
        entries = cast(stored, integers)
        if self.parts == 1:
            return [cast(entries, floats(lanes))]
        entries, bits = self._kernel.let("entries", entries), self.form.bits
        parts = [entries & number((1 << bits) - 1, integers), entries >> number(bits, integers)]
        return [cast(part, floats(lanes)) for part in parts]

    def store_elements(self, page: Scalar, kv_head: Scalar, element: int, values: Scalar) -> None:
        """Store one element of all keys of a page of float32, which are not rotated."""
        size = self._heads.page_size
        self._kv[page, 0, kv_head, ramp(element * size, size)] = values

    def append(self, isa: Isa, page: Scalar, plane: int, kv_head: Scalar, in_page: Scalar, row: Array) -> None:
        """Store the key (plane 0) or value (plane 1) of one token and kv head, (D,) float32, which may be changed."""
        heads, kernel, form = self._heads, self._kernel, self.form
        if heads.rotates_keys and plane == 0:
            rotate(kernel, isa, heads.head_dim, row)
        factor = None
        if form is not None:
            highest, lowest = (kernel.local(name, 1, "float32", fill=0) for name in ("highest", "lowest"))
            for start, lanes in pieces(heads.head_dim, isa.lanes):
                some = kernel.let("some", row[ramp(start, lanes)])
                highest[0] = maximum(highest[0], fold_lanes(some, maximum))
                lowest[0] = minimum(lowest[0], fold_lanes(some, minimum))
            extreme = kernel.let("extreme", select(highest[0] >= -lowest[0], highest[0], lowest[0]))
            steps = number(-form.steps, "float32")
            factor = kernel.let("code_factor", select(extreme != 0, steps / extreme, number(0, "float32")))
            self._scales[page, plane, kv_head, self._first_scale + in_page] = extreme / steps
        if form is None and plane == 1:
            for start, lanes in pieces(self.width, isa.lanes):
                here = ramp(in_page * self.width + start, lanes)
                value = cast(row[ramp(start, lanes)], with_lanes(heads.activation, lanes))
                self._kv[page, plane, kv_head, here] = value
            return
        with kernel.loop("entry", self.width) as entry:
            if form is None or factor is None:
                stored = cast(row[entry], heads.activation)
            else:
                first = entry if self.parts == 1 else entry // 4 * 8 + entry % 4
                stored = packed(form, [row[first + 4 * part] * factor for part in range(self.parts)])
            self._kv[page, plane, kv_head, self._index(plane, in_page, entry)] = stored

    def _index(self, plane: int, in_page: Scalar, entry: Scalar) -> Scalar:
        """The place of an entry among those of all rows."""
        if plane == 1:
            return in_page * self.width + entry
        # A word's bytes are neighbours.
        together = 1 if self.parts == 1 else 4
        return (entry // together * self._heads.page_size + in_page) * together + entry % together

    @property
    def _first_scale(self) -> int:
        return self.width * self._heads.page_size // 4


def packed(form: KvFormat, elements: list[Scalar]) -> Scalar:
    """The byte of elements in units of their scale."""
    codes = [rounded(element) for element in elements]
    if form.largest_code < form.steps:
        codes = [minimum(code, number(form.largest_code, "float32")) for code in codes]
    if form.vectors == 1:
        return cast(codes[0], "int8")
    low, high = (cast(code, "int32") + number(form.zero, "int32") for code in codes)
    return cast(low | high << number(form.bits, "int32"), "uint8")
