"""The cases of add_lora: rows with and without an adapter, parts of unequal width, larger ranks than one iteration
computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

import numpy as np
from case_arrays import EPS
from kernel_harness import Case, Run

from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.kernels.add_lora import add_lora
from nearfar.compiler.kernels.builder import Kernel

PLACES = 3


def lora_cases() -> Iterator[Case]:
    yield replace(add_lora_case(37, (5,), 1, normed=False), on_dawn=True)
    yield replace(add_lora_case(72, (144, 72, 72), 4, normed=True), on_dawn=True)
    yield add_lora_case(130, (515, 3), 33, normed=True)
    yield add_lora_case(64, (600,), 8, normed=False, dtype="float16")


def add_lora_case(columns: int, widths: tuple[int, ...], rank: int, *, normed: bool, dtype: str = "float32") -> Case:
    name = f"add_lora_{columns}_{'_'.join(map(str, widths))}_{rank}_{dtype}"
    outputs, ranks = sum(widths), rank * len(widths)
    load = [{"op": "rms_norm", "eps": EPS}] if normed else []

    def run(rows: int) -> Run:
        rng = np.random.default_rng(crc32(name.encode()) + rows)
        x, into = rng.normal(size=(rows, columns)).astype(dtype), rng.normal(size=(rows, outputs)).astype(dtype)
        adapters = rng.integers(-1, PLACES, rows).astype(np.int32)
        a = (rng.normal(size=(PLACES, ranks, columns)) / columns**0.5).astype(np.float32)
        b = rng.normal(size=(PLACES, outputs, rank)).astype(np.float32)
        inputs = {"x": x, "adapters": adapters, "a": a, "b": b}
        if normed:
            inputs["load0_weight"] = rng.normal(1, 0.3, columns).astype(np.float32)
        y = OPS["add_lora"].run({**inputs, "into": into.astype(np.float32)}, {"widths": widths, "load": load})
        assert y is not None
        dims = {"S": rows, "G": rows, "M": PLACES}
        return Run(dims, {**inputs, "y": into}, {"y": y.astype(dtype)})

    def build() -> Kernel:
        return add_lora(name, columns, widths, rank, dtype, dtype, load)

    return Case(name, build, lambda: [run(rows) for rows in (1, 7)], dtype=dtype)
