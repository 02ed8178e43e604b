"""The decoder's graph for our runner: the caller passes the length of each row and the new tokens whose logits it
needs.

`decoder.py` derives both from the attention mask, which the framework's own tools pass; its logits are those of each
row's last token. Here the derived values are inputs in place of the mask, so that only the requested logits are
computed.

    input_ids (batch, sequence) int64
    seqlens_k (batch,) int32                tokens of each row, past and new, less one
    total_sequence_length () int32          the most that any row has
    sample_rows (rows,) int64               the tokens whose logits are requested, by their index among all new tokens
    past_key_values.N.key, .value
    -> logits (rows, 1, vocab) float32, present.N.key, .value
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto
from onnx.helper import make_tensor_value_info

from nearfar.compiler.runtime.errors import BundleError

MASK, LENGTHS, TOTAL, ROWS = "attention_mask", "seqlens_k", "total_sequence_length", "sample_rows"


def read_graph(path: Path) -> onnx.ModelProto:
    """The file of an export's graph, without weights that lie in files of their own. Raises BundleError."""
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:
        raise BundleError(f"{path}: cannot be read as a graph: {error}; compile the bundle again") from error


def rows_graph(model: onnx.ModelProto) -> bytes:
    """The graph of an export, changed in place, as a file's bytes. Weights that lie in files of their own stay
    there.
    """
    graph = model.graph
    derived = {LENGTHS, TOTAL, ROWS}
    needed = {output.name for output in graph.output}
    nodes = []
    # The readers of a value follow the node that computes it.
    for node in reversed(graph.node):
        if needed.intersection(node.output) - derived:
            needed.update(node.input)
            nodes.append(node)
    inputs = [each for each in graph.input if each.name != MASK]
    inputs.append(make_tensor_value_info(LENGTHS, TensorProto.INT32, ["batch"]))
    inputs.append(make_tensor_value_info(TOTAL, TensorProto.INT32, []))
    inputs.append(make_tensor_value_info(ROWS, TensorProto.INT64, ["rows"]))
    constants = [each for each in graph.initializer if each.name in needed]
    replace(graph.node, nodes[::-1])
    replace(graph.input, inputs)
    replace(graph.initializer, constants)
    logits = next(output for output in graph.output if output.name == "logits")
    logits.type.tensor_type.shape.dim[0].dim_param = "rows"
    serialized: bytes = model.SerializeToString()
    return serialized


def replace(field: Any, values: Sequence[Any]) -> None:
    """Give a repeated field of a protocol buffer other values."""
    del field[:]
    field.extend(values)
