"""Gemma 4 (E2B, E4B, 26B-A4B, 31B): layers as those of its text model, with norms around each sub-layer, whose patches
rotate by column and row and are averaged in blocks. In E2B and E4B, the inputs and outputs of each projection have
bounds. Gemma Team 2026.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...formats.config import ConfigReader
from ...ir.graph import Graph, Parameter, Source
from ...ir.spec import ModelSpec, VisionSpec
from ..decoder_config import read_activation, read_num_layers
from .siglip import CHANNELS, HARMLESS, TowerGraph

PARTS = {"vision_tower.": "vision_tower.", "embed_vision.": "embed_vision."}
TOWER, THETA = "vision_tower", 100.0
# How many features the processor makes, and the head size of full layers, which the tower does not have.
UNUSED_KEYS = frozenset({"default_output_length", "global_head_dim", "max_position_embeddings"})


def read_config(config: ConfigReader) -> VisionSpec:
    vision = config.section("vision_config") or ConfigReader({}, config.where)
    text = config.section("text_config") or ConfigReader({}, config.where)
    both_ways = text.optional_text("use_bidirectional_attention") == "vision"
    vision.expect("attention_bias", False)
    rope = vision.section("rope_parameters")
    if rope is not None:
        # Published files call it "default".
        rope.expect("rope_type", "axial", "default")
        rope.expect("rope_theta", THETA)
        rope.finish()
    size, heads = vision.integer("hidden_size", default=768), vision.integer("num_attention_heads", default=12)
    if vision.integer("num_key_value_heads", default=12) != heads:
        raise vision.unsupported(
            "num_key_value_heads", f"'num_key_value_heads' must be 'num_attention_heads', which is {heads}"
        )
    if vision.integer("head_dim", default=64) * heads != size or size % (4 * heads):
        raise vision.contradiction(
            "head_dim", f"{heads} heads of 'head_dim', a multiple of 4, must fill 'hidden_size', which is {size}"
        )
    spec = VisionSpec(
        model_type=config.text("model_type"),
        hidden_size=size,
        num_layers=read_num_layers(vision) if vision.has("num_hidden_layers") else 16,
        num_heads=heads,
        intermediate_size=vision.integer("intermediate_size", default=3072),
        activation=read_activation(vision, "hidden_activation", "gelu_pytorch_tanh"),
        norm_eps=vision.number("rms_norm_eps", default=1e-6),
        patch_elements=CHANNELS * vision.integer("patch_size", default=16) ** 2,
        positions=2 * vision.integer("position_embedding_size", default=10_240),
        block=vision.integer("pooling_kernel_size", default=3),
        projector_norm=vision.flag("standardize", default=False),
        bounded=vision.flag("use_clipped_linears", default=False),
        both_ways="windows" if both_ways else "none",
    )
    vision.finish(HARMLESS | UNUSED_KEYS)
    return spec


def see(spec: ModelSpec, taps: int) -> Graph:
    vision = spec.vision
    assert vision is not None
    tower = Gemma4Tower(vision, taps)
    x = tower.placed_patches()
    for layer in range(vision.num_layers):
        x = tower.layer(f"{TOWER}.encoder.layers.{layer}", x, is_last=layer == vision.num_layers - 1)
    return tower.project(x, spec.hidden_size)


class Gemma4Tower(TowerGraph):
    """The nodes of a tower."""

    def __init__(self, spec: VisionSpec, taps: int) -> None:
        super().__init__(spec, taps, f"{TOWER}.", centered=False)

    def placed_patches(self) -> str:
        """Patches are those of -1 to 1: see `formats/towers.py`."""
        x = self.linear([(f"{TOWER}.patch_embedder.input_proj", self.spec.hidden_size)], "patches", bias=False)
        return self.placed(x, "patch_embedder.position_embedding_table")

    def layer(self, here: str, x: str, *, is_last: bool) -> str:
        size, inner = self.spec.hidden_size, self.spec.intermediate_size
        attended = self._attended(here, self.norm(f"{here}.input_layernorm", x))
        y = self.bounded(f"{here}.self_attn.o_proj", attended, size)
        x = self.add(x, self.norm(f"{here}.post_attention_layernorm", y), f"{here}.between")
        y = self.norm(f"{here}.pre_feedforward_layernorm", x)
        parts = {name: self.bounded(f"{here}.mlp.{name}_proj", y, inner) for name in ("gate", "up")}
        y = self.graph.add("gate", parts, name=f"{here}.gated", activation=self.spec.activation)
        y = self.bounded(f"{here}.mlp.down_proj", y, size)
        return self.add(x, self._last_norm(f"{here}.post_feedforward_layernorm", y, is_last=is_last), f"{here}.out")

    def bounded(self, module: str, x: str, rows: int) -> str:
        """A projection whose inputs and outputs have bounds, if the tower has any."""
        if not self.spec.bounded:
            return self.linear([(f"{module}.linear", rows)], x, bias=False)
        y = self.linear([(f"{module}.linear", rows)], self._clamped(module, x), bias=False)
        inputs = {"x": y, "bounds": self.vector(f"{module}.output_bounds", 2)}
        return self.graph.add("clamp", inputs, name=f"{module}.bounded")

    def _clamped(self, module: str, x: str) -> str:
        inputs = {"x": x, "bounds": self.vector(f"{module}.input_bounds", 2)}
        return self.graph.add("clamp", inputs, name=f"{module}.clamped")

    def _last_norm(self, module: str, y: str, *, is_last: bool) -> str:
        """The norm behind a layer's feed-forward. That of the last layer also subtracts what the standard form of the
        features subtracts from the average of a block times sqrt(hidden_size).
        """
        if not (is_last and self.spec.projector_norm):
            return self.norm(module, y)
        size, bias = self.spec.hidden_size, f"{TOWER}.std_bias"
        self.graph.parameters[bias] = Parameter(bias, (Source(bias, 0, size, factor=-(size**-0.5)),), None)
        inputs = {"x": y, "weight": self.vector(f"{module}.weight", size), "bias": bias}
        return self.graph.add("rms_norm", inputs, name=f"{module}.out", eps=self.spec.norm_eps, dtype="float32")

    def _attended(self, here: str, x: str) -> str:
        """The first half of a head rotates by column and the second by row, each as pairs (i, i + D/4). With the second
        and the third quarter of all heads exchanged, these are pairs (i, i + D/2) of one rotation.
        """
        spec, graph = self.spec, self.graph
        heads, size, quarter = spec.num_heads, spec.hidden_size, spec.head_dim // 4
        order = (0, 2, 1, 3)
        rows = [head * 4 + part for head in range(heads) for part in order]
        sources = {name: f"{here}.self_attn.{name}_proj.linear.weight" for name in "qkv"}
        of_weights = {
            name: tuple(Source(source, row * quarter, (row + 1) * quarter) for row in rows)
            if name != "v"
            else (Source(source, 0, size),)
            for name, source in sources.items()
        }
        norms = f"{here}.self_attn.qk_norm"
        of_norms = [
            Source(f"{here}.self_attn.{name}_norm.weight", part * quarter, (part + 1) * quarter)
            for name in "qk"
            for part in order
        ]
        graph.parameters[norms] = Parameter(norms, tuple(of_norms), None)
        qkv = self._bounded_heads(here, x, of_weights) if spec.bounded else self._heads(here, x, of_weights)
        attrs = {"head_dim": spec.head_dim, "num_kv_heads": heads}
        qkv = graph.add(
            "rope_heads",
            {"qkv": qkv, "table": self.rotation(THETA, (0, quarter)), "qk_norm": norms},
            name=f"{here}.rotated",
            eps=spec.norm_eps,
            norms_values=True,
            **attrs,
        )
        inputs = {"qkv": qkv, "seq_starts": "patch_starts"}
        return graph.add("ragged_attention", inputs, name=f"{here}.attended", causal=False, scale=1.0, **attrs)

    def _heads(self, here: str, x: str, of_weights: Mapping[str, tuple[Source, ...]]) -> str:
        weight = f"{here}.self_attn.qkv.weight"
        sources = tuple(each for one in of_weights.values() for each in one)
        self.graph.parameters[weight] = Parameter(weight, sources, self.spec.hidden_size)
        return self.graph.add("linear", {"x": x, "weight": weight}, name=f"{here}.qkv", dtype="activation")

    def _bounded_heads(self, here: str, x: str, of_weights: Mapping[str, tuple[Source, ...]]) -> str:
        """Three projections with bounds of their own, each of which fills its columns."""
        size, made = self.spec.hidden_size, None
        for index, (name, sources) in enumerate(of_weights.items()):
            module = f"{here}.self_attn.{name}_proj"
            weight = f"{module}.linear.weight"
            self.graph.parameters[weight] = Parameter(weight, sources, size)
            inputs = {
                "x": self._clamped(module, x),
                "weight": weight,
                "store0_bounds": self.vector(f"{module}.output_bounds", 2),
                "into": made,
            }
            attrs = {"store": [{"op": "clamp"}], "columns": 3 * size, "offset": index * size}
            made = self.graph.add("linear", inputs, name=f"{module}.out", dtype="activation", **attrs)
        assert made is not None
        return made

    def project(self, x: str, columns: int) -> Graph:
        """The averages of blocks, in their standard form if there is one, normed and projected."""
        size, eps = self.spec.hidden_size, self.spec.norm_eps
        x = self.fold(x, "mean")
        # The average is multiplied by sqrt(hidden_size) before it is normed, which only its eps notices.
        last_eps = eps / size
        if self.spec.projector_norm:
            # The last norm takes the length of a row out again. The variance of the standard form is about 1, beside
            # which its eps is nothing; so it must be beside the square of any scale.
            scale = self.vector(f"{TOWER}.std_scale", size)
            x, last_eps = self._folded_norm("standard", x, scale, 1e-12), 1e-12
        ones = f"{TOWER}.ones"
        source = Source(f"{TOWER}.encoder.layers.0.input_layernorm.weight", 0, size, offset=1.0, factor=0.0)
        self.graph.parameters[ones] = Parameter(ones, (source,), None)
        x = self._folded_norm("folded.normed", x, ones, last_eps)
        return self.finish(self.linear([("embed_vision.embedding_projection", columns)], x, bias=False))

    def _folded_norm(self, name: str, x: str, weight: str, eps: float) -> str:
        return self.graph.add("rms_norm", {"x": x, "weight": weight}, name=name, eps=eps, dtype="float32")
