"""Idefics 3, SmolVLM and SmolVLM 2: SigLIP, whose blocks of patches are joined and projected. Laurençon et al. 2024,
Marafioti et al. 2025.
"""

from __future__ import annotations

from dataclasses import replace

from ...formats.config import ConfigReader
from ...ir.graph import Graph
from ...ir.spec import ModelSpec, VisionSpec
from .siglip import HARMLESS, TowerGraph, read_tower

PARTS = {"vision_model.": "vision_model.", "connector.": "connector."}
# How pictures are prepared, which the processor's file says.
OF_PROCESSOR = {"max_image_size", "size", "tie_word_embeddings", "use_base_siglip"}


def read_config(config: ConfigReader) -> VisionSpec:
    block = config.integer("scale_factor", default=2)
    vision = config.section("vision_config") or ConfigReader({}, config.where)
    defaults = {"hidden_size": 1152, "num_layers": 12, "num_heads": 16, "patch": 32}
    spec = read_tower(vision, config.text("model_type"), **defaults, block=block)
    side = vision.integer("image_size", default=224) // vision.integer("patch_size", default=32)
    vision.finish(HARMLESS | OF_PROCESSOR)
    return replace(spec, positions=side**2)


def see(spec: ModelSpec, taps: int) -> Graph:
    assert spec.vision is not None
    parts = TowerGraph(spec.vision, taps, "vision_model.")
    folded = parts.fold(parts.tower())
    return parts.finish(parts.linear([("connector.modality_projection.proj", spec.hidden_size)], folded, bias=False))
