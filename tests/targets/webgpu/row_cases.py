"""The cases of embed, take_rows, slice_columns, rms_norm and the zeros of a partial result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from case_arrays import ALL_FORMATS, BATCHES, EPS, FORMATS, STORED_FORMATS, nothing, random
from kernel_harness import Case, Run
from random_planes import random_planes

from nearfar.compiler import quant
from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.ir.ops.norms import STORE
from nearfar.compiler.kernels.elementwise import slice_columns, take_rows, zeros
from nearfar.compiler.kernels.embed import embed
from nearfar.compiler.kernels.rms_norm import rms_norm


def row_cases() -> Iterator[Case]:
    for turn, quantization in enumerate(FORMATS):
        for number, columns in enumerate((96, 72, 37)):
            yield replace(embed_case(quantization, 51, columns), exhaustive=(turn + number) % 3 > 0)
        yield replace(embed_case(quantization, 17, 72, first_row=20), on_dawn=True, exhaustive=turn % 2 == 0)
        yield replace(embed_case(quantization, 18, 37, first_row=0), exhaustive=turn % 2 > 0)
    for quantization in STORED_FORMATS:
        yield replace(embed_case(quantization, 18, 133, first_row=0), on_dawn=quantization == "q2g64")
    yield replace(embed_case("q2g16b_i8", 18, 300, first_row=0), on_dawn=True)
    yield embed_case("q4f16", 9, 1030)
    yield embed_case("q4f16", 9, 72, scale=8.5)
    yield replace(embed_case("q8f16", 9, 72, first_row=3, scale=0.25, into=False), on_dawn=True)
    for columns in (37, 64, 72):
        yield replace(take_rows_case(columns), on_dawn=True)
        yield replace(rms_norm_case(columns), on_dawn=True)
    # Heads within a row, narrower and wider than a workgroup, of either dtype.
    for columns, width, x_dtype, y_dtype in (
        (72, 24, "float32", "float32"),
        (195, 65, "float16", "float32"),
        (64, 64, "float32", "float16"),
        (6, 1, "float16", "float16"),
    ):
        yield rms_norm_case(columns, width, 0.1, x_dtype, y_dtype)
    yield replace(rms_norm_case(72, 24, residual=True), on_dawn=True)
    yield rms_norm_case(65, centered=True)
    yield rms_norm_case(195, 65, 0.1, "float16", "float16", centered=True, bias=True)
    yield replace(rms_norm_case(64, 64, centered=True, bias=True, residual=True), on_dawn=True)
    for columns, start, stop, x_dtype, y_dtype in (
        (72, 0, 72, "float32", "float32"),
        (200, 135, 200, "float32", "float16"),
        (200, 3, 67, "float16", "float32"),
        (37, 36, 37, "float16", "float16"),
    ):
        yield slice_columns_case(columns, start, stop, x_dtype, y_dtype)
    for columns, dtype in ((37, "float32"), (64, "float16")):
        yield zeros_case(columns, dtype)


def embed_case(
    quantization: str, rows: int, columns: int, first_row: int | None = None, scale: float = 1.0, *, into: bool = True
) -> Case:
    split = first_row is not None
    name = (
        f"embed_{quantization}_{rows}x{columns}" + (f"_from{first_row}" if split else "") + ("" if into else "_zeros")
    )
    name += f"_times_{scale}".replace(".", "p") if scale != 1 else ""

    def run(size: int) -> Run:
        rng = random(name)
        fmt = quant.form_by_name(quantization)
        planes = random_planes(fmt, rng, rows, columns)
        # If the table is split, half of the ids are in other parts, before and after this one.
        token_ids = rng.integers(0, 2 * rows + (first_row or 0) if split else rows, size).astype(np.int32)
        token_ids[0] = rows - 1 + (first_row or 0)
        sampled = rng.integers(0, rows, 3).astype(np.int32) + (first_row or 0)
        # From the third on, every third token refers to the token that a slot sampled last.
        token_ids[2::3] = -1 - rng.integers(0, 3, len(token_ids[2::3]))
        before = nothing((size, columns), "float32")
        inputs = {"table": fmt.unpack(planes, columns), "token_ids": token_ids, "sampled": sampled}
        inputs |= {"into": before.copy()} if into else {}
        expected = OPS["embed"].run(inputs, {"first_row": first_row, "scale": scale})
        assert expected is not None
        bound = {
            "token_ids": token_ids,
            "sampled": sampled,
            "y": before,
            **{f"table.{plane}": array for plane, array in planes.items()},
        }
        return Run({"S": size, "N": len(sampled)}, bound, {"y": expected})

    return Case(
        name,
        lambda: embed(name, rows, columns, ALL_FORMATS[quantization], first_row, scale, into),
        lambda: [run(size) for size in BATCHES],
    )


def take_rows_case(columns: int) -> Case:
    name = f"take_rows_{columns}"

    def run(size: int) -> Run:
        rng = random(name)
        x = rng.normal(size=(size + 4, columns)).astype(np.float32)
        rows = rng.integers(0, size + 4, size).astype(np.int32)
        return Run(
            {"S": size + 4, "R": size}, {"x": x, "rows": rows, "y": nothing((size, columns), "float32")}, {"y": x[rows]}
        )

    return Case(name, lambda: take_rows(name, "S", "R", columns), lambda: [run(size) for size in BATCHES])


def rms_norm_case(
    columns: int,
    width: int = 0,
    eps: float = EPS,
    x_dtype: str = "float32",
    y_dtype: str = "float32",
    *,
    centered: bool = False,
    bias: bool = False,
    residual: bool = False,
) -> Case:
    width = width or columns
    flags = {"centered": centered, "bias": bias, "residual": residual}
    store = [{"op": "add"}] if residual else []
    norm = {"op": "rms_norm", "eps": eps, "centered": centered, "bias": bias, "row": None, "groups": 1}
    name = "_".join([f"rms_norm_{columns}_{width}_{x_dtype}_{y_dtype}", *(flag for flag, on in flags.items() if on)])

    def run(size: int) -> Run:
        rng = random(name)
        # A centered norm subtracts the mean before it squares.
        x = rng.normal(3 if centered else 0, 1, (size, columns)).astype(x_dtype)
        # Small enough for eps to matter.
        x[size // 2] *= 1e-3
        weight = rng.normal(1, 0.3, width).astype(np.float32)
        inputs = {"x": x, "weight": weight}
        if bias:
            inputs["bias"] = rng.normal(size=width).astype(np.float32)
        if residual:
            inputs["store0_b"] = rng.normal(size=(size, columns)).astype(np.float32)
        y = OPS["rms_norm"].run(inputs, {"eps": eps, "centered": centered, "store": store})
        assert y is not None
        return Run({"R": size}, {**inputs, "y": nothing((size, columns), y_dtype)}, {"y": y.astype(y_dtype)})

    return Case(
        name,
        lambda: rms_norm(name, "R", columns, width, x_dtype, y_dtype, norm, STORE.facts({}, {"store": store})),
        lambda: [run(size) for size in BATCHES],
    )


def slice_columns_case(columns: int, start: int, stop: int, x_dtype: str, y_dtype: str) -> Case:
    name = f"slice_columns_{columns}_{start}_{stop}_{x_dtype}_{y_dtype}"

    def run(size: int) -> Run:
        x = random(name).normal(size=(size, columns)).astype(x_dtype)
        y = OPS["slice_columns"].run({"x": x}, {"start": start, "stop": stop})
        assert y is not None
        return Run({"S": size}, {"x": x, "y": nothing(y.shape, y_dtype)}, {"y": y.astype(y_dtype)})

    build = lambda: slice_columns(name, "S", columns, start, stop, x_dtype, y_dtype)  # noqa: E731
    return Case(name, build, lambda: [run(size) for size in BATCHES])


def zeros_case(columns: int, dtype: str) -> Case:
    name = f"zeros_{columns}_{dtype}"
    runs = lambda: [  # noqa: E731
        Run({"S": size}, {"y": nothing((size, columns), dtype)}, {"y": np.zeros((size, columns), dtype)})
        for size in BATCHES
    ]
    return Case(name, lambda: zeros(name, "S", columns, dtype), runs)
