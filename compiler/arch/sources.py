"""Sources: the rows of an encoder of sound to which the layers of a decoder also attend. The encoder's graph computes
their keys and values once for a window, because they do not change while a text is written.
"""

from __future__ import annotations

from ..ir.graph import Graph, Parameter, Source, Value
from ..ir.pages import SOURCE, SOURCE_PAGES
from ..ir.spec import AudioSpec, ModelSpec
from ..ir.speech import FRAMES
from . import decoder
from .encoder import EncoderGraph

ENCODER = "model.encoder"


class Layer(decoder.Layer):
    """A layer with an attention to the source of each sequence, between its own attention and its feed-forward."""

    def attention(self, x: str, page_size: int) -> str:
        x, graph, spec = super().attention(x, page_size), self._graph, self._spec
        size = spec.num_heads * self._head_dim
        self._rows |= {"encoder_attn.q_proj": size, "encoder_attn.o_proj": spec.hidden_size}
        kv = source_pages(graph, spec, self._layer, page_size)
        tables = {name: source_input(graph, name) for name in ("positions", "page_indptr", "page_ids")}
        normed = self._norm("encoder_attn_layer_norm", x)
        q = self._linear("encoder_attn.q_proj", normed, spec.hidden_size, bias=spec.qkv_bias, dtype="activation")
        attended = graph.add(
            "attention",
            {"q": q, "kv": kv, "seq_starts": "seq_starts", **tables},
            name=f"{self._here}.source_attended",
        )
        mixed = self._linear("encoder_attn.o_proj", attended, size, bias=spec.output_bias)
        return graph.add("add", {"a": mixed, "b": x}, name=f"{self._here}.after_source")


def source_pages(graph: Graph, spec: ModelSpec, layer: int, page_size: int) -> str:
    """The state with the keys and values of sources for a layer of the decoder."""
    name = f"layers.{layer}.source_kv"
    shape = (SOURCE_PAGES, 2, spec.num_kv_heads, page_size, spec.head_dim)
    graph.states[name] = Value(name, shape, "activation")
    return name


def source_input(graph: Graph, name: str) -> str:
    own = SOURCE + name
    shape, dtype = decoder.BATCH_INPUTS[name]
    graph.inputs[own] = Value(own, ("LS",) if name == "page_ids" else shape, dtype)
    return own


def read_frames(graph: Graph, audio: AudioSpec) -> str:
    """The input that a window of sound is."""
    graph.inputs[FRAMES] = Value(FRAMES, ("S", audio.row_elements), "float32")
    return FRAMES


def convolved(
    encoder: EncoderGraph, module: str, x: str, rows: int, activation: str, *, bias: bool = True, copies: int = 1
) -> str:
    """A convolution as a projection to ``rows`` elements, and its activation. The matrix may have several rows of the
    result behind one another; the bias has as many ``copies``.
    """
    graph, columns = encoder.graph, encoder.graph.shape_of(x)[1]
    assert isinstance(columns, int), module
    name = f"{ENCODER}.{module}"
    inputs = {"x": x, "weight": encoder.matrix(f"{name}.matrix", rows, columns)}
    if bias:
        own = Source(f"{name}.bias", 0, rows // copies)
        graph.parameters[own.tensor] = Parameter(own.tensor, (own,) * copies, None)
        inputs["bias"] = own.tensor
    y = graph.add("linear", inputs, name=f"{name}.linear", dtype="float32")
    if activation == "none":
        return y
    return graph.add("activate", {"x": y}, name=f"{name}.out", activation=activation)


def append_sources(encoder: EncoderGraph, spec: ModelSpec, x: str, page_size: int) -> Graph:
    """The complete graph: the rows x (S, E) are its output, and their keys and values are appended to the pages of
    sources for every layer of the decoder.
    """
    graph, size = encoder.graph, spec.num_kv_heads * spec.head_dim
    for layer in range(spec.num_layers):
        parts = {}
        for role in ("k", "v"):
            module = f"model.layers.{layer}.encoder_attn.{role}_proj"
            parts[role] = encoder.linear([(module, size)], x, bias=spec.qkv_bias, dtype="activation")
        kv = source_pages(graph, spec, layer, page_size)
        graph.add("append_kv", {**parts, "kv": kv, "slots": source_input(graph, "slots")})
    graph.outputs = {"rows": x}
    return graph
