"""The cases of the projections' templates that only CUDA has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from case_arrays import ALL_FORMATS, EPS
from kernel_harness import Case
from projection_cases import projection_facts, projection_name, projection_run

from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.cuda.linear_async import AsyncShape, linear_async
from nearfar.compiler.kernels.cuda.linear_few import FewShape, linear_few
from nearfar.compiler.kernels.cuda.linear_mma import MmaShape, linear_mma
from nearfar.compiler.kernels.cuda.linear_wgmma import WgmmaShape, linear_wgmma
from nearfar.compiler.kernels.cuda.rows16 import rows16
from nearfar.compiler.kernels.projection import Projection

# All rounds at once, and more rounds than pipeline slots; warps side by side along the columns; two input rows.
ASYNC_SHAPES = {
    "all_at_once": AsyncShape(64, 32, 4, 3),
    "refilled": AsyncShape(64, 32, 2, 2),
    "many_lanes": AsyncShape(128, 64, 1, 2),
    "two_rows": AsyncShape(64, 32, 2, 3, x_rows=2),
}
# The batches: within a tile, one past it, and the ends of tiles.
BATCHES = (1, 16, 33, 64)
# Slices of 32, 64 and 128 columns; splits whose last part is shorter, and splits of one block each.
MMA_SHAPES = {
    "one_warp": {"rows": 16, "tiles": 1, "column_warps": 1, "parts": 4, "stages": 2},
    "many_columns": {"rows": 32, "tiles": 2, "column_warps": 2, "parts": 2, "stages": 4},
    "idle_threads": {"rows": 16, "tiles": 1, "column_warps": 4, "parts": 1, "stages": 3},
    "many_rows": {"rows": 64, "tiles": 1, "column_warps": 1, "parts": 1, "stages": 3},
    "large": {"rows": 128, "tiles": 4, "column_warps": 1, "parts": 1, "stages": 3},
    "split": {"rows": 16, "tiles": 2, "column_warps": 1, "parts": 4, "stages": 4, "splits": 2, "max_batch": 64},
    "split_far": {"rows": 32, "tiles": 1, "column_warps": 2, "parts": 1, "stages": 4, "splits": 3, "max_batch": 64},
}
# (shape, quantization, columns, outputs, options of the projection). Columns of several tiles, one past a round, and
# one.
ASYNC: tuple[tuple[str, str, int, int, dict[str, object]], ...] = (
    ("all_at_once", "q4f16", 1100, 19, {"norm_eps": EPS, "bias": True, "residual": True, "offset": 18, "width": 47}),
    ("all_at_once", "f16", 250, 9, {"gated": True, "x_dtype": "float16", "activation": "gelu"}),
    ("all_at_once", "q8c", 1, 1, {"bias": True}),
    ("refilled", "q4f16", 5000, 5, {"x_dtype": "float16", "residual": True}),
    ("refilled", "q2c", 2100, 8, {"norm_eps": EPS, "y_dtype": "float16"}),
    ("refilled", "q8f16", 3000, 6, {"gated": True, "norm_eps": EPS, "bias": True}),
    ("many_lanes", "f32", 1030, 3, {"gated": True, "norm_eps": EPS}),
    ("many_lanes", "q2g64", 4200, 4, {"x_step": 0.25, "y_step": 0.5}),
    ("many_lanes", "q4f32", 2050, 5, {"up_width": 40, "up_start": 16, "activation": "gelu"}),
    ("two_rows", "q4c", 1030, 7, {"norm_eps": EPS, "gated": True}),
    ("two_rows", "q8f16", 1030, 6, {"norm_eps": EPS, "centered": True, "norm_bias": True}),
    ("two_rows", "q4f16", 2144, 5, {"batch": "R", "norm_eps": EPS, "residual": True}),
    ("refilled", "q3g16", 4100, 5, {"norm_eps": EPS}),
    ("two_rows", "q4g32b", 2144, 6, {}),
    ("many_lanes", "q5g32b_f16", 4200, 4, {"bias": True}),
    ("all_at_once", "q4g128z_f16", 1100, 19, {"residual": True}),
    ("refilled", "q6g16", 3000, 6, {}),
    ("two_rows", "q8cb", 1030, 7, {}),
)


# (shape, quantization, dtype, columns, outputs, options of the projection).
MMA: tuple[tuple[str, str, str, int, int, dict[str, object]], ...] = (
    ("one_warp", "q4f16", "float16", 128, 8, {}),
    ("one_warp", "q4f16", "float16", 1, 1, {"bias": True}),
    (
        "many_columns",
        "q4f16",
        "float16",
        300,
        70,
        {"norm_eps": EPS, "bias": True, "residual": True, "offset": 18, "width": 97},
    ),
    ("many_columns", "q4f16", "bfloat16", 256, 45, {"gated": True, "norm_eps": EPS}),
    ("many_columns", "q8f16", "float16", 160, 37, {"gated": True, "bias": True, "activation": "gelu"}),
    ("split", "q8f16", "bfloat16", 700, 19, {"norm_eps": EPS, "x_dtype": "bfloat16"}),
    ("split_far", "f16", "float16", 1030, 16, {"x_dtype": "float16", "residual": True}),
    ("split", "q4f16", "float16", 1100, 33, {"gated": True, "norm_eps": EPS}),
    ("split_far", "f16", "bfloat16", 384, 40, {"norm_eps": EPS, "y_dtype": "bfloat16"}),
    ("many_rows", "q4f16", "bfloat16", 130, 9, {"batch": "R", "y_dtype": "bfloat16"}),
    ("many_rows", "q4f16", "float16", 520, 48, {"norm_eps": EPS, "y_dtype": "float16"}),
    ("split_far", "q2c", "float16", 300, 45, {"norm_eps": EPS, "bias": True}),
    ("large", "q4f16", "bfloat16", 140, 35, {"norm_eps": EPS, "bias": True}),
    ("many_columns", "q2c", "bfloat16", 37, 509, {}),
    ("split", "q4c", "float16", 130, 33, {"gated": True, "norm_eps": EPS}),
    ("many_columns", "q8c", "bfloat16", 97, 19, {"residual": True}),
    ("idle_threads", "q3g16", "float16", 300, 8, {}),
    ("many_columns", "q4g32b", "bfloat16", 300, 45, {"norm_eps": EPS, "bias": True}),
    ("split", "q5g32b_f16", "float16", 700, 33, {"gated": True}),
    ("many_columns", "q4g128z_f16", "float16", 256, 40, {}),
    ("one_warp", "q8cb", "bfloat16", 130, 19, {}),
    ("many_rows", "q6g16", "float16", 528, 48, {"residual": True}),
    ("large", "q2g16b", "float16", 144, 35, {}),
    ("one_warp", "q4f16", "float16", 96, 21, {"activation": "gelu", "up_width": 40, "up_start": 16}),
)


# Stages that are used again and stages that are not; products of 64 rows after those of 128; splits.
WGMMA_SHAPES: dict[str, dict[str, Any]] = {
    "groups": {"rows": 64, "tiles": 1, "groups": 2, "stages": 4, "early": True},
    "tiles": {"rows": 128, "tiles": 2, "groups": 1, "stages": 3},
    "many_rows": {"rows": 192, "tiles": 1, "groups": 1, "stages": 3},
    "split": {"rows": 64, "tiles": 1, "groups": 1, "stages": 4, "splits": 2, "max_batch": 130},
}
WGMMA: tuple[tuple[str, str, str, int, int, dict[str, object]], ...] = (
    ("groups", "q4f16", "float16", 1200, 70, {"norm_eps": EPS, "y_dtype": "float16"}),
    (
        "tiles",
        "q4f16",
        "bfloat16",
        300,
        131,
        {"norm_eps": EPS, "bias": True, "residual": True, "offset": 18, "width": 160},
    ),
    ("many_rows", "q8f16", "float16", 400, 66, {"residual": True}),
    ("split", "q4c", "float16", 1030, 70, {"gated": True}),
    ("groups", "q4g32b", "float16", 1, 3, {"batch": "R"}),
)
WGMMA_BATCHES = (1, 130)


# One round and several, with a slot for each and with slots that are filled again; warps without columns of their own;
# two rows; splits, whose last part is shorter.
FEW_SHAPES = {
    "one_warp": FewShape(1, 1, 2),
    "all_at_once": FewShape(3, 2, 4),
    "refilled": FewShape(2, 1, 2),
    "two_rows": FewShape(2, 3, 3, x_rows=2),
    "split": FewShape(2, 1, 2, splits=3),
    "four_rows": FewShape(3, 1, 2, x_rows=4),
    "split_two_rows": FewShape(1, 2, 3, x_rows=2, splits=2),
}
FEW: tuple[tuple[str, str, int, int, dict[str, object]], ...] = (
    ("one_warp", "q4f16", 1, 1, {"bias": True}),
    ("all_at_once", "q4f16", 1100, 19, {"norm_eps": EPS, "bias": True, "residual": True, "offset": 18, "width": 47}),
    ("two_rows", "q4f16", 2144, 50, {"batch": "R", "norm_eps": EPS, "residual": True}),
    ("split", "q4f16", 1100, 33, {"x_dtype": "float16", "residual": True}),
    ("split_two_rows", "q8f16", 700, 35, {"gated": True, "bias": True, "x_dtype": "bfloat16"}),
    ("refilled", "q8f16", 1500, 6, {"gated": True, "norm_eps": EPS, "bias": True}),
    ("refilled", "f16", 520, 19, {"gated": True, "x_dtype": "float16", "activation": "gelu"}),
    ("all_at_once", "q2c", 1100, 37, {"norm_eps": EPS, "y_dtype": "float16"}),
    ("refilled", "q2g64", 700, 17, {"x_step": 0.25}),
    ("two_rows", "q4c", 1030, 7, {"norm_eps": EPS, "gated": True}),
    ("one_warp", "q4f32", 250, 45, {"up_width": 60, "up_start": 3, "activation": "gelu"}),
    ("refilled", "q3g16", 1104, 21, {"norm_eps": EPS}),
    ("two_rows", "q4g32b", 544, 33, {}),
    ("all_at_once", "q5g32b_f16", 1100, 20, {"bias": True}),
    ("split", "q4g128z_f16", 1100, 19, {"residual": True}),
    ("refilled", "q6g16", 528, 16, {}),
    ("two_rows", "q8cb", 1030, 35, {}),
    ("all_at_once", "q2g16b", 400, 35, {}),
    # More columns than a thread keeps in registers.
    ("refilled", "q4f16", 4900, 16, {"norm_eps": EPS}),
    ("two_rows", "f16", 130, 65, {"y_dtype": "bfloat16"}),
    ("four_rows", "q4f16", 1100, 35, {"norm_eps": EPS, "gated": True}),
    ("four_rows", "q4g32b", 900, 20, {"residual": True}),
)


def cuda_projections() -> Iterator[Case]:
    """Without the exhaustive ones, the cases that first have a shape, a dtype of tensor cores, a kind of codes or an
    option.
    """
    yield from first_of_their_facts(ASYNC, async_case)
    yield from first_of_their_facts(FEW, few_case)
    yield from first_of_their_facts(MMA, mma_case)
    yield from (wgmma_case(*row) for row in WGMMA)


def first_of_their_facts(rows: Iterable[tuple[Any, ...]], case_of: Callable[..., Case]) -> Iterator[Case]:
    seen: set[object] = set()
    for shape, quantization, *dtype, columns, outputs, options in rows:
        fmt = ALL_FORMATS[quantization]
        facts = {shape, *dtype, fmt.kind, ("offset", fmt.offset), *options, *(["narrow"] if columns == 1 else [])}
        yield replace(case_of(shape, quantization, *dtype, columns, outputs, options), exhaustive=facts <= seen)
        seen |= facts


def async_case(shape: str, quantization: str, columns: int, outputs: int, options: dict[str, object]) -> Case:
    facts = projection_facts(quantization, columns, outputs, options)
    name = projection_name(f"async_{shape}", quantization, columns, outputs, options)
    return Case(
        name,
        lambda: linear_async(name, facts, ASYNC_SHAPES[shape]),
        lambda: [projection_run(name, facts, options, quantization, size) for size in (1, 2, 3)],
    )


def few_case(shape: str, quantization: str, columns: int, outputs: int, options: dict[str, object]) -> Case:
    facts = projection_facts(quantization, columns, outputs, options)
    name = projection_name(f"few_{shape}", quantization, columns, outputs, options)
    # One row, and a row more than those of a workgroup.
    sizes = (1, 3, 5) if FEW_SHAPES[shape].x_rows == 4 else (1, 2, 3)
    return Case(
        name,
        lambda: linear_few(name, facts, FEW_SHAPES[shape]),
        lambda: [projection_run(name, facts, options, quantization, size) for size in sizes],
        "float16",
    )


def mma_case(shape: str, quantization: str, dtype: str, columns: int, outputs: int, options: dict[str, object]) -> Case:
    facts = projection_facts(quantization, columns, outputs, options)
    name = projection_name(f"mma_{shape}_{dtype}", quantization, columns, outputs, options)
    return tensor_core_case(name, facts, options, quantization, MmaShape(dtype=dtype, **MMA_SHAPES[shape]), BATCHES)


def wgmma_case(
    shape: str, quantization: str, dtype: str, columns: int, outputs: int, options: dict[str, object]
) -> Case:
    facts = projection_facts(quantization, columns, outputs, options)
    name = projection_name(f"wgmma_{shape}_{dtype}", quantization, columns, outputs, options)
    return tensor_core_case(
        name, facts, options, quantization, WgmmaShape(dtype=dtype, **WGMMA_SHAPES[shape]), WGMMA_BATCHES
    )


def tensor_core_case(
    name: str,
    facts: Projection,
    options: dict[str, object],
    quantization: str,
    shape: MmaShape | WgmmaShape,
    batches: tuple[int, ...],
) -> Case:
    def build() -> list[Kernel]:
        before = rows16(
            f"{name}_rows16",
            facts.batch,
            facts.columns,
            facts.x_dtype,
            facts.load,
            shape.dtype,
            split=shape.splits > 1,
            swizzled=isinstance(shape, WgmmaShape),
        )
        main = linear_mma(name, facts, shape) if isinstance(shape, MmaShape) else linear_wgmma(name, facts, shape)
        return [before, main]

    return Case(
        name, build, lambda: [projection_run(name, facts, options, quantization, size) for size in batches], shape.dtype
    )
