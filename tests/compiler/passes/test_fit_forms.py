"""scale_results: a factor is multiplied apart from the weights only if all rows have the same one."""

from __future__ import annotations

import pytest

from nearfar.compiler.ir.graph import Graph, Node, Parameter, Source, Value
from nearfar.compiler.passes.fit_forms import scale_results


@pytest.mark.parametrize("second", [2.0, 3.0])
def test_a_factor_is_taken_from_rows_that_all_have_it(second: float) -> None:
    graph = Graph(inputs={"x": Value("x", ("S", 8), "float32")})
    sources = (Source("a", 0, 4, factor=2.0), Source("b", 0, 4, factor=second))
    graph.parameters["both.weight"] = Parameter("both.weight", sources, 8)
    graph.parameters["norm"] = Parameter("norm", (Source("norm", 0, 8),), None)
    graph.append(Node("linear", {"x": "x", "weight": "both.weight"}, {"y": "both.out"}, {"dtype": "float32"}))
    scaled = scale_results(graph)
    factors = [source.factor for source in scaled.parameters["both.weight"].sources]
    ops = [node.op for node in scaled.nodes]
    if second == 2:
        assert (factors, ops) == ([1, 1], ["linear", "scale"])
        assert scaled.parameters["both.factor"].sources[0].offset == 2
    else:
        assert (factors, ops) == ([2, 3], ["linear"])
