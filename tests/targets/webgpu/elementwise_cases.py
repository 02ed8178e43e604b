"""The cases of ops on elements that are steps of their own: every activation, over values at which exp, erf and tanh
meet their limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from case_arrays import BATCHES, nothing, random
from kernel_harness import Case, Run

from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.ops.op import ACTIVATIONS
from nearfar.compiler.ir.ops.parts import Part, facts_of_part
from nearfar.compiler.kernels.elementwise import elementwise

# The arrays of an op by role, for a number of rows.
Arrays = Callable[[np.random.Generator, int], dict[str, Array]]


def elementwise_cases() -> Iterator[Case]:
    for columns in (1, 128, 129):
        yield element_case("add", columns, usual("a", "b", columns=columns))
    for turn, activation in enumerate(ACTIVATIONS):
        # Each activation with one op, because all have one template.
        yield replace(gate_case(130, activation), on_dawn=True, exhaustive=turn % 3 > 0)
        yield replace(gate_case(1, activation), exhaustive=turn > 0)
        yield replace(gate_halves_case(37, activation), exhaustive=turn % 3 != 1)
        yield replace(element_case("activate", 37, wild(37), activation=activation), exhaustive=turn % 3 != 2)
    yield replace(gate_halves_case(130, "silu"), on_dawn=True)
    yield element_case("gate_halves", 37, wild(74), activation="silu", limit=7.0, slope=1.702, shift=1.0)
    yield replace(element_case("soft_cap", 130, wild(130), scale=0.5, cap=7.0), on_dawn=True)
    yield element_case("soft_cap", 1, wild(1), scale=3.0)
    yield replace(fake_quantize_case(130, "float32"), on_dawn=True)
    yield fake_quantize_case(37, "float16")


def element_case(
    op: str, columns: int, arrays: Arrays, x_dtype: str = "float32", y_dtype: str = "float32", **attrs: Any
) -> Case:
    name = "_".join([op, *(f"{name}_{value}" for name, value in attrs.items()), f"{columns}_{x_dtype}"])
    name = name.replace(".", "p")

    def run(rows: int) -> Run:
        inputs = arrays(random(name), rows)
        y = OPS[op].run(inputs, attrs)
        assert y is not None
        return Run({"S": rows}, {**inputs, "y": nothing(y.shape, y_dtype)}, {"y": y.astype(y_dtype)})

    part = part_of(op, run(1).arrays, attrs)
    build = lambda: elementwise(name, "S", columns, part, x_dtype, y_dtype)  # noqa: E731
    return Case(name, build, lambda: [run(rows) for rows in BATCHES])


def part_of(op: str, arrays: Mapping[str, Array], attrs: dict[str, Any]) -> Part:
    return facts_of_part(op, OPS[op], OPS[op].complete(attrs), {role: array.shape for role, array in arrays.items()})


def usual(*roles: str, columns: int) -> Arrays:
    return lambda rng, rows: {role: rng.normal(size=(rows, columns)).astype(np.float32) for role in roles}


def wild(columns: int) -> Arrays:
    return lambda rng, rows: {"x": gates(rng, rows, columns)}


def gates(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Usual values; in the middle row, values far out on both sides."""
    x = rng.normal(size=(rows, columns)).astype(np.float32) * 3
    x[rows // 2] *= 60
    return x


def gate_case(columns: int, activation: str) -> Case:
    def arrays(rng: np.random.Generator, rows: int) -> dict[str, Array]:
        return {"gate": gates(rng, rows, columns), **usual("up", columns=columns)(rng, rows)}

    return element_case("gate", columns, arrays, activation=activation)


def fake_quantize_case(columns: int, dtype: str) -> Case:
    """Values on both sides of the limits. None is near a tie, because the last bit of a division would decide it."""

    def arrays(rng: np.random.Generator, rows: int) -> dict[str, Array]:
        codes = rng.integers(-200, 200, (rows, columns)) + rng.uniform(-0.4, 0.4, (rows, columns))
        return {"x": (codes * 0.25).astype(dtype)}

    return element_case("fake_quantize", columns, arrays, dtype, dtype, scale=0.25)


def gate_halves_case(columns: int, activation: str) -> Case:
    return element_case("gate_halves", columns, wild(2 * columns), activation=activation)
