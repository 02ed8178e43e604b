"""Chooses the format of every matrix under a budget of bits: the smallest expected divergence for the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import RequestError
from ..ir.graph import Graph
from ..quant.codes import Codes

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


def hull(unit: Unit) -> list[Codes]:
    """The formats of a unit from the smallest on, each with the largest gain a bit from the one before it."""
    chosen = [min(unit.bits, key=lambda form: (unit.bits[form], unit.costs[form]))]
    while True:
        here = chosen[-1]
        better = [
            form for form in unit.bits if unit.costs[form] < unit.costs[here] and unit.bits[form] > unit.bits[here]
        ]
        if not better:
            return chosen
        chosen.append(max(better, key=lambda form: (gain(unit, here, form), -unit.bits[form])))


def gain(unit: Unit, before: Codes, after: Codes) -> float:
    return (unit.costs[before] - unit.costs[after]) / (unit.bits[after] - unit.bits[before])


def choose(units: Sequence[Unit], bits: float) -> dict[str, Codes]:
    """The format of every matrix, with at most ``bits`` bits a weight on average.

    Raises RequestError for a budget that no choice meets, or that every choice meets.
    """
    hulls = [hull(unit) for unit in units]
    weights = sum(unit.weights for unit in units)
    places = [0] * len(units)
    used = sum(unit.bits[forms[0]] for unit, forms in zip(units, hulls, strict=True))
    most = sum(max(unit.bits.values()) for unit in units)
    if not used <= bits * weights <= most:
        raise RequestError(
            f"--bits {bits:g}: cannot be met: this model's matrices can have between {used / weights:.2f} and "
            f"{most / weights:.2f} bits a weight; choose a number between the two"
        )
    left = int(bits * weights) - used
    while True:
        upgrades = []
        for index, (unit, forms, place) in enumerate(zip(units, hulls, places, strict=True)):
            if place + 1 < len(forms) and unit.bits[forms[place + 1]] - unit.bits[forms[place]] <= left:
                upgrades.append((gain(unit, forms[place], forms[place + 1]), index))
        if not upgrades:
            break
        _, index = max(upgrades)
        unit, forms = units[index], hulls[index]
        left -= unit.bits[forms[places[index] + 1]] - unit.bits[forms[places[index]]]
        places[index] += 1
    chosen = {index: forms[place] for index, (forms, place) in enumerate(zip(hulls, places, strict=True))}
    fill(units, chosen, left)
    return {name: chosen[index] for index, unit in enumerate(units) for name in unit.names}


def fill(units: Sequence[Unit], chosen: dict[int, Codes], left: int) -> None:
    """Spend what is left on formats beside the hulls."""
    while True:
        found = None
        for index, unit in enumerate(units):
            here = chosen[index]
            for form, size in unit.bits.items():
                saved = unit.costs[here] - unit.costs[form]
                if size - unit.bits[here] <= left and saved > 0 and (found is None or saved > found[0]):
                    found = saved, index, form
        if found is None:
            return
        _, index, form = found
        left -= units[index].bits[form] - units[index].bits[chosen[index]]
        chosen[index] = form
