"""The cases of add, gate, gate_halves, soft_cap and fake_quantize: every activation, over values at which exp, erf and
tanh meet their limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from case_arrays import BATCHES, nothing, random
from kernel_harness import Case, Run

from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.ops.op import ACTIVATIONS
from nearfar.compiler.kernels.elementwise import add, fake_quantize, gate, gate_halves, soft_cap


def elementwise_cases() -> Iterator[Case]:
    for columns in (1, 128, 129):
        yield add_case(columns)
    for activation in ACTIVATIONS:
        yield replace(gate_case(130, activation), on_dawn=True)
        yield gate_case(1, activation)
        yield gate_halves_case(37, activation)
    yield replace(gate_halves_case(130, "silu"), on_dawn=True)
    yield replace(soft_cap_case(130, 0.5, 7.0), on_dawn=True)
    yield soft_cap_case(1, 3.0, None)
    yield replace(fake_quantize_case(130, "float32", "float32"), on_dawn=True)
    yield fake_quantize_case(37, "float16", "float16")


def add_case(columns: int) -> Case:
    name = f"add_{columns}"

    def run(rows: int) -> Run:
        a, b = random(name).normal(size=(2, rows, columns)).astype(np.float32)
        return Run({"S": rows}, {"a": a, "b": b, "y": nothing((rows, columns), "float32")}, {"y": a + b})

    return Case(name, lambda: add(name, "S", columns), lambda: [run(rows) for rows in BATCHES])


def gates(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Usual values; in the middle row, values far out on both sides."""
    x = rng.normal(size=(rows, columns)).astype(np.float32) * 3
    x[rows // 2] *= 60
    return x


def gate_case(columns: int, activation: str) -> Case:
    name = f"gate_{columns}_{activation}"

    def run(rows: int) -> Run:
        rng = random(name)
        inputs = {"gate": gates(rng, rows, columns), "up": rng.normal(size=(rows, columns)).astype(np.float32)}
        y = OPS["gate"].run(inputs, {"activation": activation})
        assert y is not None
        return Run({"S": rows}, {**inputs, "y": nothing(y.shape, "float32")}, {"y": y})

    return Case(name, lambda: gate(name, "S", columns, activation), lambda: [run(rows) for rows in BATCHES])


def fake_quantize_case(columns: int, x_dtype: str, y_dtype: str) -> Case:
    """Values on both sides of the limits. None is near a tie, because the last bit of a division would decide it."""
    name, scale = f"fake_quantize_{columns}_{x_dtype}", 0.25

    def run(rows: int) -> Run:
        rng = random(name)
        codes = rng.integers(-200, 200, (rows, columns)) + rng.uniform(-0.4, 0.4, (rows, columns))
        x = (codes * scale).astype(x_dtype)
        y = OPS["fake_quantize"].run({"x": x}, {"scale": scale})
        assert y is not None
        return Run({"S": rows}, {"x": x, "y": nothing(y.shape, y_dtype)}, {"y": y.astype(y_dtype)})

    build = lambda: fake_quantize(name, "S", columns, scale, x_dtype, y_dtype)  # noqa: E731
    return Case(name, build, lambda: [run(rows) for rows in BATCHES])


def gate_halves_case(columns: int, activation: str) -> Case:
    name = f"gate_halves_{columns}_{activation}"

    def run(rows: int) -> Run:
        x = gates(random(name), rows, 2 * columns)
        y = OPS["gate_halves"].run({"x": x}, {"activation": activation})
        assert y is not None
        return Run({"S": rows}, {"x": x, "y": nothing(y.shape, "float32")}, {"y": y})

    return Case(name, lambda: gate_halves(name, "S", columns, activation), lambda: [run(rows) for rows in BATCHES])


def soft_cap_case(columns: int, scale: float, cap: float | None) -> Case:
    name = f"soft_cap_{columns}"

    def run(rows: int) -> Run:
        x = gates(random(name), rows, columns)
        y = OPS["soft_cap"].run({"x": x}, {"scale": scale, "cap": cap})
        assert y is not None
        return Run({"S": rows}, {"x": x, "y": nothing(y.shape, "float32")}, {"y": y})

    return Case(name, lambda: soft_cap(name, "S", columns, scale, cap), lambda: [run(rows) for rows in BATCHES])
