"""A walk over the graph that stops at every matrix, with the inputs of its projection for all windows.

The rest of the walk computes with the matrix that the visitor returns, so that later matrices see the errors of earlier
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..ir.graph import Graph, Node, Parameter
from ..ir.ops import Array
from ..quant.base import FloatArray
from ..runtime.graph_walk import Execution
from ..runtime.windows import HeadlessGraph, window_inputs
from .importance import groups_of_windows
from .tape import Weights

# Rows of inputs that are multiplied at once.
ROWS_AT_ONCE = 8192


@dataclass(frozen=True, slots=True)
class Inputs:
    """The input of a projection: (T, K) in parts, in the order of the windows. Empty for a table."""

    parts: Sequence[FloatArray]

    def hessian(self, tokens: FloatArray | None = None) -> FloatArray:
        """The sum of x x^T over all tokens, times the weight of each token if there are weights (T,)."""
        columns = self.parts[0].shape[1]
        total = np.zeros((columns, columns), np.float32)
        first = 0
        for part in self.parts:
            for start in range(0, len(part), ROWS_AT_ONCE):
                rows = part[start : start + ROWS_AT_ONCE]
                weighted = rows if tokens is None else rows * tokens[first : first + len(rows), None]
                total += weighted.T @ rows
                first += len(rows)
        return total


# Gets a matrix and its inputs, and returns the matrix to continue with.
Visit: TypeAlias = Callable[[Parameter, Inputs], FloatArray]


def walk_matrices(
    model: HeadlessGraph,
    windows: Sequence[Sequence[int]],
    window: int,
    weights: Weights,
    visit: Visit,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[FloatArray]:
    """Visit every matrix once, in the order of the graph, the head last. ``weights`` reads vectors. Returns the rows in
    front of the head, of all windows.

    A table that is also the head is only visited as the table.
    """
    executions = [Execution(model.graph, *window_inputs(group, window)) for group in groups_of_windows(windows)]
    rows = walk_executions(model.graph, model.rows, executions, weights, visit, progress)
    visited = {name for node in model.graph.nodes if node != model.head for name in node.inputs.values()}
    if model.head_weight.name not in visited:
        visit(model.head_weight, Inputs(rows))
    return rows


def walk_executions(
    graph: Graph,
    last: str,
    executions: Sequence[Execution],
    weights: Weights,
    visit: Visit,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[FloatArray]:
    """Visit the matrices of the nodes up to the value ``last``, which is returned for each execution."""
    stop = next(index for index, node in enumerate(graph.nodes) if last in node.outputs.values()) + 1
    nodes = graph.nodes[:stop]
    last_use = {name: index for index, node in enumerate(nodes) for name in node.inputs.values()}
    for index, node in enumerate(nodes):
        progress(index, stop + 1)
        parameters: dict[str, Array] = {}
        for role, name in node.inputs.items():
            parameter = graph.parameters.get(name)
            if parameter is None:
                continue
            if parameter.columns is None:
                parameters[role] = weights(parameter)
            else:
                parameters[role] = visit(parameter, inputs_of(node, executions))
        for execution in executions:
            execution.run(node, parameters, node.attrs)
        for name in set(node.inputs.values()):
            if name in graph.values and last_use[name] == index:
                for execution in executions:
                    execution.free(name)
    progress(stop + 1, stop + 1)
    return [execution.values[last] for execution in executions]


def inputs_of(node: Node, executions: Sequence[Execution]) -> Inputs:
    return Inputs([execution.values[node.inputs["x"]] for execution in executions] if node.op == "linear" else [])
