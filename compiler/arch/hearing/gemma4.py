"""Gemma 4 E2B and E4B: a Conformer (Gulati et al. 2020) over log-mel frames, whose rows see those before them only.
Two convolutions with strides make a row of four frames; the inputs and outputs of each projection may have bounds.
Gemma Team 2026.

The importer (`formats/gemma4_ears.py`) makes the filters of the convolutions, the factors of queries and keys, and the
heads of distances (Dai et al. 2019) of the tensors on disk.
"""

from __future__ import annotations

from ...formats.config import ConfigReader
from ...formats.harmless_keys import HARMLESS_KEYS
from ...ir.graph import Graph, Parameter, Source, Value
from ...ir.spec import KEY_TILE, HearingSpec, ModelSpec
from ...ir.speech import FRAMES, ROW_FRAMES
from ..decoder_config import read_activation, read_num_layers
from ..graph_parts import GraphParts
from .gemma4_unified import projected

PARTS = {"audio_tower.": "audio_tower.", "embed_audio.": "embed_audio."}
TOWER, DISTANCE_ROWS = "audio_tower", "audio_tower.distance_rows"
SUBSAMPLING = f"{TOWER}.subsample_conv_projection"
# The frames of a row, and how often their number, and that of their bands, is halved.
FRAMES_OF_ROW, HALVINGS = 4, 2
# From which bound on the clipping of activations during training changes nothing.
NO_CLIPPING = 1e9
UNUSED_KEYS = frozenset({"model_type", "attention_invalid_logits_value", "attention_chunk_size"})


def read_config(config: ConfigReader) -> HearingSpec:
    audio = config.section("audio_config") or ConfigReader({}, config.where)
    size, heads = audio.integer("hidden_size", default=1024), audio.integer("num_attention_heads", default=8)
    if size % heads or size % 2:
        raise audio.unsupported("num_attention_heads", f"{heads} heads in 'hidden_size' {size} are not supported")
    left = audio.integer("attention_context_left", default=13)
    audio.expect("attention_context_right", 0)
    audio.expect("attention_chunk_size", left - 1)
    channels = audio.numbers("subsampling_conv_channels") if audio.has("subsampling_conv_channels") else (128.0, 32.0)
    if len(channels) != HALVINGS or channels[0] % 2**HALVINGS:
        # There are as many bands: the projection behind the convolutions has inputs for them.
        raise audio.unsupported("subsampling_conv_channels", f"{list(channels)} are not supported")
    if audio.number("gradient_clipping", default=1e10) < NO_CLIPPING:
        raise audio.unsupported("gradient_clipping", "bounds of activations are not supported")
    spec = HearingSpec(
        model_type=config.text("model_type"),
        row_elements=FRAMES_OF_ROW * int(channels[0]),
        whole=True,
        norm_eps=audio.number("rms_norm_eps", default=1e-6),
        hidden_size=size,
        num_layers=read_num_layers(audio) if audio.has("num_hidden_layers") else 12,
        num_heads=heads,
        activation=read_activation(audio, "hidden_act", "silu"),
        channels=(int(channels[0]), int(channels[1])),
        taps=audio.integer("conv_kernel_size", default=5),
        window=left - 1,
        softcap=audio.number("attention_logit_cap", default=50.0),
        residual=audio.number("residual_weight", default=0.5),
        output_size=audio.integer("output_proj_dims", default=1536),
        bounded=audio.flag("use_clipped_linears", default=True),
    )
    audio.finish(HARMLESS_KEYS | UNUSED_KEYS)
    return spec


def hear(spec: ModelSpec) -> Graph:
    hearing = spec.hearing
    assert hearing is not None
    ears = Gemma4Ears(hearing)
    x = ears.subsampled()
    for layer in range(hearing.num_layers):
        x = ears.layer(f"{TOWER}.layers.{layer}", x)
    return projected(ears, ears.linear([(f"{TOWER}.output_proj", hearing.output_size)], x), spec)


class Gemma4Ears(GraphParts):
    """The nodes of the tower."""

    def __init__(self, spec: HearingSpec) -> None:
        super().__init__(Graph(), 1e-6, norm_bias=False, centered=False)
        self.spec = spec
        self.graph.inputs |= {
            FRAMES: Value(FRAMES, ("S", spec.row_elements), "float32"),
            ROW_FRAMES: Value(ROW_FRAMES, ("S",), "int32"),
            "positions": Value("positions", ("S",), "int32"),
            "seq_starts": Value("seq_starts", (["add", "B", 1],), "int32"),
        }

    def subsampled(self) -> str:
        """A row of each four frames (S, hidden size). Those that are missing at the end are zeros for both layers."""
        x, steps, places, inputs = FRAMES, FRAMES_OF_ROW, self.spec.channels[0], 1
        for number, channels in enumerate(self.spec.channels):
            module = f"{SUBSAMPLING}.layer{number}"
            weight = self.vector(f"{module}.conv.weight", 9 * inputs * channels)
            attrs = {"size": 3, "before": 1, "width": 3, "stride": 2, "steps": steps, "places": places}
            read = {"x": x, "positions": "positions", "weight": weight, "row_frames": ROW_FRAMES}
            x = self.graph.add("convolve", read, name=f"{module}.out", **attrs, frames=FRAMES_OF_ROW)
            steps, places, inputs = steps // 2, places // 2, channels
            # A norm of the channels of each place, of which all have the same factors.
            groups, name = steps * places, f"{module}.norm.weights"
            source = Source(f"{module}.norm.weight", 0, channels)
            self.graph.parameters[name] = Parameter(name, (source,) * groups, None)
            normed = {"eps": self.spec.norm_eps, "dtype": "float32", "centered": True, "groups": groups}
            x = self.graph.add("rms_norm", {"x": x, "weight": name}, name=f"{module}.normed", **normed)
            x = self.graph.add("activate", {"x": x}, name=f"{module}.activated", activation="relu")
        return self.linear([(f"{SUBSAMPLING}.input_proj_linear", self.spec.hidden_size)], x, bias=False)

    def layer(self, here: str, x: str) -> str:
        x = self._feed_forward(f"{here}.feed_forward1", x)
        attended = self._attended(f"{here}.self_attn", self.norm(f"{here}.norm_pre_attn", x))
        y = self.bounded(f"{here}.self_attn.post", attended, self.spec.hidden_size)
        x = self.add(x, self.norm(f"{here}.norm_post_attn", y), f"{here}.between")
        x = self._convolved(f"{here}.lconv1d", x)
        return self.norm(f"{here}.norm_out", self._feed_forward(f"{here}.feed_forward2", x))

    def bounded(self, module: str, x: str, rows: int, first: int = 0, part: str = "") -> str:
        """A projection, or ``rows`` of one from ``first`` on, whose inputs and outputs have bounds if the tower has
        any.
        """
        columns = self.graph.shape_of(x)[1]
        assert isinstance(columns, int)
        stored, name = f"{module}.linear.weight", f"{module}{part}.linear.weight"
        self.graph.parameters[name] = Parameter(name, (Source(stored, first, first + rows),), columns)
        x = self._clamped(f"{module}{part}.clamped", f"{module}.input_bounds", x)
        y = self.graph.add("linear", {"x": x, "weight": name}, name=f"{module}{part}.linear.out", dtype="float32")
        return self._clamped(f"{module}{part}.bounded", f"{module}.output_bounds", y)

    def _clamped(self, name: str, bounds: str, x: str) -> str:
        if not self.spec.bounded:
            return x
        return self.graph.add("clamp", {"x": x, "bounds": self.vector(bounds, 2)}, name=name)

    def _feed_forward(self, here: str, x: str) -> str:
        size = self.spec.hidden_size
        y = self.bounded(f"{here}.ffw_layer_1", self.norm(f"{here}.pre_layer_norm", x), 4 * size)
        y = self.graph.add("activate", {"x": y}, name=f"{here}.activated", activation=self.spec.activation)
        y = self.bounded(f"{here}.ffw_layer_2", y, size)
        # The norm behind it has half of its factors.
        name, source = f"{here}.post_layer_norm.weights", f"{here}.post_layer_norm.weight"
        self.graph.parameters[name] = Parameter(name, (Source(source, 0, size, factor=self.spec.residual),), None)
        normed = {"eps": 1e-6, "dtype": "float32"}
        y = self.graph.add("rms_norm", {"x": y, "weight": name}, name=f"{here}.post_layer_norm.out", **normed)
        return self.add(x, y, f"{here}.added")

    def _attended(self, here: str, x: str) -> str:
        """Queries and keys have factors behind their bounds."""
        spec, size, made = self.spec, self.spec.hidden_size, None
        for index, name in enumerate("qkv"):
            module, weight = f"{here}.{name}_proj", f"{here}.{name}_proj.linear.weight"
            self.graph.parameters[weight] = Parameter(weight, (Source(weight, 0, size),), size)
            inputs = {"x": self._clamped(f"{module}.clamped", f"{module}.input_bounds", x), "weight": weight}
            attrs = {"columns": 3 * size, "offset": index * size, "dtype": "float32"}
            if spec.bounded:
                inputs["store0_bounds"] = self.vector(f"{module}.output_bounds", 2)
                attrs["store"] = [{"op": "clamp"}]
            if made is not None:
                inputs["into"] = made
            made = self.graph.add("linear", inputs, name=f"{module}.out", **attrs)
        assert made is not None
        # A filter of one step for each column is a factor.
        factors = self.vector(f"{here}.qkv_factors", 3 * size)
        inputs = {"x": made, "positions": "positions", "weight": factors}
        scaled = self.graph.add("convolve", inputs, name=f"{here}.scaled", size=1, before=0, depthwise=True)
        qkv = self.graph.add(
            "slice_columns", {"x": scaled}, name=f"{here}.qkv", start=0, stop=3 * size, dtype="activation"
        )
        distances = 2 * (spec.sound_rows + KEY_TILE) - 1
        return self.graph.add(
            "ragged_attention",
            {
                "qkv": qkv,
                "positions": "positions",
                "seq_starts": "seq_starts",
                "distance_heads": self.vector(f"{here}.distance_heads", 2 * spec.window * size),
                "distance_rows": self.vector(DISTANCE_ROWS, distances),
            },
            name=f"{here}.attended",
            causal=True,
            window=spec.window,
            scale=1.0,
            softcap=spec.softcap,
            head_dim=size // spec.num_heads,
            num_kv_heads=spec.num_heads,
        )

    def _convolved(self, here: str, x: str) -> str:
        """The convolution over the rows before, between two projections. The second half of the first one gates."""
        spec, size = self.spec, self.spec.hidden_size
        normed = self.norm(f"{here}.pre_layer_norm", x, eps=spec.norm_eps)
        up, gate = (
            self.bounded(f"{here}.linear_start", normed, size, part * size, f".{name}")
            for part, name in enumerate(("up", "gate"))
        )
        y = self.graph.add("gate", {"gate": gate, "up": up}, name=f"{here}.gated", activation="sigmoid")
        weight = self.vector(f"{here}.depthwise_conv1d.weight", spec.taps * size)
        attrs = {"size": spec.taps, "before": spec.taps - 1, "depthwise": True}
        inputs = {"x": y, "positions": "positions", "weight": weight}
        y = self.graph.add("convolve", inputs, name=f"{here}.convolved", **attrs)
        y = self.norm(f"{here}.conv_norm", y, eps=spec.norm_eps)
        y = self.graph.add("activate", {"x": y}, name=f"{here}.activated", activation=spec.activation)
        return self.add(x, self.bounded(f"{here}.linear_end", y, size), f"{here}.added")
