"""Granite 4: Granite 3 whose layers have Mamba-2 instead of attention, except a few, and may have experts beside the
feed-forward. Granite Team 2025.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ExpertSpec, ModelSpec
from . import decoder, expert_config, granitemoe, mamba_config
from .decoder_config import listed_layer_types, read_num_layers
from .granite import read_granite_config
from .hybrid import HybridLayer

__all__ = ["forward", "read_config"]

LAYOUT = replace(
    granitemoe.LAYOUT,
    fused={
        "shared_mlp.input_linear": ("mlp.gate_proj", "mlp.up_proj"),
        "shared_mlp.output_linear": ("mlp.down_proj",),
    },
)
HARMLESS = mamba_config.HARMLESS | expert_config.HARMLESS | {"init_method", "intermediate_size_of_experts"}
MAMBA = ("mamba", "linear_attention")


class GraniteLayer(HybridLayer):
    def _mixture(self, normed: str) -> str:
        """Experts and the feed-forward side by side."""
        inputs = {"a": self._dense(normed), "b": super()._mixture(normed)}
        return self._graph.add("add", inputs, name=f"{self._here}.dense_and_experts")


forward = partial(decoder.forward, layout=LAYOUT, layers=GraniteLayer)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "granitemoehybrid"."""
    config.expect("normalization_function", "rmsnorm")
    experts = _read_experts(config)
    config = config.renamed(
        {
            "intermediate_size": "intermediate_size_of_experts",
            "shared_intermediate_size": "intermediate_size",
            # The older name of the list.
            **({} if config.has("layer_types") else {"layers_block_type": "layer_types"}),
        }
    )
    config.ignore("layers_block_type")
    num_layers = read_num_layers(config)
    kinds = listed_layer_types(config, num_layers, *MAMBA, "attention", "full_attention") or ("mamba",) * num_layers
    config.expect("position_embedding_type", "rope", "nope", None)
    rotates = config.optional_text("position_embedding_type") == "rope"
    states = replace(mamba_config.read_mamba(config), norm="after")
    spec = read_granite_config(config, default_eps=1e-6, harmless=HARMLESS)
    return replace(
        spec,
        experts=experts,
        mixers=tuple("mamba2" if kind in MAMBA else "attention" for kind in kinds),
        states=states,
        unrotated=() if rotates else tuple(range(num_layers)),
    )


def _read_experts(config: ConfigReader) -> ExpertSpec | None:
    if config.integer("num_local_experts", minimum=0) == 0:
        config.ignore("num_experts_per_tok")
        return None
    return expert_config.read_experts(config, "num_local_experts", router="softmax_chosen")
