"""Prepares the heads of new tokens for attention: norms and rotates q and k as the step requires, and stores k and v in
their pages.

`NewHeads` is the first phase of attention; the template append_kv is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from ...ir.heads import Heads, Preparation
from ..builder import Array, Kernel, Scalar, all_of, cast
from ..vectors import floats, ramp, splat
from .builder import CpuKernelBuilder, Isa, pieces
from .math import position_factor
from .pages import Pages
from .rotation import Rotation
from .rows import rms_factor


class NewHeads:
    """The arguments "qkv", "table", "positions", "slots" and "qk_norm" of a kernel; "table" and "qk_norm" only if the
    step has them, and "slots" only if it appends and ``stores`` keys and values in pages.

    qkv (S, H + 2 K, D) holds the heads of q, then those of k, then those of v; qk_norm (2, D) the weights of q, then
    those of k, or with wide norms (H + K, D) those of each head. A step that appends nothing has only q (S, H, D), and
    q's weights.
    """

    def __init__(
        self, kernel: CpuKernelBuilder, isa: Isa, heads: Heads, preparation: Preparation, *, stores: bool = True
    ) -> None:
        self._kernel, self._isa, self._heads, self._preparation = kernel, isa, heads, preparation
        appends = preparation.appends
        self._heads_of_row = heads.num_heads + (2 * heads.num_kv_heads if appends else 0)
        self._qkv = kernel.buffer(
            "qkv" if appends else "q", (heads.rows, self._heads_of_row, heads.head_dim), heads.activation
        )
        rotated = preparation.rotary_dim > 0
        self._rotation = Rotation(kernel, isa, preparation) if rotated else None
        assert appends or not (preparation.norm_wide or preparation.norm_after), preparation
        rows = heads.num_heads + heads.num_kv_heads if preparation.norm_wide else 2 if appends else 1
        normed = preparation.eps is not None
        self._norm = kernel.buffer("qk_norm", (rows, heads.head_dim), "float32") if normed else None
        by_position = stores or not preparation.by_row
        self.positions = kernel.buffer("positions", (heads.rows,), "int32") if by_position else None
        self._slots = kernel.buffer("slots", (heads.rows,), "int32") if appends and stores else None

    def process(self, pages: Pages, store_query: Callable[[Scalar, Scalar, Array], None]) -> None:
        """Each task processes one head of one row: ``store_query`` receives row, head and a query (D,) float32, which
        it may change; keys and values are appended to the pages.
        """
        heads, kernel = self._heads, self._kernel
        with kernel.tasks("task", heads.rows, self._heads_of_row) as task:
            row, head = kernel.split(task, self._heads_of_row, ("row", "head"))
            values_start = heads.num_heads + heads.num_kv_heads
            prepared = kernel.local("prepared", heads.head_dim, "float32")
            with kernel.when(head < heads.num_heads if self._slots is not None else True):
                self.prepare(row, head, prepared, of_q=True)
                store_query(row, head, prepared)
            if self._slots is None:
                return
            page, in_page = kernel.split(self._slots[row], heads.page_size, ("page", "in_page"))
            with kernel.when(all_of(head >= heads.num_heads, head < values_start)):
                self.prepare(row, head, prepared, of_q=False)
                pages.append(self._isa, page, 0, head - heads.num_heads, in_page, prepared)
            with kernel.when(head >= values_start):
                self.prepare_value(row, head, prepared)
                pages.append(self._isa, page, 1, head - values_start, in_page, prepared)

    def prepare_value(self, row: Scalar, head: Scalar, prepared: Array) -> None:
        """Copy a head of v into ``prepared``, normalized if values are."""
        factor = self._factor(row, head) if self._preparation.norms_values else None
        for start, lanes in pieces(self._heads.head_dim, self._isa.lanes):
            value = self.load(row, head, start, lanes)
            prepared[ramp(start, lanes)] = value if factor is None else value * splat(factor, lanes)

    def load(self, row: Scalar, head: Scalar, start: Scalar, lanes: int) -> Scalar:
        return cast(self._qkv[row, head, ramp(start, lanes)], floats(lanes))

    def _factor(self, row: Scalar, head: Scalar) -> Scalar:
        """1 / rms of a head."""
        eps = self._preparation.eps
        assert eps is not None
        return rms_factor(
            self._kernel, lambda start, lanes: self.load(row, head, start, lanes), self._heads.head_dim, eps
        )

    def _wide_factor(self, row: Scalar, *, of_q: bool) -> Scalar:
        """1 / rms of all heads of q, or of k."""
        heads, eps = self._heads, self._preparation.eps
        assert eps is not None
        first, count = (0, heads.num_heads) if of_q else (heads.num_heads, heads.num_kv_heads)
        columns = self._heads_of_row * heads.head_dim
        flat = self._kernel.view(self._qkv, (heads.rows, columns), heads.activation)

        def load(start: Scalar, lanes: int) -> Scalar:
            return cast(flat[row, ramp(first * heads.head_dim + start, lanes)], floats(lanes))

        return rms_factor(self._kernel, load, count * heads.head_dim, eps)

    def prepare(self, row: Scalar, head: Scalar, prepared: Array, *, of_q: bool) -> None:
        """Norm and rotate one head into ``prepared``."""
        head_dim, norm, norm_after = self._heads.head_dim, self._norm, self._preparation.norm_after
        is_wide, factor = self._preparation.norm_wide, None
        if norm is not None:
            factor = self._wide_factor(row, of_q=of_q) if is_wide else self._factor(row, head)

        def raw(start: int, lanes: int) -> Scalar:
            return self.load(row, head, start, lanes)

        def normed(start: int, lanes: int, value: Scalar) -> Scalar:
            if factor is None or norm is None:
                return value
            norm_row = head if is_wide else 0 if of_q else 1
            return value * splat(factor, lanes) * norm[norm_row, ramp(start, lanes)]

        def load(start: int, lanes: int) -> Scalar:
            return raw(start, lanes) if norm_after else normed(start, lanes, raw(start, lanes))

        position = row if self.positions is None else self._kernel.let("position", self.positions[row])
        scale = self._preparation.position_scale if of_q else None
        of_position = None if scale is None else self._kernel.let("of_position", position_factor(scale, position))

        def store(start: int, lanes: int, value: Scalar) -> None:
            value = normed(start, lanes, value) if norm_after else value
            prepared[ramp(start, lanes)] = value if of_position is None else value * splat(of_position, lanes)

        rotated = self._preparation.rotary_dim
        if self._rotation is not None:
            self._rotation.apply(row, position, load, store)
        for start, lanes in pieces(head_dim - rotated, self._isa.lanes):
            store(rotated + start, lanes, load(rotated + start, lanes))


def append_kv(name: str, *, isa: Isa, heads: Heads) -> Kernel:
    """Store k and v (S, K, D) in the pages of their slots (S,). One task: the key and the value of one kv head of one
    row.
    """
    kernel = CpuKernelBuilder(name)
    planes = [kernel.buffer(role, ("S", heads.num_kv_heads, heads.head_dim), heads.activation) for role in ("k", "v")]
    slots = kernel.buffer("slots", ("S",), "int32")
    pages = Pages(kernel, heads, write=True)
    with kernel.tasks("task", "S", heads.num_kv_heads) as task:
        row, kv_head = kernel.split(task, heads.num_kv_heads, ("row", "kv_head"))
        page, in_page = kernel.split(slots[row], heads.page_size, ("page", "in_page"))
        values = kernel.local("values", heads.head_dim, "float32")
        for plane, x in enumerate(planes):
            for start, lanes in pieces(heads.head_dim, isa.lanes):
                values[ramp(start, lanes)] = cast(x[row, kv_head, ramp(start, lanes)], floats(lanes))
            pages.append(isa, page, plane, kv_head, in_page, values)
    return kernel.finish()
