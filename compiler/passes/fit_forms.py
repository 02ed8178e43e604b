"""Rewrites the graph of a checkpoint whose weights are quantized, so that each matrix keeps the checkpoint's own codes.

scale_results  a projection by weights times a factor -> a projection by the weights, and its result times the factor
fit_forms      a matrix whose rows have several forms -> parts by rows, each of one form
               parts that are gates and what they gate -> two projections, then a gate
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ..ir.graph import Graph, Node, Parameter, Source
from .split_rows import split_rows

# The rows of a matrix from which on it has a form, None for floats. A row counts once for all matrices that are stacked
# in it, whose number is the second argument.
Runs = Sequence[tuple[int, str | None]]
# The end of the name of a projection's factor.
FACTOR = ".factor"


def fit_forms(graph: Graph, runs_of: Callable[[Parameter, int], Runs]) -> Graph:
    """Each matrix with its form; floats keep that of the parameter."""
    forms: dict[str, str | None] = {}

    def starts_of(matrix: Parameter, stacked: int) -> list[int]:
        runs = runs_of(matrix, stacked)
        names = [matrix.name] if len(runs) == 1 else [f"{matrix.name}.part{index}" for index in range(len(runs))]
        forms.update(zip(names, (form for _, form in runs), strict=True))
        return [start for start, _ in runs]

    graph = unstack_gates(split_rows(graph, starts_of))
    fitted = {name: replace(each, form=forms.get(name) or each.form) for name, each in graph.parameters.items()}
    return replace(graph, parameters=fitted)


def unstack_gates(graph: Graph) -> Graph:
    makers, replaced = graph.makers(), dict[int, Node | None]()
    for node in graph.nodes:
        up = makers.get(node.inputs["x"]) if node.op == "gate_halves" else None
        gate = makers.get(up.inputs.get("into", "")) if up is not None else None
        if up is None or gate is None or "into" in gate.inputs or 2 * up.attr("offset") != up.attr("columns"):
            continue
        replaced |= {id(each): as_whole(each) for each in (gate, up)}
        halves = {"gate": gate.outputs["y"], "up": up.outputs["y"]}
        replaced[id(node)] = Node("gate", halves, node.outputs, node.attrs)
    return graph.replace(replaced)


def as_whole(part: Node) -> Node:
    """The projection of a part's columns alone."""
    inputs = {role: name for role, name in part.inputs.items() if role != "into"}
    attrs = {name: value for name, value in part.attrs.items() if name not in ("offset", "columns")}
    return replace(part, inputs=inputs, attrs=attrs)


def scale_results(graph: Graph) -> Graph:
    """All factors of projections with float32 results, if each is the same for all rows."""
    nodes: list[Node] = []
    parameters: list[Parameter] = []
    for node in graph.nodes:
        multiplies = node.op == "linear" and node.attr("dtype") == "float32"
        roles = [role for role in ("weight", "bias") if multiplies and role in node.inputs]
        own = [graph.parameters[node.inputs[role]] for role in roles]
        factor = common_factor(own)
        if factor == 1:
            nodes.append(node)
            continue
        name, y = f"{own[0].name.removesuffix('.weight')}{FACTOR}", node.outputs["y"]
        parameters += [*(without_factor(each) for each in own), constant(graph, name, factor)]
        nodes.append(replace(node, outputs={"y": f"{y}.unscaled"}))
        nodes.append(Node("scale", {"x": f"{y}.unscaled", "factor": name}, {"y": y}))
    return graph.with_nodes(nodes, parameters)


def common_factor(parameters: Collection[Parameter]) -> float:
    """That of all rows; 1 if they have several."""
    factors = {source.factor for parameter in parameters for source in parameter.sources}
    return factors.pop() if len(factors) == 1 else 1.0


def without_factor(parameter: Parameter) -> Parameter:
    return replace(parameter, sources=tuple(replace(source, factor=1.0) for source in parameter.sources))


def constant(graph: Graph, name: str, value: float) -> Parameter:
    """A vector of one number: an element of any vector of the checkpoint, times zero, plus the number."""
    vector = next(each for each in graph.parameters.values() if each.columns is None)
    return Parameter(name, (Source(vector.sources[0].tensor, 0, 1, offset=value, factor=0.0),), None)
