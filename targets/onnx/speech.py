"""Speech: convert the decoder of a model of sound to ONNX nodes, with the names that optimum gives them.

    decoder_model_merged.onnx: input_ids (batch, sequence) int64, encoder_hidden_states (batch, rows, E) float32,
    use_cache_branch (1,) bool, past_key_values.N.decoder.key, .value, past_key_values.N.encoder.key, .value
    -> logits (batch, 1, vocab) float32, present.N.decoder.key, .value, present.N.encoder.key, .value

The keys and values of the encoder's rows (`listener.py`) are computed unless ``use_cache_branch`` is true; then those
of the past are returned. Rows of a batch have equally many tokens, so attention to earlier tokens is
MultiHeadAttention, whose heads may have any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nearfar.compiler.ir.graph import Graph, Node
from nearfar.compiler.runtime.errors import UnsupportedModel

from .attention import cache
from .builder import ELEMENT_TYPES, MICROSOFT
from .decoder import FORMS, Form, add_rows, build_decoder
from .emitter import Emitter, layer_of
from .encoder import ENCODER_FORMS
from .encoder_mask import scores_of
from .listener import NEW_POSITIONS, add_positions

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
    length = audio.positions if audio.mel_bins else "encoder_sequence_length"
    builder.add_input(HIDDEN, "float32", ("batch_size", length, spec.hidden_size))
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


def add_causal_bias(emitter: Emitter) -> str:
    """What is added to the scores of new tokens, (1, 1, sequence, total): later tokens are not seen."""
    builder, name = emitter.builder, "causal"
    if not any(name in node.output for node in builder.nodes):
        add, integers = builder.add, builder.integers
        stop = add("Squeeze", ["total_length"], "keys.stop")
        keys = add("Range", [builder.integer(0), stop, builder.integer(1)], "keys")
        rows = add("Unsqueeze", [NEW_POSITIONS, integers(1)], "causal.rows")
        scores_of(builder, emitter.activation, add("LessOrEqual", [keys, rows], "causal.seen"), "causal.scores")
        add("Unsqueeze", ["causal.scores", integers(0, 1)], name)
    return name


def add_speech_attention(emitter: Emitter, node: Node) -> None:
    """Attention to earlier tokens, or to the rows of the encoder, whose keys and values are those of the past, or
    computed.
    """
    state = node.inputs["kv"]
    others = [name for name in ("window", "softcap") if node.attr(name) is not None]
    others += ["sinks"] if "sinks" in node.inputs else []
    _, _, num_heads, _, head_dim = emitter.graph.states[state].shape
    assert isinstance(num_heads, int)
    assert isinstance(head_dim, int)
    if num_heads * head_dim != emitter.columns(node.outputs["y"]):
        others.append("fewer heads of keys than of queries")
    if others:
        raise UnsupportedModel(
            f"{node.outputs['y']}: a decoder of sound attends with {others[0]}, which has no form in --target onnx; "
            "use --target webgpu, cpu or cuda"
        )
    if state in emitter.sources:
        attend(emitter, node, num_heads, add_source(emitter, state, num_heads, head_dim))
        return
    append = emitter.appends.pop(state)
    past, present = cache(emitter, layer_of(state), num_heads, head_dim)
    new = [emitter.sequences(append.inputs[role], f"{node.outputs['y']}.{role}") for role in ("k", "v")]
    attend(emitter, node, num_heads, [*new, "", "", add_causal_bias(emitter), *past], present)


def attend(emitter: Emitter, node: Node, num_heads: int, inputs: Sequence[str], present: Sequence[str] = ()) -> None:
    """``inputs`` of MultiHeadAttention behind the query, and its results behind the first one."""
    y, scale = node.outputs["y"], node.attr("scale")
    query = emitter.sequences(node.inputs["q"], f"{y}.query")
    attrs = {"num_heads": num_heads, **({} if scale is None else {"scale": scale})}
    emitter.names[y] = emitter.builder.add(
        "MultiHeadAttention", [query, *inputs], y, *present, domain=MICROSOFT, **attrs
    )
    emitter.reshaped.add(y)


def add_source(emitter: Emitter, state: str, num_heads: int, head_dim: int) -> list[str]:
    """The keys and values of the encoder's rows, which are outputs of the graph too."""
    builder = emitter.builder
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
    batch = computed.add("Shape", [HIDDEN], f"{state}.batch", end=2)
    heads = computed.add("Concat", [batch, computed.integers(num_heads, head_dim)], f"{state}.heads", axis=0)
    for name, projection in zip(past, emitter.sources[state], strict=True):
        FORMS["linear"].emit(emitter, projection)
        rows = computed.add("Reshape", [emitter.rows(projection.outputs["y"]), heads], f"{name}.heads")
        computed.add("Transpose", [rows], f"{name}.computed", perm=[0, 2, 1, 3])
        computed.add_output(f"{name}.computed", emitter.activation, ())
    emitter.builder = builder
    builder.choose(CACHED, present, kept, computed, emitter.activation)
    return present


SPEECH_FORMS: dict[str, Form] = {
    **FORMS,
    "embed_positions": ENCODER_FORMS["embed_positions"],
    "attention": replace(FORMS["attention"], emit=add_speech_attention),
}
