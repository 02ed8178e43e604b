"""LFM2-VL: SigLIP 2 for pictures of any size (NaFlex), and a projector of two layers on blocks. Liquid AI 2025."""

from __future__ import annotations

from dataclasses import replace

from ...formats.config import ConfigReader
from ...ir.graph import Graph
from ...ir.spec import ModelSpec, VisionSpec
from ..decoder_config import read_activation
from .siglip import HARMLESS, TowerGraph, read_tower

# transformers 5 writes a tower without "vision_model".
PARTS = {
    "vision_tower.vision_model.": "vision_tower.",
    "vision_tower.": "vision_tower.",
    "multi_modal_projector.": "multi_modal_projector.",
}
PROJECTOR = "multi_modal_projector"


def read_config(config: ConfigReader) -> VisionSpec:
    block = config.integer("downsample_factor", default=2)
    vision = config.section("vision_config") or ConfigReader({}, config.where)
    defaults = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "patch": 16}
    spec = read_tower(vision, config.text("model_type"), **defaults, block=block)
    positions = vision.integer("num_patches", default=256)
    vision.finish(HARMLESS)
    config.expect("vision_feature_layer", -1)
    return replace(
        spec,
        positions=positions,
        projector_size=config.integer("projector_hidden_size", default=2560),
        projector_activation=read_activation(config, "projector_hidden_act", "gelu"),
        projector_bias=config.flag("projector_bias", default=True),
        projector_norm=config.flag("projector_use_layernorm", default=True),
    )


def see(spec: ModelSpec, taps: int) -> Graph:
    vision = spec.vision
    assert vision is not None
    assert vision.projector_size is not None
    parts = TowerGraph(vision, taps, "vision_tower.")
    x = parts.fold(parts.tower())
    if vision.projector_norm:
        x = parts.norm(f"{PROJECTOR}.layer_norm", x, eps=vision.projector_eps)
    layers = [(f"{PROJECTOR}.linear_1", vision.projector_size)]
    x = parts.linear(layers, x, bias=vision.projector_bias, activation=vision.projector_activation)
    return parts.finish(parts.linear([(f"{PROJECTOR}.linear_2", spec.hidden_size)], x, bias=vision.projector_bias))
