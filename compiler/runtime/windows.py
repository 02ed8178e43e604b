"""A graph for windows of tokens, each a sequence of its own: what computes the rows in front of the head, the head, and
the inputs of a batch of windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..ir.graph import Graph, Node, Parameter
from ..ir.ops import OPS, Array
from ..quant.base import FloatArray
from .batch import DERIVED_INPUTS, Chunk, make_batch


@dataclass(frozen=True, slots=True)
class Head:
    """The values of a head: (V, E), and (V,) if it has a bias."""

    weight: FloatArray
    bias: FloatArray | None

    def __call__(self, rows: FloatArray) -> FloatArray:
        """(n, E) -> (n, V)."""
        products: FloatArray = rows @ self.weight.T
        return products if self.bias is None else products + self.bias


@dataclass(frozen=True, slots=True)
class HeadlessGraph:
    """``rows`` is the value that the projection ``head`` reads; ``behind`` are the nodes from its result to the logits:
    some models scale and cap them, and some checkpoints round them.
    """

    graph: Graph
    head: Node
    behind: tuple[Node, ...]

    @property
    def rows(self) -> str:
        return self.head.inputs["x"]

    @property
    def head_weight(self) -> Parameter:
        return self.graph.parameters[self.head.inputs["weight"]]

    @property
    def head_bias(self) -> Parameter | None:
        name = self.head.inputs.get("bias")
        return None if name is None else self.graph.parameters[name]

    def head_of(self, read: Callable[[Parameter], FloatArray]) -> Head:
        bias = self.head_bias
        return Head(read(self.head_weight), None if bias is None else read(bias))

    def logits(self, rows: FloatArray, head: Head) -> FloatArray:
        """(n, E) -> (n, V)."""
        logits = head(rows)
        for node in self.behind:
            result = OPS[node.op].run({"x": logits}, node.attrs)
            assert result is not None
            logits = result
        return logits


def without_head(graph: Graph) -> HeadlessGraph:
    makers = graph.makers()
    node = makers[graph.outputs["logits"]]
    behind: list[Node] = []
    while node.op != "linear":
        behind.insert(0, node)
        node = makers[node.inputs["x"]]
    return HeadlessGraph(graph, node, tuple(behind))


def window_inputs(windows: Sequence[Sequence[int]], window: int) -> tuple[Mapping[str, Array], Mapping[str, int]]:
    """The inputs and dims of a batch that computes every row of windows of up to ``window`` tokens. A page holds a
    window.
    """
    chunks = [
        Chunk(tokens, 0, [index], range(len(tokens)), state=(index, index)) for index, tokens in enumerate(windows)
    ]
    batch = make_batch(chunks, window)
    return batch.arrays(DERIVED_INPUTS), batch.dims(len(windows), num_states=len(windows))
