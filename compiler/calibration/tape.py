"""The rows in front of a model's head for a batch of windows, and the way back: gradients of every projection's result
and of every vector.

If the values of all layers are too large, only those between segments of the graph (about a layer each) are stored, and
the way back computes each segment again. Memory then does not grow with the number of layers, except for keys and
values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from ..ir.expr import evaluate
from ..ir.graph import Graph, Node, Parameter
from ..ir.ops import OPS, Array
from ..runtime.errors import UnsupportedModel
from ..runtime.graph_walk import Execution
from .gradients import GRADIENTS, SUPPORTED

# A parameter as float32.
Weights: TypeAlias = Callable[[Parameter], Array]
# A segment ends at the first place with few values after this number of nodes.
SEGMENT_NODES, SEGMENT_VALUES = 8, 2
# Elements of all values that are stored without computing anything again.
STORED_ELEMENTS = 1 << 26


class Visitor(Protocol):
    def projection(self, parameter: Parameter, x: Array, gradient: Array) -> None:
        """A projection's input (S, K), and the gradient of its result (S, N)."""

    def table(self, parameter: Parameter, token_ids: Array, gradient: Array) -> None:
        """The token ids (S,) that a table was looked up with, and the gradient of the rows (S, E)."""

    def vector(self, parameter: Parameter, gradient: Array) -> None:
        """The gradient of a vector."""


class Tape:
    """One forward pass to the value ``last``, and one backward pass. Raises UnsupportedModel for a graph with an op
    that has no gradient.
    """

    def __init__(
        self, graph: Graph, last: str, inputs: Mapping[str, Array], dims: Mapping[str, int], weights: Weights
    ) -> None:
        require_gradients(graph, last)
        self._graph, self._last, self._weights = graph, last, weights
        stop = next(index for index, node in enumerate(graph.nodes) if last in node.outputs.values()) + 1
        self._nodes = graph.nodes[:stop]
        names = [name for node in self._nodes for name in node.outputs.values()]
        elements = sum(math.prod(evaluate(size, dims) for size in graph.shape_of(name)) for name in names)
        self._stores_all = elements <= STORED_ELEMENTS
        self._segments = [(0, stop, ())] if self._stores_all else list(segments(self._nodes))
        self._saved: list[dict[str, Array]] = []
        self._execution = Execution(graph, inputs, dims)

    def forward(self) -> Array:
        values = self._execution.values
        for start, stop, live in self._segments:
            self._saved.append({name: values[name] for name in live})
            self._run(start, stop)
            following = self._segments[len(self._saved)][2] if len(self._saved) < len(self._segments) else (self._last,)
            if not self._stores_all:
                self._forget(start, stop, following)
        return values[self._last]

    def backward(self, gradient: Array, visitor: Visitor) -> None:
        gradients = {self._last: gradient}
        for (start, stop, _), saved in zip(reversed(self._segments), reversed(self._saved), strict=True):
            if not self._stores_all:
                self._execution.values.update(saved)
                self._run(start, stop)
            for node in reversed(self._nodes[start:stop]):
                self._back(node, gradients, visitor)
            self._forget(start, stop, ())

    def _run(self, start: int, stop: int) -> None:
        for node in self._nodes[start:stop]:
            self._execution.run(node, self._parameters(node), node.attrs)

    def _parameters(self, node: Node) -> dict[str, Array]:
        parameters = self._graph.parameters
        return {role: self._weights(parameters[name]) for role, name in node.inputs.items() if name in parameters}

    def _back(self, node: Node, gradients: dict[str, Array], visitor: Visitor) -> None:
        # An op without a result writes keys and values.
        result = node.inputs["kv"] if OPS[node.op].result is None else next(iter(node.outputs.values()))
        own = gradients.pop(result, None)
        if own is None:
            return
        values, parameters = self._execution.values, self._graph.parameters
        inputs = self._parameters(node) | {
            role: values[name] for role, name in node.inputs.items() if name not in parameters
        }
        gradient, _ = GRADIENTS[node.op]
        for role, found in gradient(inputs, OPS[node.op].complete(node.attrs), own).items():
            name = node.inputs[role]
            if name in parameters:
                visitor.vector(parameters[name], found)
            else:
                gradients[name] = gradients[name] + found if name in gradients else found
        if node.op == "linear":
            visitor.projection(parameters[node.inputs["weight"]], inputs["x"], own)
        elif node.op == "embed":
            visitor.table(parameters[node.inputs["table"]], inputs["token_ids"], own * np.float32(node.attr("scale")))

    def _forget(self, start: int, stop: int, live: Sequence[str]) -> None:
        for node in self._nodes[start:stop]:
            for name in node.outputs.values():
                if name not in live:
                    self._execution.values.pop(name, None)


def segments(nodes: Sequence[Node]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Ranges of nodes, with the values that each range reads from the nodes in front of it."""
    last_use = {name: index for index, node in enumerate(nodes) for name in node.inputs.values()}
    live: tuple[str, ...] = ()
    start, before = 0, live
    for index, node in enumerate(nodes):
        live = tuple(name for name in (*live, *node.outputs.values()) if last_use.get(name, -1) > index)
        is_last = index + 1 == len(nodes)
        if is_last or (index + 1 - start >= SEGMENT_NODES and len(live) <= SEGMENT_VALUES):
            yield start, index + 1, before
            start, before = index + 1, live


def require_gradients(graph: Graph, last: str) -> None:
    for node in graph.nodes:
        _, roles = GRADIENTS.get(node.op, (None, ()))
        if not node.has_only(inputs=roles, attrs=SUPPORTED.get(node.op, OPS[node.op].attrs)):
            raise UnsupportedModel(
                f"--quality best: the model has the op {node.op} with {', '.join(node.inputs)}, whose gradient is not "
                "known; leave out --quality best"
            )
        if last in node.outputs.values():
            return
