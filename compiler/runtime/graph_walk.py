"""Run a graph in numpy with the functions of `ir/ops/`: the meaning of an architecture's forward before any pass
changes it.

Parameters are read a block of rows at a time, so at most one block of a matrix is in memory, and all executions of the
walk share each block. Values are freed after their last use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..ir.expr import evaluate
from ..ir.graph import Graph, Node, Parameter
from ..ir.ops import OPS, Array
from ..ir.ops.projections import attrs_of_part
from ..quant.base import GROUP, FloatArray, pad_columns

# Rows [start, stop) of a parameter as float32.
Read: TypeAlias = Callable[[Parameter, int, int], FloatArray]
Progress: TypeAlias = Callable[[int, int], None]
# Elements of a block. A block is float32, and unpacking makes a few copies of it.
BLOCK_ELEMENTS = 2 << 20
EXPERT_ELEMENTS = 16 << 20


class Execution:
    """One forward of a graph. ``arrays`` are the inputs of the batch, and states that the caller shares among
    executions or steps.

    ``activation`` is the dtype of stored activations and pages. States that are not in ``arrays`` start at zero.
    Projections by a matrix in ``coarse`` round their input as int8 activations do.
    """

    def __init__(
        self,
        graph: Graph,
        arrays: Mapping[str, Array],
        dims: Mapping[str, int],
        activation: str = "float32",
        coarse: Collection[str] = (),
    ) -> None:
        self._graph, self._dims, self._activation, self._coarse = graph, dims, activation, coarse
        self.values: dict[str, Array] = dict(arrays)
        for name, state in graph.states.items():
            if name not in self.values:
                self.values[name] = np.zeros([evaluate(size, dims) for size in state.shape], self._dtype(state.dtype))
        for name, constant in graph.constants.items():
            self.values[name] = constant.table()

    def run(self, node: Node, parameters: Mapping[str, Array], attrs: Mapping[str, Any]) -> None:
        """Run a node, or a part of it by rows. ``parameters`` are inputs by role, which replace those of the batch."""
        op = OPS[node.op]
        inputs = {
            role: parameters[role] if role in parameters else self.values[name] for role, name in node.inputs.items()
        }
        if node.op == "linear" and node.inputs["weight"] in self._coarse:
            inputs["x"] = in_8_bits(inputs["x"])
        made = self.values.get(node.outputs["y"]) if "columns" in attrs else None
        if made is not None:
            inputs["into"] = made
        for role, name in node.outputs.items():
            if role != op.result:
                value = self._graph.values[name]
                shape = [evaluate(size, self._dims) for size in value.shape]
                inputs[role] = self.values[name] = np.zeros(shape, self._dtype(value.dtype))
        result = op.run(inputs, attrs)
        # Values beyond float16's range become infinity.
        with np.errstate(over="ignore"):
            if op.result is not None and result is not None:
                name = node.outputs[op.result]
                self.values[name] = result.astype(self._dtype(self._graph.values[name].dtype))

    def free(self, name: str) -> None:
        del self.values[name]

    def _dtype(self, dtype: str) -> str:
        return self._activation if dtype == "activation" else dtype


def in_8_bits(x: Array) -> Array:
    """Rows (N, K) whose groups of `GROUP` columns are multiples of a 127th of their largest magnitude."""
    rows, columns = x.shape
    groups = pad_columns(x.astype(np.float32)).reshape(rows, -1, GROUP)
    step = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    rounded: Array = np.rint(groups / np.where(step > 0, step, 1)) * step
    return rounded.reshape(rows, -1)[:, :columns]


def walk(
    graph: Graph, last: str | None, executions: Sequence[Execution], read: Read, progress: Progress = lambda *_: None
) -> list[Array]:
    """The value ``last`` of each execution, all of the same batch; None: nothing, after all nodes have changed the
    states. ``progress`` receives the number of finished nodes and of all nodes.
    """
    stop = len(graph.nodes)
    if last is not None:
        stop = next(index for index, node in enumerate(graph.nodes) if last in node.outputs.values()) + 1
    nodes = graph.nodes[:stop]
    last_use = {name: index for index, node in enumerate(nodes) for name in node.inputs.values()}
    for index, node in enumerate(nodes):
        progress(index, stop)
        for parameters, attrs in parts(graph, node, read, executions[0].values):
            for execution in executions:
                execution.run(node, parameters, attrs)
        for name in set(node.inputs.values()):
            if name in graph.values and last_use[name] == index:
                for execution in executions:
                    execution.free(name)
    progress(stop, stop)
    return [] if last is None else [execution.values[last] for execution in executions]


def parts(
    graph: Graph, node: Node, read: Read, values: Mapping[str, Array]
) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Any]]]:
    """A node in parts: each part's parameters by role, and its attributes."""
    parameters = {role: graph.parameters[name] for role, name in node.inputs.items() if name in graph.parameters}
    if node.op == "embed":
        # Read only the rows of a large table that the batch uses.
        batch_ids = values[node.inputs["token_ids"]]
        token_ids, rows = np.unique(batch_ids, return_inverse=True)
        assert token_ids.min(initial=0) >= 0, "a walk has no tokens that an earlier forward sampled"
        table = np.concatenate([read(parameters["table"], token, token + 1) for token in token_ids.tolist()])
        yield {"table": table, "token_ids": rows.reshape(batch_ids.shape).astype(np.int32)}, node.attrs
        return
    vectors = {role: read(each, 0, each.rows) for role, each in parameters.items() if each.columns is None}
    matrices = {role: each for role, each in parameters.items() if each.columns is not None}
    if node.op == "expert_linear":
        yield from expert_parts(node, read, matrices["weight"], vectors)
        return
    if node.op != "linear":
        yield {**vectors, **{role: read(each, 0, each.rows) for role, each in matrices.items()}}, node.attrs
        return
    (weight,) = matrices.values()
    size = max(1, BLOCK_ELEMENTS // (weight.columns or 1))
    for start in range(0, weight.rows, size):
        attrs = attrs_of_part(node.attrs, start, weight.rows)
        yield {**vectors, "weight": read(weight, start, min(start + size, weight.rows))}, attrs


def expert_parts(
    node: Node, read: Read, weight: Parameter, vectors: Mapping[str, Array]
) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Any]]]:
    """Each part has the same rows of all experts."""
    experts = node.attr("experts")
    rows = weight.rows // experts
    # An expert's rows are read by themselves, so blocks are larger.
    size = max(1, EXPERT_ELEMENTS // (experts * (weight.columns or 1)))
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        own = [read(weight, expert * rows + start, expert * rows + stop) for expert in range(experts)]
        parameters: dict[str, Array] = {**vectors, "weight": np.concatenate(own)}
        if "bias" in vectors:
            parameters["bias"] = vectors["bias"].reshape(experts, rows)[:, start:stop].reshape(-1)
        yield parameters, attrs_of_part(node.attrs, start, rows)
