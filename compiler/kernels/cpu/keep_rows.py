"""keep_rows: each row, or the row scaled to unit root mean square and by weight, stored in a memory at the row's slot,
if it has one.

One task: one row.
"""

from __future__ import annotations

from ..builder import Kernel, Scalar, cast
from ..kept_rows import keep_rows_buffers, kept_count
from ..vectors import floats, ramp, splat, with_lanes
from .builder import CpuKernelBuilder, Isa, each_vector
from .rows import LANES, rms_factor


def keep_rows(
    name: str,
    *,
    isa: Isa,  # noqa: ARG001
    rows: str,
    columns: int,
    eps: float | None,
    by_token: bool,
    normed: bool,
    kept_dtype: str,
) -> Kernel:
    """``by_token``: the memory has a row for each token of the pages; otherwise one for each slot of a sampled row."""
    kernel = CpuKernelBuilder(name)
    x, weight, slot_of, kept = keep_rows_buffers(kernel, rows, columns, kept_dtype, by_token=by_token, normed=normed)
    with kernel.tasks("row", kept_count(rows, by_token=by_token)) as row:
        slot = kernel.let("slot", slot_of(row))

        def load(start: Scalar, lanes: int) -> Scalar:
            return cast(x[row, ramp(start, lanes)], floats(lanes))

        def store(start: Scalar, lanes: int) -> None:
            value = load(start, lanes)
            if weight is not None:
                value = value * splat(factor, lanes) * weight[ramp(start, lanes)]
            kept[slot, ramp(start, lanes)] = cast(value, with_lanes(kept_dtype, lanes))

        with kernel.when(slot >= 0):
            factor = rms_factor(kernel, load, columns, eps) if eps is not None else None
            each_vector(kernel, columns, LANES, store)
    return kernel.finish()
