"""EmbeddingGemma 2, the text of a model that also makes vectors of images and sound: Gemma 4 whose tokens see those
after them. Layers have no embedding of their own but a projection of the common one, and the last rows are projected.
"""

from __future__ import annotations

from dataclasses import replace

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ModelSpec
from . import gemma4_text
from .decoder import matrix

__all__ = ["forward", "read_config"]

DEFAULTS = {
    **{key: value for key, value in gemma4_text.DEFAULTS.items() if key != "vocab_size_per_layer_input"},
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "max_position_embeddings": 262_144,
    "hidden_size_per_layer_input": 512,
    "embedding_dim": 768,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
# What other models of Gemma 4 have.
ABSENT = (
    "attention_k_eq_v", "enable_moe_block", "final_logit_softcapping", "num_kv_shared_layers", "use_double_wide_mlp",
    "vocab_size_per_layer_input",
)  # fmt: skip


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "embedding_gemma2_text"."""
    for key in ABSENT:
        config.expect(key, False, 0, None)
    config = config.with_defaults(DEFAULTS)
    size = config.integer("embedding_dim")
    spec = gemma4_text.read_config(config, DEFAULTS, own_kv_heads=True)
    # A token sees as many tokens on each side as 'sliding_window' says, and itself.
    windows = tuple(None if window is None else window + 1 for window in spec.windows)
    return replace(spec, causal=False, windows=windows, projected_size=size)


def forward(spec: ModelSpec, page_size: int, context: int, *, embeds: bool = False) -> Graph:
    """See `decoder.forward`. The model has no head: it computes embeddings only."""
    assert embeds, spec.model_type
    assert spec.projected_size is not None, spec.model_type
    modules = ("model.ple.", "ple_block.")
    graph = gemma4_text.forward(spec, page_size, context, embeds=True, modules=modules)
    weight = matrix(graph, "model.embedding_projection", spec.projected_size, spec.hidden_size)
    inputs = {"x": graph.outputs["embeddings"], "weight": weight}
    graph.outputs = {"embeddings": graph.add("linear", inputs, name="projected", dtype="float32")}
    return graph
