"""Granite 4 without experts: Granite 3 whose layers have Mamba-2 instead of attention, except a few. Granite Team
2025.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder, mamba_config
from .decoder_config import listed_layer_types, read_num_layers
from .granite import read_granite_config
from .hybrid import HybridLayer

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    fused={
        "shared_mlp.input_linear": ("mlp.gate_proj", "mlp.up_proj"),
        "shared_mlp.output_linear": ("mlp.down_proj",),
    }
)
# Those of experts, of which there are none.
HARMLESS = mamba_config.HARMLESS | {"init_method", "intermediate_size_of_experts", "num_experts_per_tok"}
MAMBA = ("mamba", "linear_attention")

forward = partial(decoder.forward, layout=LAYOUT, layers=HybridLayer)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "granitemoehybrid"."""
    config.expect("num_local_experts", 0)
    config.expect("normalization_function", "rmsnorm")
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
    rotates = config.optional_text("position_embedding_type") == "rope"
    states = replace(mamba_config.read_mamba(config), norm="after")
    spec = read_granite_config(config, default_eps=1e-6, harmless=HARMLESS)
    return replace(
        spec,
        mixers=tuple("mamba2" if kind in MAMBA else "attention" for kind in kinds),
        states=states,
        unrotated=() if rotates else tuple(range(num_layers)),
    )
