"""LFM2 with experts in place of the feed-forward of all but the first layers. Liquid AI 2025."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder, lfm2
from .decoder_config import read_num_layers
from .expert_config import HARMLESS, read_experts
from .experts import ExpertNames
from .hybrid import HybridLayer

__all__ = ["forward", "read_config"]

LAYOUT = replace(
    lfm2.LAYOUT,
    experts=ExpertNames(
        router="feed_forward.gate",
        gate_up=("feed_forward.experts.{}.w1.weight", "feed_forward.experts.{}.w3.weight"),
        down=("feed_forward.experts.{}.w2.weight",),
        choice_bias="feed_forward.expert_bias",
    ),
)

forward = partial(decoder.forward, layout=LAYOUT, layers=HybridLayer)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "lfm2_moe"."""
    dense = config.integer("num_dense_layers", minimum=0, default=2)
    experts = read_experts(
        config,
        "num_experts",
        size_key="moe_intermediate_size",
        router="sigmoid",
        normalized=config.flag("norm_topk_prob", default=True),
        scale=config.number("routed_scaling_factor", default=1.0),
        dense_layers=tuple(range(min(dense, read_num_layers(config)))),
        choice_bias=config.flag("use_expert_bias", default=True),
    )
    # Its feed-forwards have the size that the file says.
    spec = lfm2.read_config(config.with_defaults({"block_auto_adjust_ff_dim": False}), HARMLESS)
    return replace(spec, experts=experts)
