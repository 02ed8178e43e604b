"""The choice of formats under a budget: against all choices of a small model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from nearfar.compiler.calibration.choice import CANDIDATES, Unit, bits_of, choose, units_of
from nearfar.compiler.ir.graph import Graph, Parameter, Source
from nearfar.compiler.quant.codes import Codes
from nearfar.compiler.runtime.errors import RequestError


def unit(name: str, rows: int, columns: int, sensitivity: float) -> Unit:
    bits = {form: bits_of(form, rows, columns) for form in CANDIDATES}
    costs = {form: sensitivity * 4.0**-form.bits * (1 + (form.group or columns) / 512) for form in CANDIDATES}
    return Unit((name,), rows * columns, bits, costs)


UNITS = [unit("a", 64, 128, 1.0), unit("b", 32, 256, 30.0), unit("c", 128, 128, 0.1)]
# The table of a small encoder has half of the weights.
WITH_A_TABLE = [unit("table", 192, 128, 1.0), *(unit(str(index), 64, 128, 2.0 + index) for index in range(3))]


def spent(units: Sequence[Unit], chosen: Mapping[str, Codes]) -> float:
    """Bits a weight."""
    bits: int = sum(each.bits[chosen[each.names[0]]] for each in units)
    return bits / sum(each.weights for each in units)


@pytest.mark.parametrize("units", [UNITS, WITH_A_TABLE], ids=["alike", "with a table"])
@pytest.mark.parametrize("budget", [2.6, 3.0, 3.5, 4.5, 6.0])
def test_the_budget_is_met_by_the_best_choice(budget: float, units: Sequence[Unit]) -> None:
    chosen = choose(units, budget)
    cost = sum(each.costs[chosen[each.names[0]]] for each in units)
    weights = sum(each.weights for each in units)
    assert spent(units, chosen) <= budget
    best = min(
        sum(each.costs[form] for each, form in zip(units, forms, strict=True))
        for forms in product(CANDIDATES, repeat=len(units))
        if sum(each.bits[form] for each, form in zip(units, forms, strict=True)) <= budget * weights
    )
    assert cost == pytest.approx(best)


def test_sensitive_matrices_get_more_bits() -> None:
    chosen = choose(UNITS, 4.5)
    assert chosen["b"].bits > chosen["a"].bits > chosen["c"].bits


def test_many_matrices_spend_nearly_all_of_the_budget() -> None:
    sensitivities = np.random.default_rng(1).uniform(0.1, 10, 40)
    units = [unit(str(index), 64, 128, float(each)) for index, each in enumerate(sensitivities)]
    assert 4.48 < spent(units, choose(units, 4.5)) <= 4.5


@pytest.mark.parametrize("budget", [2.0, 9.0, float("nan")])
def test_a_budget_that_cannot_be_met_names_the_possible_ones(budget: float) -> None:
    with pytest.raises(RequestError, match=r"--bits .*between 2\.50 and 8\.25"):
        choose(UNITS, budget)


def test_projections_of_one_kernel_share_a_format() -> None:
    names = [f"layers.0.{each}.weight" for each in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")]
    graph = Graph(parameters={name: Parameter(name, (Source(name, 0, 8),), 32) for name in names})
    assert units_of(graph, names) == [tuple(names[:2]), (names[2],), tuple(names[3:])]
