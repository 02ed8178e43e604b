"""Apertus: Llama with norms of each head of queries and keys, and an ungated feed-forward whose activation has factors
of its own in every layer (xIELU). Swiss AI 2025.
"""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..formats.decoder_tensors import XIELU
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_decoder_config
from .rope_config import rope_sections

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    before_attention="attention_layernorm", before_feed_forward="feedforward_layernorm", gated=False
)
ROPE = {
    "rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip


class ApertusLayer(decoder.Layer):
    def _inner(self, x: str) -> str:
        up = self._linear("mlp.up_proj", x, self._spec.hidden_size, bias=False)
        alphas = decoder.vector(self._graph, f"{self._module}.{XIELU}", 4)
        return self._graph.add("xielu", {"x": up, "alphas": alphas}, name=f"{self._here}.inner")


forward = partial(decoder.forward, layout=LAYOUT, layers=ApertusLayer)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "apertus"."""
    config.expect("hidden_act", "xielu")
    config.expect("mlp_bias", False)
    config.expect("post_norm", False)
    config.expect("qk_norm", True)
    if not rope_sections(config):
        if config.has("rope_scaling"):
            raise config.unsupported(
                "rope_scaling",
                "'rope_scaling' is null or empty, which transformers 4 reads as a plain rotation and transformers 5 as "
                "the published one; write the rotation as 'rope_parameters'",
            )
        config = config.with_values({"rope_parameters": ROPE})
    return read_decoder_config(
        config,
        # The layers have an op in place of an activation.
        activation="none",
        bias_keys=("attention_bias",),
        qk_norm=True,
        default_theta=12e6,
        default_eps=1e-5,
    )
