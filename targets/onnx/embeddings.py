"""Models whose decoder reads embeddings, because pictures have features instead of tokens: the graph of the embeddings,
and the decoder without them.

    embed_tokens.onnx: input_ids (batch, sequence) int64 -> inputs_embeds (batch, sequence, E) float32

The consumer places the features of pictures among the embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from nearfar.compiler.ir.graph import Graph, Node, Value
from nearfar.compiler.runtime.errors import UnsupportedModel

from .builder import ELEMENT_TYPES
from .decoder import EMBEDDINGS, FORMS
from .emitter import Emitter
from .every_row import renamed


def without_embeddings(graph: Graph) -> Graph:
    """The graph of a decoder with the input "inputs_embeds" (S, E). Raises UnsupportedModel for one that places no
    features.
    """
    placed = [node for node in graph.nodes if node.op == "place_rows"]
    if len(placed) != 1:
        raise UnsupportedModel(
            f"the decoder places features {len(placed)} times, and --target onnx supports one; use --target webgpu, "
            "cpu or cuda"
        )
    (place,) = placed
    y, embed = place.outputs["y"], graph.makers()[place.inputs["into"]]
    nodes = [
        replace(node, inputs=renamed(node.inputs, {y: EMBEDDINGS}))
        for node in graph.nodes
        if node is not place and node is not embed
    ]
    own = {EMBEDDINGS: Value(EMBEDDINGS, graph.shape_of(y), "float32")}
    return replace(graph, inputs={**graph.inputs, **own}).with_nodes(nodes)


def embedding_of(graph: Graph) -> Node:
    """The node that looks up the rows of tokens."""
    (node,) = (node for node in graph.nodes if node.op == "embed")
    return node


def build_embeddings(emitter: Emitter) -> None:
    """Fill the emitter's builder."""
    builder, node = emitter.builder, embedding_of(emitter.graph)
    add = builder.add
    builder.add_input("input_ids", "int64", ("batch_size", "sequence_length"))
    emitter.names["token_ids"] = add("Reshape", ["input_ids", builder.integers(-1)], "token_ids")
    FORMS["embed"].emit(emitter, node)
    add("Shape", ["input_ids"], "ids_shape")
    add("Concat", ["ids_shape", builder.integers(-1)], "sequences_shape", axis=0)
    rows = emitter.sequences(node.outputs["y"], "embeddings")
    add("Cast", [rows], EMBEDDINGS, to=ELEMENT_TYPES["float32"])
    columns = emitter.columns(node.outputs["y"])
    builder.add_output(EMBEDDINGS, "float32", ("batch_size", "sequence_length", columns))
