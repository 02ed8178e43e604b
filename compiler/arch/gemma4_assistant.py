"""The assistant that drafts the tokens of a Gemma 4 model: a few layers without keys and values of their own, which
read those of the model's last layer of their kind. Gemma Team 2026.

A row joins the embedding of a token with the model's last row of the token before it. It sees what that last row saw,
from one position further on; the guesses after the first one see the same from the same position, and read the row that
the assistant projected for the guess before them. The tensors of its checkpoint are named ASSISTANT + their name.
"""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.graph import Graph, Value
from ..ir.pages import DRAFT_KEPT, DRAFT_SAMPLED, PAGES
from ..ir.spec import ModelSpec
from . import gemma4_text, gemma4_unified_text
from .decoder import matrix, norm, sampling_block, take_sampled
from .draft_heads import joined_rows
from .gemma4_text import LAYOUT, Gemma4Layer

ASSISTANT = "assistant."
# The defaults of the text part, and that of 'backbone_hidden_size', by model_type.
DEFAULTS = {
    "gemma4_assistant": (gemma4_text.DEFAULTS, 1536),
    "gemma4_unified_assistant": (gemma4_unified_text.DEFAULTS, 3840),
}
HARMLESS = frozenset({"architectures", "dtype", "torch_dtype", "transformers_version", "bos_token_id", "eos_token_id"})
# With ordered embeddings, the tokens whose logits are computed are those of some groups; the logits are the same.
ORDER = frozenset({"use_ordered_embeddings", "num_centroids", "centroid_intermediate_top_k"})


def read_config(config: ConfigReader, model: ModelSpec) -> ModelSpec:
    """The spec of the layers of an assistant's config.json. Raises CheckpointError, and UnsupportedModel if it does not
    fit the ``model``, or a key needs other mathematics.
    """
    defaults, default_size = DEFAULTS[config.text("model_type")]
    size = config.integer("backbone_hidden_size", default=default_size)
    if size != model.hidden_size:
        raise config.unsupported(
            "backbone_hidden_size",
            f"'backbone_hidden_size' is {size}, but the model's rows have {model.hidden_size} elements; give the "
            "assistant of this model",
        )
    config.expect("tie_word_embeddings", True)
    text = config.section("text_config")
    if text is None:
        raise config.contradiction("text_config", "'text_config' is missing")
    text.expect("model_type", "gemma4_text", "gemma4_unified_text")
    for key in ("hidden_size_per_layer_input", "enable_moe_block", "use_double_wide_mlp"):
        text.expect(key, 0, False)
    spec = gemma4_text.read_config(text.with_defaults({"hidden_size_per_layer_input": 0}), defaults, borrows=True)
    config.finish(HARMLESS | ORDER)
    require_fit(config, spec, model)
    return spec


def require_fit(config: ConfigReader, spec: ModelSpec, model: ModelSpec) -> None:
    """Raises UnsupportedModel unless the assistant can read the model's tokens, keys and values."""
    if spec.vocab_size != model.vocab_size:
        raise config.unsupported(
            "text_config", f"the assistant has {spec.vocab_size} tokens, the model {model.vocab_size}"
        )
    for layer in range(spec.num_layers):
        source, window = source_of(spec, layer, model), spec.window(layer)
        kind = "full attention" if window is None else f"a window of {window} tokens"
        if source is None:
            raise config.unsupported("text_config", f"the model has no layer with {kind}, as layer {layer} has")
        own, others = spec.heads_of(layer), model.heads_of(source)
        if own != others:
            raise config.unsupported(
                "text_config",
                f"layer {layer} reads {own[0]} kv heads of {own[1]} elements, but the model's layers with {kind} have "
                f"{others[0]} of {others[1]}",
            )


def source_of(spec: ModelSpec, layer: int, model: ModelSpec) -> int | None:
    """The layer of the model whose keys and values a layer of the assistant reads."""
    same = [each for each in range(model.num_layers) if model.window(each) == spec.window(layer)]
    return model.kv_layer(same[-1]) if same else None


class AssistantLayer(Gemma4Layer):
    """Its rows are at the position of the row that they read, and rotate by that of their token, the next one."""

    _TABLES, _FIRST = "draft.", 1

    def __init__(self, graph: Graph, spec: ModelSpec, layer: int, context: int, model: ModelSpec) -> None:
        super().__init__(graph, spec, layer, LAYOUT, context)
        self._here, self._module = f"draft.layers.{layer}", f"{ASSISTANT}model.layers.{layer}"
        self._source = source_of(spec, layer, model)

    def _pages(self) -> tuple[str, str]:
        return f"layers.{self._source}.kv", PAGES

    def attention(self, x: str, page_size: int) -> str:
        # The model writes this state, so that the layer has no keys and values to append.
        name, pages = self._pages()
        shape = (pages, 2, self._num_kv_heads, page_size, self._head_dim)
        self._graph.states[name] = Value(name, shape, "activation")
        return super().attention(x, page_size)


def draft_tokens(model: ModelSpec, spec: ModelSpec, page_size: int, context: int) -> Graph:
    """The graph of the assistant on a ragged batch, whose outputs are those of the model; see `draft_heads.draft`."""
    graph, x = joined_rows(model, page_size)
    width, size = model.hidden_size, spec.hidden_size
    inputs = {"x": x, "weight": matrix(graph, f"{ASSISTANT}pre_projection", size, 2 * width)}
    x = graph.add("linear", inputs, name=f"{ASSISTANT}pre_projection.out", dtype="float32")
    for layer in range(spec.num_layers):
        block = AssistantLayer(graph, spec, layer, context, model)
        x = block.scaled(block.feed_forward(block.attention(x, page_size)))
    x = take_sampled(graph, x, "sampled_rows")
    x = norm(graph, f"{ASSISTANT}model.norm", x, size, spec.rms_norm_eps, layout=LAYOUT)
    inputs = {"x": x, "weight": matrix(graph, f"{ASSISTANT}post_projection", width, size)}
    own = graph.add("linear", inputs, name=f"{ASSISTANT}post_projection.out", dtype="float32")
    graph.add("keep_rows", {"x": own, "kept": DRAFT_KEPT, "sample_slots": "sample_slots"})
    inputs = {"x": x, "weight": matrix(graph, f"{ASSISTANT}model.embed_tokens", spec.vocab_size, size)}
    graph.add("linear", inputs, name="logits", dtype="float32")
    sampling_block(graph, spec.vocab_size, DRAFT_SAMPLED)
    return graph
