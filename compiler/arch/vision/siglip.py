"""The tower of SigLIP (Zhai et al. 2023): patches with learned positions, and layers that normalize before attention
and feed-forward. A tile's patches see each other, and no other tile.
"""

from __future__ import annotations

from ...formats.config import ConfigReader
from ...formats.harmless_keys import HARMLESS_KEYS
from ...ir.graph import Constant, Graph, Value
from ...ir.ops import Type
from ...ir.rope import inverse_frequencies
from ...ir.spec import RopeSpec, VisionSpec
from ..decoder_config import read_activation, read_num_layers
from ..graph_parts import GraphParts

CHANNELS = 3
# Heads and classes of towers that are only for them: a vector of the complete picture.
HARMLESS = HARMLESS_KEYS | {"model_type", "vision_use_head"}


def read_tower(
    config: ConfigReader, model_type: str, *, hidden_size: int, num_layers: int, num_heads: int, patch: int, block: int
) -> VisionSpec:
    """The spec of a section "vision_config", without positions. The numbers but ``block`` are defaults."""
    config.expect("num_channels", CHANNELS)
    size = config.integer("hidden_size", default=hidden_size)
    heads = config.integer("num_attention_heads", default=num_heads)
    if size % heads:
        raise config.contradiction(
            "num_attention_heads", f"'hidden_size' is {size}, which is no multiple of {heads} heads"
        )
    return VisionSpec(
        model_type=model_type,
        hidden_size=size,
        num_layers=read_num_layers(config) if config.has("num_hidden_layers") else num_layers,
        num_heads=heads,
        intermediate_size=config.integer("intermediate_size", default=3072),
        activation=read_activation(config, "hidden_act", "gelu_pytorch_tanh"),
        norm_eps=config.number("layer_norm_eps", default=1e-6),
        patch_elements=CHANNELS * config.integer("patch_size", default=patch) ** 2,
        positions=1,
        block=block,
    )


class TowerGraph(GraphParts):
    """The nodes of a tower and a projector. ``prefix`` precedes the names of the tower's tensors. Norms are LayerNorms
    if ``centered``, and otherwise by the root mean square.
    """

    def __init__(self, spec: VisionSpec, taps: int, prefix: str, *, centered: bool = True) -> None:
        super().__init__(Graph(), spec.norm_eps, norm_bias=centered, centered=centered)
        self.spec, self._prefix = spec, prefix
        inputs: dict[str, Type] = {
            "patches": (("V", spec.patch_elements), "float32"),
            "patch_rows": (("V", taps), "int32"),
            "patch_weights": (("V", taps), "float32"),
            "patch_starts": ((["add", "I", 1],), "int32"),
        }
        self.graph.inputs |= {name: Value(name, shape, dtype) for name, (shape, dtype) in inputs.items()}

    def tower(self) -> str:
        """The rows of the patches behind the last layer, normed: (V, hidden_size)."""
        spec, prefix = self.spec, self._prefix
        x = self.linear([(f"{prefix}embeddings.patch_embedding", spec.hidden_size)], "patches")
        x = self.placed(x, "embeddings.position_embedding.weight")
        for layer in range(spec.num_layers):
            x = self._layer(f"{prefix}encoder.layers.{layer}", x)
        return self.norm(f"{prefix}post_layernorm", x)

    def placed(self, x: str, name: str) -> str:
        """The rows with the embeddings of their places, from the table of that name."""
        table = self.matrix(f"{self._prefix}{name}", self.spec.positions, self.spec.hidden_size)
        places = {name: name for name in ("patch_rows", "patch_weights")}
        return self.graph.add("mix_rows", {"x": x, "table": table, **places}, name=f"{self._prefix}placed")

    def rotation(self, theta: float, by_column: tuple[int, int]) -> str:
        """The angles of each patch: the pairs of a head from ``by_column[0]`` to ``by_column[1]`` turn by its column,
        and as many others by its row.
        """
        if "patch_turns" not in self.graph.makers():
            half = self.spec.head_dim // 2
            of_axis = inverse_frequencies(RopeSpec(theta=theta), half, 1)
            attrs = {"inverse_frequencies": [*of_axis, *of_axis], "scale": 1.0}
            shape = (self.spec.tile_side, half, 2)
            self.graph.constants["patch_angles"] = Constant("patch_angles", "rope", shape, attrs)
            self.graph.inputs["patch_positions"] = Value("patch_positions", ("V", 2), "int32")
            inputs = {"table": "patch_angles", "axis_positions": "patch_positions"}
            self.graph.add("rope_rows", inputs, name="patch_turns", axes=[[1, *by_column, 1]])
        return "patch_turns"

    def _layer(self, here: str, x: str) -> str:
        size, head_dim = self.spec.hidden_size, self.spec.head_dim
        heads = [(f"{here}.self_attn.{name}_proj", size) for name in "qkv"]
        qkv = self.linear(heads, self.norm(f"{here}.layer_norm1", x), f"{here}.self_attn.qkv_proj", dtype="activation")
        attended = self.graph.add(
            "ragged_attention",
            {"qkv": qkv, "seq_starts": "patch_starts"},
            name=f"{here}.attended",
            causal=False,
            head_dim=head_dim,
            num_kv_heads=self.spec.num_heads,
        )
        x = self.add(x, self.linear([(f"{here}.self_attn.out_proj", size)], attended), f"{here}.between")
        y = self.norm(f"{here}.layer_norm2", x)
        y = self.linear([(f"{here}.mlp.fc1", self.spec.intermediate_size)], y, activation=self.spec.activation)
        return self.add(x, self.linear([(f"{here}.mlp.fc2", size)], y), f"{here}.out")

    def fold(self, x: str, mode: str = "join") -> str:
        """The patches of each block as one row."""
        return self.graph.add("fold_rows", {"x": x}, name="folded", size=self.spec.block**2, mode=mode)

    def finish(self, features: str) -> Graph:
        self.graph.outputs = {"features": features}
        return self.graph
