"""The heads with which a model drafts its own tokens: one more layer behind its last one, whose input joins the last
row of a token with the embedding of the token after it. It guesses the token after that one. DeepSeek-AI 2024.

The modules have the names that Qwen3.5 gives them; embedding and head are those of the model. `ir/ops/drafts.py`
defines the memory through which the model passes its rows to the heads, and the heads pass theirs from guess to guess.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Node, Parameter, Source, Value
from ..ir.pages import DRAFT_KEPT, DRAFT_PAGES, DRAFT_SAMPLED, KEPT_PAGES, KEPT_ROWS, KEPT_STATE
from ..ir.spec import ModelSpec
from .decoder import (
    DecoderLayout,
    Layer,
    embedding,
    head,
    matrix,
    new_graph,
    norm,
    place_features,
    sampling_block,
    take_sampled,
    vector,
)

# The tensors of the heads, and those of their only layer.
HEADS, LAYER = "mtp.", "mtp.layers.0."


class DraftLayer(Layer):
    """The layer of the heads, before the class of a family's layers: it has the sizes of one that attends."""

    def __init__(self, graph: Graph, spec: ModelSpec, layer: int, layout: DecoderLayout, context: int) -> None:
        super().__init__(graph, spec, layer, layout, context)
        self._here, self._module = "draft.layers.0", LAYER.removesuffix(".")

    def _pages(self) -> tuple[str, str]:
        return f"{self._here}.kv", DRAFT_PAGES


def draft(spec: ModelSpec, page_size: int, context: int, *, layout: DecoderLayout, layers: type[DraftLayer]) -> Graph:
    """The graph of the heads on a ragged batch. A row's token follows the token of the row that it reads, so the
    features of pictures are those of the next position; the row rotates by its own. The outputs are those of the
    model.
    """
    graph, x = joined_rows(spec, page_size, sees=spec.vision is not None or spec.hearing is not None)
    width = spec.hidden_size
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden")
    sources = tuple(Source(f"{HEADS}{name}.weight", 0, width, offset=layout.norm_offset) for name in norms)
    weight = f"{HEADS}pre_fc_norm.weight"
    graph.parameters[weight] = Parameter(weight, sources, None)
    x = graph.add(
        "rms_norm", {"x": x, "weight": weight}, name="joined_normed", eps=spec.rms_norm_eps, dtype="float32", groups=2
    )
    inputs = {"x": x, "weight": matrix(graph, f"{HEADS}fc", width, 2 * width)}
    x = graph.add("linear", inputs, name=f"{HEADS}fc.out", dtype="float32")
    attends = next(layer for layer in range(spec.num_layers) if spec.mixer(layer) == "attention")
    block = layers(graph, spec, attends, layout, context)
    x = block.feed_forward(block.attention(x, page_size))
    x = take_sampled(graph, x, "sampled_rows")
    weight = vector(graph, f"{HEADS}norm.weight", width, layout.norm_offset)
    kept = {"x": x, "weight": weight, "kept": DRAFT_KEPT, "sample_slots": "sample_slots"}
    graph.add("keep_rows", kept, eps=spec.rms_norm_eps)
    head(graph, spec, norm(graph, f"{HEADS}norm", x, width, spec.rms_norm_eps, layout=layout))
    sampling_block(graph, spec.vocab_size, DRAFT_SAMPLED)
    return graph


def joined_rows(spec: ModelSpec, page_size: int, *, sees: bool = False) -> tuple[Graph, str]:
    """A graph of what drafts for a model, and its first rows (S, 2E): the embeddings of the tokens, or if it ``sees``
    the features of pictures and sound in their place, each followed by a row that was kept.
    """
    graph = new_graph(embeds=False, sampled=DRAFT_SAMPLED)
    width = spec.hidden_size
    graph.inputs[KEPT_ROWS] = Value(KEPT_ROWS, ("S",), "int32")
    graph.states[KEPT_STATE] = Value(KEPT_STATE, (KEPT_PAGES, page_size, width), "activation")
    graph.states[DRAFT_KEPT] = Value(DRAFT_KEPT, ("N", width), "activation")
    x = embedding(
        graph, "model.embed_tokens", spec.vocab_size, width, spec.embedding_scale, "embedded", sampled=DRAFT_SAMPLED
    )
    if sees:
        x = place_features(graph, spec, x)
    joined = {"x": x, "kept": KEPT_STATE, "own": DRAFT_KEPT, KEPT_ROWS: KEPT_ROWS}
    return graph, graph.add("join_kept", joined, name="joined")


def keep_sampled_rows(graph: Graph, module: str, page_size: int) -> Graph:
    """The graph of a model that keeps the rows of sampled tokens behind its last layer, normed by ``module``: those
    from which an assistant drafts.
    """
    (normed,) = (node for node in graph.nodes if node.inputs.get("weight") == f"{module}.weight")
    assert normed.op == "rms_norm", normed.op
    assert normed.has_only(inputs=("x", "weight"), attrs=("eps", "dtype")), normed
    inputs = {"kept": KEPT_STATE, "slots": "slots", "rows": "sample_rows", **normed.inputs}
    kept = Node("keep_rows", inputs, {}, {"eps": normed.attr("eps")})
    nodes = [each for node in graph.nodes for each in ([kept, node] if node is normed else [node])]
    state = Value(KEPT_STATE, (KEPT_PAGES, page_size, graph.shape_of(normed.inputs["x"])[1]), "activation")
    return replace(graph, states={**graph.states, KEPT_STATE: state}).with_nodes(nodes)


def keep_last_rows(graph: Graph, page_size: int) -> Graph:
    """The graph of a model that keeps the normed row of each token behind its last layer for its heads."""
    (taken,) = (node for node in graph.nodes if node.op == "take_rows")
    (normed,) = (node for node in graph.nodes if node.inputs.get("x") == taken.outputs["y"])
    assert normed.op == "rms_norm", normed.op
    assert normed.has_only(inputs=("x", "weight"), attrs=("eps", "dtype")), normed
    x, columns = taken.inputs["x"], graph.shape_of(taken.inputs["x"])[1]
    state = Value(KEPT_STATE, (KEPT_PAGES, page_size, columns), "activation")
    inputs = {"x": x, "weight": normed.inputs["weight"], "kept": KEPT_STATE, "slots": "slots"}
    kept = Node("keep_rows", inputs, {}, {"eps": normed.attr("eps")})
    nodes = [each for node in graph.nodes for each in ([kept, node] if node is taken else [node])]
    return replace(graph, states={**graph.states, KEPT_STATE: state}).with_nodes(nodes)
