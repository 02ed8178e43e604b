"""Ministral 3: Llama with YaRN. Beyond the original length it scales queries by their position. Mistral AI 2025."""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from .decoder import forward
from .decoder_config import even_head_dim, read_decoder_config, read_sliding_window
from .rope_config import RopeSizes, read_rope, rope_sections

__all__ = ["forward", "read_config"]

# transformers' default.
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "ministral3"."""
    if not rope_sections(config):
        config = config.with_values({"rope_parameters": ROPE})
    head_dim = even_head_dim(config, config.optional_integer("head_dim", absent=128))
    ignored = frozenset({"max_position_embeddings"})
    sizes = RopeSizes(head_dim, config.integer("max_position_embeddings"), scales_queries=True, ignored=ignored)
    rope = read_rope(config, sizes)
    return read_decoder_config(
        config,
        head_dim=head_dim,
        windows=read_sliding_window(config, default=None),
        ropes={"full_attention": rope, "sliding_attention": rope},
        default_eps=1e-5,
    )
