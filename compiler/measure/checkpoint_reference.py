"""A checkpoint as the reference: its logits in float32, without a bundle, with the numpy functions of `ops.py`.

Windows of tokens flow in, the final norm's rows flow out, and from those the logits of any rows. Weights are read from the checkpoint's
files a matrix at a time, for many windows at once; only the head's matrix stays in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from ..arch import by_model_type
from ..errors import RequestError
from ..formats import Checkpoint
from ..ir.graph import Graph, Node, Parameter
from ..ir.ops import OPS, Array
from ..ir.rope import rope_table
from ..pipeline.weights import check_tensors, read_rows
from ..quant.base import FloatArray
from ..runtime.batch import Chunk, make_batch

# Tokens of a walk over the weights: their activations are in memory together.
TOKENS_AT_ONCE = 2048


class CheckpointReference:
    """For windows of up to ``window`` tokens. Raises CheckpointError for tensors that do not fit, RequestError for a model that embeds."""

    def __init__(self, checkpoint: Checkpoint, window: int) -> None:
        if checkpoint.embedding is not None:
            raise RequestError(f"{checkpoint.path}: makes embeddings, and has no next tokens to compare; give a model that generates text")
        self.checkpoint, self._window = checkpoint, window
        self._graph = by_model_type(checkpoint.spec.model_type).forward(checkpoint.spec, window, window)
        check_tensors(checkpoint, self._graph.parameters)
        self._nodes = hidden_nodes(self._graph)

    def hidden(self, windows: Sequence[Sequence[int]], progress: Callable[[int], None] = lambda _: None) -> Iterator[FloatArray]:
        """What the head reads, (n, E) for each window of n tokens. ``progress`` is told windows done."""
        at_once = max(1, TOKENS_AT_ONCE // self._window)
        for start in range(0, len(windows), at_once):
            group = windows[start : start + at_once]
            rows = self._walk(group)
            yield from np.split(rows, np.cumsum([len(window) for window in group])[:-1])
            progress(start + len(group))

    def logits(self, hidden: FloatArray) -> FloatArray:
        """(n, E) -> (n, V)."""
        return hidden @ self._head.T

    @cached_property
    def _head(self) -> FloatArray:
        node = next(node for node in self._graph.nodes if "logits" in node.outputs.values())
        return self._weight(self._graph.parameters[node.inputs["weight"]])

    def _walk(self, windows: Sequence[Sequence[int]]) -> FloatArray:
        """The final norm's rows of all windows, one after the other."""
        spec = self.checkpoint.spec
        chunks = [Chunk(window, 0, [page], range(len(window))) for page, window in enumerate(windows)]
        batch = make_batch(chunks, self._window)
        values: dict[str, Array] = dict(batch.arrays())
        values |= {
            name: rope_table(each.attrs["inverse_frequencies"], each.shape[0], each.attrs["scale"])
            for name, each in self._graph.constants.items()
        }
        # A layer reads what it has just written, so one layer's pages do for all.
        pages = np.zeros((len(windows), 2, spec.num_kv_heads, self._window, spec.head_dim), np.float32)
        values |= {name: pages for name, state in self._graph.states.items() if state.shape[0] == "P"}
        values["sampled"] = np.zeros(1, np.int32)
        last_use = {name: index for index, node in enumerate(self._nodes) for name in node.inputs.values()}
        for index, node in enumerate(self._nodes):
            result = OPS[node.op].run(self._inputs(node, values), node.attrs)
            if result is not None:
                values[node.outputs["y"]] = result
            for name in set(node.inputs.values()):
                if name in self._graph.values and last_use[name] == index:
                    del values[name]
        rows: FloatArray = values[self._nodes[-1].outputs["y"]]
        return rows

    def _inputs(self, node: Node, values: Mapping[str, Array]) -> dict[str, Array]:
        parameters = self._graph.parameters
        if node.op == "embed":
            # Of a large table only the rows that occur.
            token_ids, places = np.unique(values["token_ids"], return_inverse=True)
            tensor = parameters[node.inputs["table"]]
            table = np.concatenate([read_rows(self.checkpoint, tensor, token, token + 1) for token in token_ids.tolist()])
            return {"table": table, "token_ids": places.astype(np.int32), "sampled": values["sampled"]}
        return {role: self._weight(parameters[name]) if name in parameters else values[name] for role, name in node.inputs.items()}

    def _weight(self, parameter: Parameter) -> FloatArray:
        return read_rows(self.checkpoint, parameter, 0, parameter.rows)


def hidden_nodes(graph: Graph) -> list[Node]:
    """The nodes before the head."""
    head = next(index for index, node in enumerate(graph.nodes) if "logits" in node.outputs.values())
    return graph.nodes[:head]
