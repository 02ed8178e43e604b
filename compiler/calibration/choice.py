"""Chooses the format of every matrix under a budget of bits: the smallest expected divergence for the bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..ir.graph import Graph
from ..quant.codes import Codes
from ..runtime.errors import RequestError

HALF = "float16"
# Formats with the fewest bits for their error. The errors of others are larger at about as many bits, and each format
# that a bundle uses has its own kernels.
CANDIDATES = (
    Codes(2, 64, "b", HALF),
    Codes(3, 128, "", HALF),
    Codes(3, 32, "", HALF),
    Codes(4, 128, "", HALF),
    Codes(4, 32, "", HALF),
    Codes(5, 64, "", HALF),
    Codes(6, 64, "", HALF),
    Codes(8, 64, "", HALF),
)
# The parts into which a budget is divided.
STEPS = 1 << 15
# Modules whose matrices share a format, because one kernel computes them together.
TOGETHER = (("q_proj", "k_proj"), ("gate_proj", "up_proj"))


def bits_of(form: Codes, rows: int, columns: int) -> int:
    """The bits of a matrix in a format, scales and padding included."""
    return 8 * rows * sum(plane.row_bytes for plane in form.planes(columns))


@dataclass(frozen=True, slots=True)
class Unit:
    """Matrices that share a format. For each candidate: their bits, and the expected divergence that they cause."""

    names: tuple[str, ...]
    weights: int
    bits: Mapping[Codes, int]
    costs: Mapping[Codes, float]


def units_of(graph: Graph, names: Sequence[str]) -> list[tuple[str, ...]]:
    """The names of matrices, those of one kernel together, in order."""
    units: dict[str, list[str]] = {}
    for name in names:
        module = name.removesuffix(".weight")
        key = name
        for together in TOGETHER:
            parent, _, last = module.rpartition(".")
            if last in together and all(f"{parent}.{other}.weight" in names for other in together):
                widths = {graph.parameters[f"{parent}.{other}.weight"].columns for other in together}
                key = f"{parent}.{together[0]}" if len(widths) == 1 else name
        units.setdefault(key, []).append(name)
    return [tuple(each) for each in units.values()]


def choose(units: Sequence[Unit], bits: float) -> dict[str, Codes]:
    """The format of every matrix, with at most ``bits`` bits a weight on average: the least cost of all choices, except
    that each unit's bits are rounded up to a STEPS-th of the budget if they have no larger divisor in common.

    Raises RequestError for a budget that no choice meets, or that every choice meets.
    """
    weights = sum(unit.weights for unit in units)
    least, most = (sum(end(unit.bits.values()) for unit in units) for end in (min, max))
    if not least <= bits * weights <= most:
        raise RequestError(
            f"--bits {bits:g}: cannot be met: this model's matrices can have between {least / weights:.2f} and "
            f"{most / weights:.2f} bits a weight; choose a number between the two"
        )
    # Bits above the smallest formats, so that the smallest choice always fits.
    spare = int(bits * weights) - least
    shared = math.gcd(*(size - min(unit.bits.values()) for unit in units for size in unit.bits.values())) or 1
    step = shared * max(1, -(-spare // (shared * STEPS)))
    total = spare // step
    # The least cost of the units so far, by the number of steps that they may spend.
    costs = np.zeros(total + 1)
    choices: list[npt.NDArray[np.int8]] = []
    for unit in units:
        with_form = np.full((len(unit.bits), total + 1), np.inf)
        for index, form in enumerate(unit.bits):
            steps = steps_of(unit, form, step)
            if steps <= total:
                with_form[index, steps:] = costs[: total + 1 - steps] + unit.costs[form]
        choices.append(with_form.argmin(axis=0).astype(np.int8))
        costs = with_form.min(axis=0)
    chosen: dict[str, Codes] = {}
    for unit, best in zip(reversed(units), reversed(choices), strict=True):
        form = tuple(unit.bits)[best[total]]
        total -= steps_of(unit, form, step)
        chosen |= dict.fromkeys(unit.names, form)
    return chosen


def steps_of(unit: Unit, form: Codes, step: int) -> int:
    return -(-(unit.bits[form] - min(unit.bits.values())) // step)
