"""Models whose decoder reads embeddings, because pictures have features instead of tokens: the graph of the embeddings,
and the decoder without them.

    embed_tokens.onnx: input_ids (batch, sequence) int64 -> inputs_embeds (batch, sequence, N) float32, and
    per_layer_inputs (batch, sequence, layers, P) if layers have tables of their own

    decoder_model_merged.onnx: these and attention_mask instead of input_ids, and position_ids (3, batch, sequence)
    int64 if tokens have positions on three axes

The consumer replaces the rows of placeholders by the features of pictures, and need not know what is in a row: the E
elements of an embedding, those that features add behind the first layers (DeepStack), which tokens have as zeros, and
a mark that is 1 for features if the tokens of a picture see all of it (`both_ways.py`).
"""

from __future__ import annotations

from dataclasses import replace

from nearfar.compiler.arch.decoder import ROPE_POSITIONS
from nearfar.compiler.ir.graph import Graph, Node, Value
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.runtime.errors import UnsupportedModel

from .both_ways import MARKS, add_attention_both_ways
from .builder import ELEMENT_TYPES
from .decoder import AXES, FORMS, Form, add_mask, build_decoder
from .emitter import Emitter
from .every_row import renamed
from .rotation import add_rope_rows, positions

EMBEDDINGS, PER_LAYER, FEATURES = "inputs_embeds", "per_layer_inputs", "features"


def marks_features(spec: ModelSpec) -> bool:
    return spec.vision is not None and spec.vision.both_ways != "none"


def row_columns(spec: ModelSpec) -> int:
    """The length of a row of embeddings or features."""
    return spec.feature_size + marks_features(spec)


def lookups(graph: Graph) -> dict[str, Node]:
    """The nodes that look up rows of tokens, by the names of the rows. Raises UnsupportedModel unless features take the
    places of the rows of one of them, and at most one has no place for them.
    """
    makers = graph.makers()
    found = [node for node in graph.nodes if node.op == "embed"]
    placed = [node for node in graph.nodes if node.op == "place_rows" and not node.attr("adds")]
    owners = [makers.get(node.inputs["into"]) for node in placed]
    if len(owners) != 1 or owners[0] not in found or len(found) > 2:
        raise UnsupportedModel(
            f"the decoder looks up rows of tokens {len(found)} times and places features {len(placed)} times, which "
            "has no form in --target onnx; use --target webgpu, cpu or cuda"
        )
    return {EMBEDDINGS if node is owners[0] else PER_LAYER: node for node in found}


def without_embeddings(graph: Graph) -> Graph:
    """The graph of a decoder whose inputs are the results of `lookups`. Raises UnsupportedModel like it."""
    found = lookups(graph)
    names = {node.outputs["y"]: name for name, node in found.items()}
    own = {name: Value(name, graph.shape_of(node.outputs["y"]), "float32") for name, node in found.items()}
    nodes = [replace(node, inputs=renamed(node.inputs, names)) for node in graph.nodes if node.op != "embed"]
    return replace(graph, inputs={**graph.inputs, **own}).with_nodes(nodes)


def build_embeddings(emitter: Emitter) -> None:
    """Fill the emitter's builder."""
    builder, spec = emitter.builder, emitter.spec
    add, integers = builder.add, builder.integers
    builder.add_input("input_ids", "int64", AXES)
    emitter.names["token_ids"] = add("Reshape", ["input_ids", integers(-1)], "token_ids")
    add("Shape", ["input_ids"], "ids_shape")
    add("Concat", ["ids_shape", integers(-1)], "sequences_shape", axis=0)
    for name, node in lookups(emitter.graph).items():
        FORMS["embed"].emit(emitter, node)
        rows = emitter.sequences(node.outputs["y"], f"{name}.sequences")
        rows = add("Cast", [rows], f"{name}.float32", to=ELEMENT_TYPES["float32"])
        if name == EMBEDDINGS:
            further = row_columns(spec) - emitter.columns(node.outputs["y"])
            add("Pad", [rows, integers(0, 0, 0, 0, 0, further)], name)
            shape: tuple[int, ...] = (row_columns(spec),)
        else:
            shape = spec.num_layers, spec.per_layer_size
            add("Reshape", [rows, integers(0, 0, *shape)], name)
        builder.add_output(name, "float32", (*AXES, *shape))


def build_decoder_of_embeddings(emitter: Emitter) -> None:
    """Fill the emitter's builder; see `build_decoder`."""
    builder, spec = emitter.builder, emitter.spec
    add, integers = builder.add, builder.integers
    columns = row_columns(spec)
    builder.add_input(EMBEDDINGS, "float32", (*AXES, columns))
    add("Shape", [EMBEDDINGS], "ids_shape", end=2)
    rows = add("Reshape", [EMBEDDINGS, integers(-1, columns)], f"{EMBEDDINGS}.rows")
    if marks_features(spec):
        marks = add("Slice", [EMBEDDINGS, integers(columns - 1), integers(columns), integers(2)], f"{MARKS}.column")
        add("Cast", [add("Reshape", [marks, "ids_shape"], f"{MARKS}.numbers")], MARKS, to=ELEMENT_TYPES["bool"])
        rows = add("Slice", [rows, integers(0), integers(columns - 1), integers(1)], f"{EMBEDDINGS}.unmarked")
    emitter.names[FEATURES] = add("Cast", [rows], f"{EMBEDDINGS}.cast", to=ELEMENT_TYPES[emitter.activation])
    if PER_LAYER in emitter.graph.inputs:
        builder.add_input(PER_LAYER, "float32", (*AXES, spec.num_layers, spec.per_layer_size))
        rows = add("Reshape", [PER_LAYER, integers(-1, emitter.columns(PER_LAYER))], f"{PER_LAYER}.rows")
        emitter.names[PER_LAYER] = add("Cast", [rows], f"{PER_LAYER}.cast", to=ELEMENT_TYPES[emitter.activation])
    add_mask(emitter)
    if ROPE_POSITIONS in emitter.graph.inputs:
        builder.add_input("position_ids", "int64", (3, *AXES))
        # Transformers.js 4.3 counts on from a prompt without pictures with too large numbers. No number of an axis is
        # larger than that of the token.
        places = add("Min", ["position_ids", positions(emitter)], f"{ROPE_POSITIONS}.bounded")
        places = add("Reshape", [places, integers(3, -1)], f"{ROPE_POSITIONS}.axes")
        emitter.names[ROPE_POSITIONS] = add("Transpose", [places], ROPE_POSITIONS, perm=[1, 0])
    build_decoder(emitter, FORMS_OF_EMBEDDINGS)


def add_place_rows(emitter: Emitter, node: Node) -> None:
    """The features that the consumer has placed among the rows of tokens, or the sum with those of further layers,
    which tokens have as zeros.
    """
    features, y, first = node.inputs["features"], node.outputs["y"], node.attr("first")
    part, columns = emitter.rows(features), emitter.columns(y)
    if columns < emitter.columns(features):
        integers = emitter.builder.integers
        part = emitter.builder.add(
            "Slice", [part, integers(first), integers(first + columns), integers(1)], f"{y}.features"
        )
    if node.attr("adds"):
        part = emitter.builder.add("Add", [*emitter.inputs(node, "into"), part], y)
    emitter.names[y] = part


PLACE_ROWS = Form(add_place_rows, ("first", "adds"))
ROPE_ROWS = Form(add_rope_rows, ("axes",))
FORMS_OF_EMBEDDINGS: dict[str, Form] = {
    **FORMS,
    "place_rows": PLACE_ROWS,
    "rope_rows": ROPE_ROWS,
    "attention": replace(FORMS["attention"], emit=add_attention_both_ways, optional=("q", "sinks", "reach")),
}
