"""Qwen3-VL and Qwen3.5: a tower with rotations by row and column and a table of positions that is interpolated, whose
blocks of patches are joined and pass through two layers. In Qwen3-VL, blocks behind earlier layers become features for
the first layers of the text model, too (DeepStack). Bai et al. 2025.

A patch joins two frames. With the sum S of their weights and the difference D, W0 a + W1 b is S (a + b) / 2 +
D (a - b) / 2. A still picture is two equal frames, so it costs one projection; D is for the patches of videos alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...formats.config import ConfigReader
from ...formats.harmless_keys import HARMLESS_KEYS
from ...ir.graph import Graph, Parameter, Source, Value
from ...ir.spec import ModelSpec, VisionSpec
from ..decoder_config import read_activation
from .siglip import CHANNELS, TowerGraph

# MLX names it like the other towers.
PARTS = {"visual.": "visual.", "vision_tower.": "visual."}
HARMLESS = HARMLESS_KEYS | {"model_type"}
# transformers has no key for it.
# The difference of the weights of two frames.
CHANGE = "visual.patch_embed.change"
THETA, NORM_EPS = 10_000.0, 1e-6
# transformers' defaults: those of a rotation of 64 pairs, and of one of 32.
SECTIONS = {"qwen3_vl": (24, 20, 20), "qwen3_5": (11, 11, 10)}


def read_config(config: ConfigReader) -> VisionSpec:
    model_type = config.text("model_type")
    vision = config.section("vision_config") or ConfigReader({}, config.where)
    vision.expect("in_channels", CHANNELS)
    rope = vision.section("rope_parameters")
    if rope is not None:
        rope.expect("rope_type", "axial")
        rope.expect("rope_theta", THETA)
        rope.finish()
    size, heads = vision.integer("hidden_size", default=1152), vision.integer("num_heads", default=16)
    if size % (4 * heads):
        raise vision.contradiction("num_heads", f"'hidden_size' is {size}, no multiple of 4 for each of {heads} heads")
    layers = vision.integer("depth", default=27)
    deepstack = (vision.integers("deepstack_visual_indexes") or ()) if vision.has("deepstack_visual_indexes") else None
    if deepstack is None:
        deepstack = (8, 16, 24) if model_type == "qwen3_vl" else ()
    if any(layer >= layers for layer in deepstack) or len(set(deepstack)) < len(deepstack):
        raise vision.contradiction(
            "deepstack_visual_indexes", f"'deepstack_visual_indexes' are {list(deepstack)} of {layers} layers"
        )
    spec = VisionSpec(
        model_type=model_type,
        hidden_size=size,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=vision.integer("intermediate_size", default=4304),
        activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        norm_eps=NORM_EPS,
        patch_elements=CHANNELS * vision.integer("patch_size", default=16) ** 2,
        positions=vision.integer("num_position_embeddings", default=2304),
        block=vision.integer("spatial_merge_size", default=2),
        deepstack_layers=deepstack,
        mrope_section=_section(config, model_type),
    )
    # The processor's file names its frames, and the text model its hidden size; see `formats/towers.py`.
    vision.ignore("out_hidden_size", "temporal_patch_size")
    vision.finish(HARMLESS)
    return spec


def _section(config: ConfigReader, model_type: str) -> tuple[int, ...]:
    """The pairs of the text model's rotation that turn by time, row and column."""
    text = config.section("text_config")
    found: set[tuple[int, ...]] = set()
    for key in ("rope_parameters", "rope_scaling"):
        rope = None if text is None else text.section(key)
        if rope is None:
            continue
        rope.expect("mrope_interleaved", True)
        section = rope.integers("mrope_section")
        if section is not None:
            found.add(tuple(section))
    if len(found) > 1 or any(len(each) != 3 for each in found):
        raise config.contradiction("text_config", f"'mrope_section' is {sorted(found)}; it must be three numbers")
    return next(iter(found), SECTIONS[model_type])


def see(spec: ModelSpec, taps: int) -> Graph:
    vision = spec.vision
    assert vision is not None
    tower = QwenTower(vision, taps)
    x, blocks = tower.placed_patches(), {}
    for layer in range(vision.num_layers):
        x = tower.layer(f"visual.blocks.{layer}", x)
        if layer in vision.deepstack_layers:
            here = f"visual.deepstack_merger_list.{vision.deepstack_layers.index(layer)}"
            blocks[here] = tower.merged(here, x, joins=True)
    tower.project({"visual.merger": tower.merged("visual.merger", x), **blocks}, spec.hidden_size)
    return tower.graph


class QwenTower(TowerGraph):
    """The nodes of a tower and its mergers."""

    def __init__(self, spec: VisionSpec, taps: int) -> None:
        super().__init__(spec, taps, "visual.")

    def placed_patches(self) -> str:
        size, elements = self.spec.hidden_size, self.spec.patch_elements
        x = self.linear([("visual.patch_embed.proj", size)], "patches")
        if self.spec.frames > 1:
            self.graph.inputs["changes"] = Value("changes", ("C", elements), "float32")
            self.graph.inputs["change_rows"] = Value("change_rows", ("C",), "int32")
            made = self.linear([(CHANGE, size)], "changes", bias=False)
            inputs = {"into": x, "features": made, "feature_rows": "change_rows"}
            x = self.graph.add("place_rows", inputs, name="visual.patch_embed.changed", adds=True)
        return self.placed(x, "pos_embed.weight")

    def layer(self, here: str, x: str) -> str:
        size, heads = self.spec.hidden_size, {"head_dim": self.spec.head_dim, "num_kv_heads": self.spec.num_heads}
        normed = self.norm(f"{here}.norm1", x)
        qkv = self.linear([(f"{here}.attn.qkv", 3 * size)], normed, dtype="activation")
        # Half of the pairs turn by the row of a patch, half by its column.
        turns = self.rotation(THETA, (self.spec.head_dim // 4, self.spec.head_dim // 2))
        inputs = {"qkv": qkv, "table": turns}
        qkv = self.graph.add("rope_heads", inputs, name=f"{here}.rotated", **heads)
        inputs = {"qkv": qkv, "seq_starts": "patch_starts"}
        attended = self.graph.add("ragged_attention", inputs, name=f"{here}.attended", causal=False, **heads)
        x = self.add(x, self.linear([(f"{here}.attn.proj", size)], attended), f"{here}.between")
        y = self.norm(f"{here}.norm2", x)
        inner = [(f"{here}.mlp.linear_fc1", self.spec.intermediate_size)]
        y = self.linear(inner, y, activation=self.spec.activation)
        return self.add(x, self.linear([(f"{here}.mlp.linear_fc2", size)], y), f"{here}.out")

    def merged(self, here: str, x: str, *, joins: bool = False) -> str:
        """The inner row of a merger for each block of patches, which are normed one by one, or with ``joins``
        together.
        """
        x = x if joins else self.norm(f"{here}.norm", x)
        x = self.graph.add("fold_rows", {"x": x}, name=f"{here}.folded", size=self.spec.block**2, mode="join")
        x = self.norm(f"{here}.norm", x) if joins else x
        size = self.spec.hidden_size * self.spec.block**2
        return self.linear([(f"{here}.linear_fc1", size)], x, activation="gelu")

    def project(self, blocks: Mapping[str, str], columns: int) -> None:
        """The features of all mergers, one behind the other: the last projection of each fills its columns."""
        size, total, made = self.spec.hidden_size * self.spec.block**2, len(blocks) * columns, None
        sources = tuple(Source(f"{here}.linear_fc2.bias", 0, columns) for here in blocks)
        self.graph.parameters["features.bias"] = Parameter("features.bias", sources, None)
        for index, (here, x) in enumerate(blocks.items()):
            weight = self.matrix(f"{here}.linear_fc2.weight", columns, size)
            inputs = {"x": x, "weight": weight, "bias": "features.bias", "into": made}
            part = {"columns": total, "offset": index * columns} if len(blocks) > 1 else {}
            made = self.graph.add("linear", inputs, name=f"{here}.linear_fc2.out", dtype="float32", **part)
        assert made is not None
        self.graph.outputs = {"features": made}
