"""embed_positions, mix_rows, near_rows, pool_rows and rope_heads: the other ops of models without pages."""

from __future__ import annotations

from ...ir.expr import Expr
from ...ir.heads import Heads, Preparation
from ...quant.base import GROUP
from ..builder import Array, Kernel, Scalar, cast, number, select
from ..encoder_rows import rows_around
from ..packed import WeightFormat
from ..vectors import floats, ramp, splat, take_lanes, with_lanes
from .builder import CpuKernelBuilder, Isa, each_vector, pieces
from .math import square_root
from .new_heads import NewHeads
from .packed import PackedRows


def embed_positions(
    name: str, *, isa: Isa, columns: int, weight: WeightFormat, positions: int, types: int, first_position: int
) -> Kernel:
    """x (S, columns) plus the rows of the two tables, of which one with 0 rows does not exist. One task: one row."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    tables = [
        (PackedRows(kernel, role, rows, columns, weight, isa.lanes), kernel.buffer(index, ("S",), "int32"), first)
        for role, index, rows, first in (
            ("position_table", "positions", positions, first_position),
            ("type_table", "token_types", types, 0),
        )
        if rows
    ]
    y = kernel.buffer("y", ("S", columns), "float32", write=True)
    with kernel.tasks("row", "S") as row:
        sources = [kernel.let("source", indices[row] + first) for _, indices, first in tables]

        def add(group: Scalar | int, width: int) -> None:
            """The first ``width`` columns of a group."""
            found = [table.group(source, group) for (table, _, _), source in zip(tables, sources, strict=True)]
            for index in range(-(-width // isa.lanes)):
                values = [kernel.let("values", vectors[index]) for vectors in found]
                for start, lanes in pieces(min(isa.lanes, width - index * isa.lanes), isa.lanes):
                    columns_here = ramp(group * GROUP + index * isa.lanes + start, lanes)
                    total = x[row, columns_here]
                    for each in values:
                        total = total + (each if lanes == isa.lanes else take_lanes(each, range(start, start + lanes)))
                    y[row, columns_here] = total

        with kernel.loop("group", columns // GROUP) as group:
            add(group, GROUP)
        if columns % GROUP:
            add(columns // GROUP, columns % GROUP)
    return kernel.finish()


def mix_rows(
    name: str, *, isa: Isa, batch: str, columns: int, weight: WeightFormat, positions: int, taps: int
) -> Kernel:
    """x (batch, columns) plus ``taps`` weighted rows of a table of ``positions`` rows. One task: one row."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", (batch, columns), "float32")
    table = PackedRows(kernel, "table", positions, columns, weight, isa.lanes)
    indices = kernel.buffer("patch_rows", (batch, taps), "int32")
    factors = kernel.buffer("patch_weights", (batch, taps), "float32")
    y = kernel.buffer("y", (batch, columns), "float32", write=True)
    vectors = GROUP // isa.lanes
    with kernel.tasks("row", batch) as row:

        def add(group: Scalar | int, width: int) -> None:
            """The first ``width`` columns of a group."""
            sums = kernel.local("sums", vectors, floats(isa.lanes), fill=0)
            with kernel.loop("tap", taps) as tap:
                factor = splat(kernel.let("factor", factors[row, tap]), isa.lanes)
                for index, each in enumerate(table.group(kernel.let("source", indices[row, tap]), group)):
                    sums[index] = sums[index] + factor * each
            for index in range(-(-width // isa.lanes)):
                for start, lanes in pieces(min(isa.lanes, width - index * isa.lanes), isa.lanes):
                    columns_here = ramp(group * GROUP + index * isa.lanes + start, lanes)
                    own = sums[index] if lanes == isa.lanes else take_lanes(sums[index], range(start, start + lanes))
                    y[row, columns_here] = x[row, columns_here] + own

        with kernel.loop("group", columns // GROUP) as group:
            add(group, GROUP)
        if columns % GROUP:
            add(columns // GROUP, columns % GROUP)
    return kernel.finish()


def near_rows(name: str, *, isa: Isa, columns: int, size: int) -> Kernel:
    """x (S, columns), positions (S,) -> (S, size, columns). One task: the rows around one row."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    positions = kernel.buffer("positions", ("S",), "int32")
    y = kernel.buffer("y", ("S", size, columns), "float32", write=True)
    with kernel.tasks("row", "S") as row:
        for index, (near, own) in enumerate(rows_around(kernel, positions, row, size)):
            kept = kernel.let("kept", select(own, number(1, "float32"), number(0, "float32")))

            def copy(start: Scalar, lanes: int, index: int = index, near: Scalar = near, kept: Scalar = kept) -> None:
                columns_here = ramp(start, lanes)
                y[row, index, columns_here] = select(
                    splat(kept, lanes) > splat(number(0, "float32"), lanes),
                    x[near, columns_here],
                    splat(number(0, "float32"), lanes),
                )

            each_vector(kernel, columns, isa.lanes, copy)
    return kernel.finish()


def pool_rows(name: str, *, isa: Isa, columns: int, mode: str) -> Kernel:
    """x (S, columns), seq_starts (B+1,) -> (B, columns). One task: one text."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", ("S", columns), "float32")
    seq_starts = kernel.buffer("seq_starts", (["add", "B", 1],), "int32")
    y = kernel.buffer("y", ("B", columns), "float32", write=True)
    with kernel.tasks("text", "B") as text:
        first, stop = (kernel.let("bound", seq_starts[text + behind]) for behind in range(2))
        length = kernel.let("length", cast(stop - first, "float32"))
        factor = number(1, "float32") / (square_root(length) if mode == "mean_sqrt_len" else length)
        factor = kernel.let("factor", factor)

        def pool(start: Scalar, lanes: int) -> None:
            total = kernel.local("total", 1, floats(lanes))
            total[0] = x[stop - 1 if mode == "last_token" else first, ramp(start, lanes)]
            if mode in ("mean", "mean_sqrt_len", "max"):
                with kernel.loop("other", stop - first - 1) as other:
                    each = kernel.let("each", x[first + 1 + other, ramp(start, lanes)])
                    # `maximum` would lose a NaN.
                    larger = select(each <= total[0], total[0], each)
                    total[0] = larger if mode == "max" else total[0] + each
            scales = mode in ("mean", "mean_sqrt_len")
            y[text, ramp(start, lanes)] = total[0] * splat(factor, lanes) if scales else total[0]

        each_vector(kernel, columns, isa.lanes, pool)
    return kernel.finish()


def rope_heads(name: str, *, isa: Isa, heads: Heads, preparation: Preparation) -> Kernel:
    """qkv (S, H + 2 K, D) -> the same with all heads prepared. One task: one head of one row."""
    kernel = CpuKernelBuilder(name)
    new = NewHeads(kernel, isa, heads, preparation, stores=False)
    all_heads, keys_end = heads.num_heads + 2 * heads.num_kv_heads, heads.num_heads + heads.num_kv_heads
    rows: Expr = heads.rows
    y: Array = kernel.buffer("y", (rows, all_heads, heads.head_dim), heads.activation, write=True)
    with kernel.tasks("task", rows, all_heads) as task:
        row, head = kernel.split(task, all_heads, ("row", "head"))
        prepared = kernel.local("prepared", heads.head_dim, "float32")
        with kernel.when(head < heads.num_heads):
            new.prepare(row, head, prepared, of_q=True)
        with kernel.when(head >= heads.num_heads), kernel.when(head < keys_end):
            new.prepare(row, head, prepared, of_q=False)
        with kernel.when(head >= keys_end):
            new.prepare_value(row, head, prepared)
        for start, lanes in pieces(heads.head_dim, isa.lanes):
            y[row, head, ramp(start, lanes)] = cast(prepared[ramp(start, lanes)], with_lanes(heads.activation, lanes))
    return kernel.finish()
