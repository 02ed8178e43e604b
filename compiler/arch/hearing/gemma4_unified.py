"""Gemma 4 12B, which has no tower for sound: the samples of each 40 ms are normed and projected. Gemma Team 2026."""

from __future__ import annotations

from ...formats.config import ConfigReader
from ...formats.harmless_keys import HARMLESS_KEYS
from ...ir.graph import Graph, Parameter, Source, Value
from ...ir.spec import HearingSpec, ModelSpec
from ...ir.speech import FRAMES
from ..graph_parts import GraphParts

PARTS = {"embed_audio.": "embed_audio."}
PROJECTION, ONES = "embed_audio.embedding_projection", "embed_audio.ones"
FINAL_NORM = "model.norm.weight"


def read_config(config: ConfigReader) -> HearingSpec:
    audio = config.section("audio_config") or ConfigReader({}, config.where)
    size = audio.integer("audio_embed_dim", default=640)
    for key in ("output_proj_dims", "hidden_size", "audio_samples_per_token"):
        audio.expect(key, size)
    spec = HearingSpec(
        model_type=config.text("model_type"),
        row_elements=size,
        norm_eps=audio.number("rms_norm_eps", default=1e-6),
    )
    audio.finish(HARMLESS_KEYS | {"model_type"})
    return spec


def hear(spec: ModelSpec) -> Graph:
    hearing = spec.hearing
    assert hearing is not None
    parts = GraphParts(Graph(), hearing.norm_eps, norm_bias=False, centered=False)
    parts.graph.inputs[FRAMES] = Value(FRAMES, ("S", hearing.row_elements), "float32")
    return projected(parts, FRAMES, spec)


def projected(parts: GraphParts, x: str, spec: ModelSpec) -> Graph:
    """The projector of both kinds of Gemma 4: rows (S, columns) are normed without factors, and projected."""
    graph, columns = parts.graph, parts.graph.shape_of(x)[1]
    assert isinstance(columns, int), columns
    # The factors of a norm that all models have, times zero, plus one.
    sizes = [min(spec.hidden_size, columns - start) for start in range(0, columns, spec.hidden_size)]
    sources = tuple(Source(FINAL_NORM, 0, size, offset=1.0, factor=0.0) for size in sizes)
    graph.parameters[ONES] = Parameter(ONES, sources, None)
    assert spec.hearing is not None
    attrs = {"eps": spec.hearing.norm_eps, "dtype": "float32"}
    x = graph.add("rms_norm", {"x": x, "weight": ONES}, name="embed_audio.normed", **attrs)
    graph.outputs = {"rows": parts.linear([(PROJECTION, spec.hidden_size)], x, bias=False)}
    return graph
