"""Speech: convert the graphs of a model of sound to ONNX nodes, with the names that optimum gives them.

    encoder_model.onnx: input_features (batch, mel bins, frames of a window) float32
    -> last_hidden_state (batch, rows, E) float32

    decoder_model_merged.onnx: input_ids (batch, sequence) int64, encoder_hidden_states (batch, rows, E) float32,
    use_cache_branch (1,) bool, past_key_values.N.decoder.key, .value, past_key_values.N.encoder.key, .value
    -> logits (batch, 1, vocab) float32, present.N.decoder.key, .value, present.N.encoder.key, .value

The keys and values of the encoder's rows are computed unless ``use_cache_branch`` is true; then those of the past are
returned. Rows of a batch have equally many tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nearfar.compiler.ir.graph import Graph, Node
from nearfar.compiler.ir.speech import FRAMES
from nearfar.compiler.runtime.errors import UnsupportedModel

from .attention import add_attention
from .builder import ELEMENT_TYPES, MICROSOFT
from .decoder import FORMS, Form, add_rows, build_decoder, form_of
from .emitter import Emitter, layer_of
from .encoder import ENCODER_FORMS, add_output

HIDDEN, CACHED, ROWS = "encoder_hidden_states", "use_cache_branch", "encoder.rows"


def without_keys(graph: Graph) -> tuple[Graph, dict[str, tuple[Node, Node]]]:
    """The graph of an encoder that only returns rows, and by the state that has them the projections of keys and values
    of these rows.
    """
    makers = graph.makers()
    appends = [node for node in graph.nodes if node.op == "append_kv"]
    sources = {node.inputs["kv"]: (makers[node.inputs["k"]], makers[node.inputs["v"]]) for node in appends}
    left_out = {node.outputs["y"] for pair in sources.values() for node in pair}
    nodes = [node for node in graph.nodes if node.op != "append_kv" and node.outputs["y"] not in left_out]
    return graph.with_nodes(nodes), sources


def build_listener(emitter: Emitter) -> None:
    """Fill the emitter's builder with an encoder. Raises UnsupportedModel for an op that has no form."""
    builder, audio = emitter.builder, emitter.spec.audio
    assert audio is not None
    if not audio.mel_bins:
        raise UnsupportedModel(
            f"the encoder of {emitter.spec.model_type} reads samples, which --target onnx does not support; use "
            "--target webgpu, cpu or cuda",
            model_type=emitter.spec.model_type,
        )
    add, integers = builder.add, builder.integers
    length, mels = audio.positions, audio.mel_bins
    builder.add_input("input_features", "float32", ("batch_size", mels, 2 * length))
    # Two frames a row, with zeros before and after the window.
    frames = add("Transpose", ["input_features"], "frames.by_time", perm=[0, 2, 1])
    frames = add("Pad", [frames, integers(0, 1, 0, 0, 1, 0)], "frames.padded")
    pairs = add("Reshape", [frames, integers(0, length + 1, 2 * mels)], "frames.pairs")
    parts = [
        add("Slice", [pairs, integers(start), integers(start + length), integers(1)], f"frames.{start}")
        for start in (0, 1)
    ]
    rows = add("Concat", parts, "frames.sequences", axis=2)
    rows = add("Reshape", [rows, integers(-1, audio.row_elements)], "frames.rows")
    emitter.names[FRAMES] = add("Cast", [rows], FRAMES, to=ELEMENT_TYPES[emitter.activation])
    batch = add("Shape", ["input_features"], "batch", end=1)
    add("Concat", [batch, integers(length)], "ids_shape", axis=0)
    add("Concat", ["ids_shape", integers(-1)], "sequences_shape", axis=0)
    add_positions(emitter, integers(0), integers(length))
    # Every row sees the complete window.
    emitter.bias = ""
    for node in emitter.graph.nodes:
        form_of(node, ENCODER_FORMS).emit(emitter, node)
    result = emitter.sequences(emitter.graph.outputs["rows"], "rows.sequences")
    add_output(emitter, result, "last_hidden_state", ("batch_size", length, emitter.spec.hidden_size))


def add_positions(emitter: Emitter, start: str, stop: str) -> None:
    """Our value "positions": numbers from ``start`` to ``stop``, lists of one, for each of the batch's rows."""
    builder = emitter.builder
    start, stop = (
        builder.add("Squeeze", [each], f"positions.{name}") for name, each in (("start", start), ("stop", stop))
    )
    numbers = builder.add("Range", [start, stop, builder.integer(1)], "positions.range")
    numbers = builder.add("Expand", [numbers, "ids_shape"], "positions.batch")
    emitter.names["positions"] = builder.add("Reshape", [numbers, builder.integers(-1)], "positions")


def build_speech_decoder(emitter: Emitter, listen: Graph, sources: Mapping[str, tuple[Node, Node]]) -> None:
    """Fill the emitter's builder. ``sources``: see `without_keys` for the graph ``listen``. Raises UnsupportedModel for
    an op, or an attribute of one, that has no form.
    """
    builder, spec, audio = emitter.builder, emitter.spec, emitter.spec.audio
    assert audio is not None
    add, integers = builder.add, builder.integers
    emitter.graph = replace(emitter.graph, parameters={**listen.parameters, **emitter.graph.parameters})
    emitter.cache_role, emitter.sources = "decoder.", sources
    builder.add_input("input_ids", "int64", ("batch_size", "sequence_length"))
    builder.add_input(HIDDEN, "float32", ("batch_size", audio.positions, spec.hidden_size))
    builder.add_input(CACHED, "bool", (1,))
    emitter.names["token_ids"] = add("Reshape", ["input_ids", integers(-1)], "token_ids")
    hidden = add("Cast", [HIDDEN], f"{HIDDEN}.cast", to=ELEMENT_TYPES[emitter.activation])
    emitter.names[listen.outputs["rows"]] = add("Reshape", [hidden, integers(-1, spec.hidden_size)], ROWS)
    add("Shape", ["input_ids"], "ids_shape")
    past = add("Shape", ["past_key_values.0.decoder.key"], "past_length", start=2, end=3)
    new = add("Shape", ["input_ids"], "new_length", start=1)
    add("Add", [past, new], "total_length")
    add("Expand", ["total_length", add("Shape", ["input_ids"], "batch", end=1)], "lengths")
    add_positions(emitter, past, "total_length")
    add_rows(emitter)
    build_decoder(emitter, SPEECH_FORMS)


def add_attention_or_source(emitter: Emitter, node: Node) -> None:
    """Attention to earlier tokens, or to the rows of the encoder, whose keys and values are those of the past, or
    computed.
    """
    state = node.inputs["kv"]
    if state not in emitter.sources:
        add_attention(emitter, node)
        return
    others = [name for name in ("window", "softcap") if node.attr(name) is not None]
    if others or "sinks" in node.inputs:
        raise UnsupportedModel(
            f"{node.outputs['y']}: attends to sound with {(*others, 'sinks')[0]}, which has no form in --target onnx; "
            "use --target webgpu, cpu or cuda"
        )
    builder, y, scale = emitter.builder, node.outputs["y"], node.attr("scale")
    _, _, num_heads, _, head_dim = emitter.graph.states[state].shape
    assert isinstance(num_heads, int)
    assert isinstance(head_dim, int)
    past, present = (
        [f"{prefix}.{layer_of(state)}.encoder.{plane}" for plane in ("key", "value")]
        for prefix in ("past_key_values", "present")
    )
    for prefix, names, add_value in (("past", past, builder.add_input), ("present", present, builder.add_output)):
        length = f"{prefix}_encoder_sequence_length"
        for name in names:
            add_value(name, emitter.activation, ("batch_size", num_heads, length, head_dim))
    kept, computed = builder.branch(), builder.branch()
    for name in past:
        kept.add("Identity", [name], f"{name}.kept")
        kept.add_output(f"{name}.kept", emitter.activation, ())
    emitter.builder = computed
    heads = computed.integers(0, -1, num_heads, head_dim)
    batch = computed.add("Shape", [HIDDEN], f"{y}.source_shape")
    for name, projection in zip(past, emitter.sources[state], strict=True):
        FORMS["linear"].emit(emitter, projection)
        rows = computed.add("Reshape", [emitter.rows(projection.outputs["y"]), batch], f"{name}.rows")
        rows = computed.add("Reshape", [rows, heads], f"{name}.heads")
        computed.add("Transpose", [rows], f"{name}.computed", perm=[0, 2, 1, 3])
        computed.add_output(f"{name}.computed", emitter.activation, ())
    emitter.builder = builder
    branches = {
        "then_branch": kept.subgraph("kept", emitter.activation),
        "else_branch": computed.subgraph("computed", emitter.activation),
    }
    builder.add("If", [CACHED], *present, **branches)
    emitter.names[y] = builder.add(
        "MultiHeadAttention",
        [emitter.sequences(node.inputs["q"], f"{y}.query"), *present],
        y,
        domain=MICROSOFT,
        num_heads=num_heads,
        **({} if scale is None else {"scale": scale}),
    )
    emitter.reshaped.add(y)


SPEECH_FORMS: dict[str, Form] = {
    **FORMS,
    "embed_positions": ENCODER_FORMS["embed_positions"],
    "attention": replace(FORMS["attention"], emit=add_attention_or_source),
}
