"""OLMoE: Llama with experts in place of every feed-forward, norms over all heads of queries and keys, and limits of
queries, keys and values. Muennighoff et al. 2024.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_decoder_config
from .expert_config import HARMLESS, read_experts

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(wide_qk_norm=True)

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "olmoe"."""
    normalized = config.flag("norm_topk_prob", default=False)
    experts = read_experts(config, "num_experts", "num_local_experts", normalized=normalized)
    clip = config.optional_number("clip_qkv")
    spec = read_decoder_config(
        config,
        bias_keys=("attention_bias",),
        qk_norm=True,
        default_eps=1e-5,
        harmless=HARMLESS,
    )
    return replace(spec, experts=experts, qkv_limit=clip)
