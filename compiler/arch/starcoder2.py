"""StarCoder2: LayerNorms, biases on all projections, windows, a feed-forward without a gate. Lozhkov et al. 2024."""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_activation, read_decoder_config, read_sliding_window

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    fused={"mlp.c_fc": ("mlp.up_proj",), "mlp.c_proj": ("mlp.down_proj",)},
    centered_norms=True,
    norm_bias=True,
    gated=False,
)

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "starcoder2"."""
    # Published configs contain these keys although every StarCoder2 has the same values.
    config.expect("mlp_type", "default")
    config.expect("norm_type", "layer_norm")
    biases = config.flag("use_bias", default=True)
    return read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads", default=2),
        activation=read_activation(config, "hidden_act", "gelu_pytorch_tanh"),
        qkv_bias=biases,
        output_bias=biases,
        mlp_bias=biases,
        windows=read_sliding_window(config, default=None),
        tied=True,
        default_eps=1e-5,
        eps_key="norm_epsilon",
    )
