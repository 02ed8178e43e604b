"""Gemma 3: SigLIP, whose patches are averaged in blocks, normed and projected. Gemma Team 2025."""

from __future__ import annotations

import math
from dataclasses import replace

from ...formats.config import ConfigReader
from ...ir.graph import Graph, Parameter, Source
from ...ir.spec import ModelSpec, VisionSpec
from .siglip import HARMLESS, TowerGraph, read_tower

# transformers 5 writes a tower without "vision_model".
PARTS = {
    "vision_tower.vision_model.": "vision_tower.",
    "vision_tower.": "vision_tower.",
    "multi_modal_projector.": "multi_modal_projector.",
}
NORM, PROJECTION = "multi_modal_projector.mm_soft_emb_norm.weight", "multi_modal_projector.mm_input_projection_weight"


def read_config(config: ConfigReader) -> VisionSpec:
    features = config.integer("mm_tokens_per_image", default=256)
    vision = config.section("vision_config") or ConfigReader({}, config.where)
    side = vision.integer("image_size", default=224) // vision.integer("patch_size", default=16)
    defaults = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "patch": 16}
    spec = read_tower(vision, config.text("model_type"), **defaults, block=max(1, side // max(1, math.isqrt(features))))
    vision.finish(HARMLESS)
    return replace(spec, positions=side**2, both_ways="all")


def see(spec: ModelSpec, taps: int) -> Graph:
    assert spec.vision is not None
    parts = TowerGraph(spec.vision, taps, "vision_tower.")
    size, graph = spec.vision.hidden_size, parts.graph
    # The factors of its norm are stored without 1.
    graph.parameters[NORM] = Parameter(NORM, (Source(NORM, 0, size, offset=1.0),), None)
    normed = graph.add(
        "rms_norm",
        {"x": parts.fold(parts.tower(), "mean"), "weight": NORM},
        name="folded.normed",
        eps=spec.vision.norm_eps,
        dtype="float32",
    )
    weight = parts.matrix(PROJECTION, spec.hidden_size, size)
    return parts.finish(graph.add("linear", {"x": normed, "weight": weight}, name=f"{PROJECTION}.out", dtype="float32"))
