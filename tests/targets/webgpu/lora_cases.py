"""The cases of the kernels that LoRA adapters need: rows with and without an adapter, parts of unequal width, ranks past a turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

import numpy as np
from kernel_harness import Case, Run

from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.kernels.add_lora import add_lora
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.gate_halves import gate_halves

EPS = 1e-6
PLACES = 3


def lora_cases() -> Iterator[Case]:
    yield replace(add_lora_case(37, (5,), 1, normed=False), on_dawn=True)
    yield replace(add_lora_case(72, (144, 72, 72), 4, normed=True), on_dawn=True)
    yield add_lora_case(130, (515, 3), 33, normed=True)
    yield add_lora_case(64, (600,), 8, normed=False, dtype="float16")
    for columns in (37, 130):
        yield replace(gate_halves_case(columns), on_dawn=True)


def add_lora_case(columns: int, widths: tuple[int, ...], rank: int, *, normed: bool, dtype: str = "float32") -> Case:
    name = f"add_lora_{columns}_{'_'.join(map(str, widths))}_{rank}_{dtype}"
    outputs, ranks = sum(widths), rank * len(widths)

    def run(rows: int) -> Run:
        rng = np.random.default_rng(crc32(name.encode()) + rows)
        x, into = rng.normal(size=(rows, columns)).astype(dtype), rng.normal(size=(rows, outputs)).astype(dtype)
        adapters = rng.integers(-1, PLACES, rows).astype(np.int32)
        a = (rng.normal(size=(PLACES, ranks, columns)) / columns**0.5).astype(np.float32)
        b = rng.normal(size=(PLACES, outputs, rank)).astype(np.float32)
        inputs = {"x": x, "adapters": adapters, "a": a, "b": b}
        if normed:
            inputs["norm"] = rng.normal(1, 0.3, columns).astype(np.float32)
        y = OPS["add_lora"].run({**inputs, "into": into.astype(np.float32)}, {"widths": widths, "eps": EPS})
        assert y is not None
        dims = {"S": rows, "G": rows, "M": PLACES}
        return Run(dims, {**inputs, "y": into}, {"y": y.astype(dtype)})

    def build() -> Kernel:
        return add_lora("add_lora", columns, widths, rank, x_dtype=dtype, y_dtype=dtype, eps=EPS if normed else None)

    return Case(name, build, lambda: [run(rows) for rows in (1, 7)], dtype=dtype)


def gate_halves_case(columns: int) -> Case:
    name = f"gate_halves_{columns}"

    def run(rows: int) -> Run:
        x = np.random.default_rng(rows).normal(size=(rows, 2 * columns)).astype(np.float32) * 10
        y = OPS["gate_halves"].run({"x": x}, {})
        assert y is not None
        return Run({"S": rows}, {"x": x, "y": np.full((rows, columns), np.nan, np.float32)}, {"y": y})

    return Case(name, lambda: gate_halves("gate_halves", columns), lambda: [run(rows) for rows in (1, 3, 33)])
