"""Gemma 4 12B, which has no tower: patches of 48 x 48 pixels pass through one projection and norms, with embeddings of
their column and of their row. Gemma Team 2026.
"""

from __future__ import annotations

from ...formats.config import ConfigReader
from ...ir.graph import Graph, Parameter, Source
from ...ir.spec import ModelSpec, VisionSpec
from .siglip import CHANNELS, HARMLESS, TowerGraph

PARTS = {"vision_embedder.": "vision_embedder.", "embed_vision.": "embed_vision."}
EMBEDDER = "vision_embedder"


def read_config(config: ConfigReader) -> VisionSpec:
    vision = config.section("vision_config") or ConfigReader({}, config.where)
    side = vision.integer("patch_size", default=16) * vision.integer("pooling_kernel_size", default=3)
    size = vision.integer("mm_embed_dim", default=3840)
    vision.expect("output_proj_dims", size)
    vision.expect("model_patch_size", side)
    spec = VisionSpec(
        model_type=config.text("model_type"),
        hidden_size=size,
        num_layers=0,
        num_heads=1,
        intermediate_size=1,
        activation="none",
        # PyTorch's default of LayerNorm, for all norms but the last one.
        norm_eps=1e-5,
        patch_elements=CHANNELS * side**2,
        positions=2 * vision.integer("mm_posemb_size", default=1120),
        block=1,
        projector_eps=vision.number("rms_norm_eps", default=1e-6),
        # transformers' forward() sees both ways in all layers, its generate() with a static cache and vLLM (#47217) in
        # those with a window.
        both_ways="windows",
    )
    vision.finish(HARMLESS)
    return spec


def see(spec: ModelSpec, taps: int) -> Graph:
    vision = spec.vision
    assert vision is not None
    parts = TowerGraph(vision, taps, f"{EMBEDDER}.")
    size, graph = vision.hidden_size, parts.graph
    x = parts.linear([(f"{EMBEDDER}.patch_dense", size)], parts.norm(f"{EMBEDDER}.patch_ln1", "patches"))
    x = parts.norm(f"{EMBEDDER}.pos_norm", parts.placed(parts.norm(f"{EMBEDDER}.patch_ln2", x), "pos_embedding"))
    # A norm without factors: those of another one, times zero, plus one.
    ones = f"{EMBEDDER}.ones"
    graph.parameters[ones] = Parameter(
        ones, (Source(f"{EMBEDDER}.pos_norm.weight", 0, size, offset=1.0, factor=0.0),), None
    )
    inputs = {"x": parts.fold(x, "mean"), "weight": ones}
    x = graph.add("rms_norm", inputs, name="folded.normed", eps=vision.projector_eps, dtype="float32")
    return parts.finish(parts.linear([("embed_vision.embedding_projection", spec.hidden_size)], x, bias=False))
