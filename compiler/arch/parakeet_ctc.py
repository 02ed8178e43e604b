"""Parakeet CTC: an encoder of sound, each of whose rows names a token or none. Rekesh et al. 2023 (Fast Conformer);
Gulati et al. 2020 (Conformer); Dai et al. 2019 (positions of its attention).

A row of the graph stands for eight frames, as long as the model's rows are: convolutions with strides read the eight
frames of a row, then four steps, then two. The importer (`formats/parakeet_files.py`) folds into the weights what is
constant: the factors of half a feed-forward, the normalization behind a convolution, and the heads of distances.
"""

from __future__ import annotations

from typing import Any

from ..formats.config import ConfigReader
from ..formats.harmless_keys import HARMLESS_KEYS
from ..ir.graph import Graph, Value
from ..ir.spec import ConformerSpec, ModelSpec, RopeSpec
from ..ir.speech import FRAMES, ROW_FRAMES
from .decoder_config import read_activation, read_num_layers
from .encoder import EncoderGraph

__all__ = ["encode_sound", "read_config"]

ENCODER = "encoder"
SUBSAMPLING = f"{ENCODER}.subsampling"
EPS = 1e-5
# The rows of a window: 30 seconds. Parakeet attends to all rows of a window, and there are heads for each distance.
WINDOW_ROWS = 375
# The frames of a row, and the convolutions that halve them.
FRAMES_OF_ROW, HALVINGS = 8, 3
OTHER_KEYS = frozenset({"ctc_loss_reduction", "ctc_zero_infinity", "dropout_positions", "is_encoder_decoder"})


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "parakeet_ctc"."""
    config.expect("architectures", ["ParakeetForCTC"], None)
    encoder = config.section("encoder_config")
    if encoder is None:
        raise config.unsupported("encoder_config", "'encoder_config' is missing; pass the files of a Parakeet model")
    encoder.expect("model_type", "parakeet_encoder")
    encoder.expect("subsampling_factor", FRAMES_OF_ROW)
    encoder.expect("subsampling_conv_kernel_size", 3)
    encoder.expect("subsampling_conv_stride", 2)
    hidden_size, heads = encoder.integer("hidden_size"), encoder.integer("num_attention_heads")
    encoder.expect("num_key_value_heads", heads, None)
    if hidden_size % heads or hidden_size // heads % 2:
        raise encoder.unsupported(
            "num_attention_heads", f"heads of {hidden_size} / {heads} elements ('hidden_size') are not supported"
        )
    size, mel_bins = encoder.integer("conv_kernel_size"), encoder.integer("num_mel_bins")
    if size % 2 == 0:
        raise encoder.unsupported("conv_kernel_size", f"'conv_kernel_size' is {size}; supported: odd numbers")
    if mel_bins % FRAMES_OF_ROW:
        raise encoder.unsupported("num_mel_bins", f"'num_mel_bins' is {mel_bins}; supported: multiples of 8")
    # The importer adds zeros for biases that a model does not have.
    for key in ("attention_bias", "convolution_bias", "scale_input"):
        encoder.flag(key, default=True)
    num_layers = read_num_layers(encoder)
    spec = ModelSpec(
        model_type=config.text("model_type"),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden_size // heads,
        intermediate_size=encoder.integer("intermediate_size"),
        max_position_embeddings=min(encoder.integer("max_position_embeddings", default=5000), WINDOW_ROWS),
        rms_norm_eps=EPS,
        rope=RopeSpec(theta=10_000.0),
        tie_word_embeddings=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        activation=read_activation(encoder, "hidden_act", "silu"),
        causal=False,
        unrotated=tuple(range(num_layers)),
        conformer=ConformerSpec(mel_bins, FRAMES_OF_ROW, encoder.integer("subsampling_conv_channels"), size),
    )
    encoder.finish(HARMLESS_KEYS | OTHER_KEYS)
    config.finish(HARMLESS_KEYS | OTHER_KEYS)
    return spec


def encode_sound(spec: ModelSpec, context: int) -> Graph:
    """The graph of one forward pass on a batch of windows of sound: the output "scores" (S, V) of each row's tokens."""
    encoder, conformer = EncoderGraph(spec, context), spec.conformer
    assert conformer is not None
    x = _subsampled(encoder, conformer)
    for layer in range(spec.num_layers):
        x = _layer(encoder, conformer, f"{ENCODER}.layers.{layer}", layer, x)
    encoder.graph.outputs = {"scores": encoder.linear([("ctc_head", spec.vocab_size)], x)}
    return encoder.graph


def _subsampled(encoder: EncoderGraph, conformer: ConformerSpec) -> str:
    """A row of each eight frames (S, hidden size)."""
    graph, channels = encoder.graph, conformer.channels
    steps, places = conformer.frames, conformer.mel_bins
    graph.inputs[FRAMES] = Value(FRAMES, ("S", steps * places), "float32")
    graph.inputs[ROW_FRAMES] = Value(ROW_FRAMES, ("S",), "int32")
    x, halving = FRAMES, {"size": 3, "before": 1, "width": 3, "stride": 2, "frames": conformer.frames}
    for number in range(HALVINGS):
        # The first convolution reads one channel, the others have one filter for each channel, and mix them then.
        module, sizes = f"{SUBSAMPLING}.layers.{max(0, 3 * number - 1)}", {"steps": steps, "places": places}
        x = _convolved(encoder, module, x, channels, 9, {**halving, **sizes, "depthwise": number > 0}, ROW_FRAMES)
        steps, places = steps // 2, places // 2
        if number:
            point = {"size": 1, "before": 0, "steps": steps, "places": places}
            x = _convolved(encoder, f"{SUBSAMPLING}.layers.{3 * number}", x, channels, channels, point)
        x = graph.add("activate", {"x": x}, name=f"{SUBSAMPLING}.{number}.activated", activation="relu")
    return encoder.linear([(f"{SUBSAMPLING}.linear", encoder.spec.hidden_size)], x)


def _convolved(
    encoder: EncoderGraph,
    module: str,
    x: str,
    channels: int,
    of_channel: int,
    attrs: dict[str, Any],
    frames: str | None = None,
) -> str:
    """``of_channel``: the weights of each of the result's channels."""
    inputs = {
        "x": x,
        "positions": encoder.input("positions"),
        "weight": encoder.vector(f"{module}.weight", of_channel * channels),
        "bias": encoder.vector(f"{module}.bias", channels),
        "row_frames": frames,
    }
    return encoder.graph.add("convolve", inputs, name=f"{module}.out", **attrs)


def _layer(encoder: EncoderGraph, conformer: ConformerSpec, module: str, layer: int, x: str) -> str:
    x = _feed_forward(encoder, f"{module}.feed_forward1", f"{module}.norm_feed_forward1", x)
    x = _attended(encoder, module, layer, x)
    x = _mixed_rows(encoder, conformer, module, x)
    x = _feed_forward(encoder, f"{module}.feed_forward2", f"{module}.norm_feed_forward2", x)
    return encoder.norm(f"{module}.norm_out", x)


def _feed_forward(encoder: EncoderGraph, module: str, norm: str, x: str) -> str:
    spec = encoder.spec
    inner = encoder.linear(
        [(f"{module}.linear1", spec.intermediate_size)], encoder.norm(norm, x), activation=spec.activation
    )
    return encoder.add(encoder.linear([(f"{module}.linear2", spec.hidden_size)], inner), x, f"{module}.added")


def _attended(encoder: EncoderGraph, module: str, layer: int, x: str) -> str:
    spec, distances = encoder.spec, encoder.spec.num_distances
    parts = [(f"{module}.self_attn.{role}_proj", spec.hidden_size) for role in "qkv"]
    normed = encoder.norm(f"{module}.norm_self_att", x)
    qkv = encoder.linear(parts, normed, f"{module}.self_attn.qkv_proj", dtype="activation")
    more = {
        "distance_heads": encoder.vector(f"{module}.self_attn.distance_heads", distances * spec.hidden_size),
        "distance_bias": encoder.vector(f"{module}.self_attn.distance_bias", distances * spec.num_heads),
    }
    attended = encoder.attention(layer, qkv, name=f"{module}.attended", more=more)
    mixed = encoder.linear([(f"{module}.self_attn.o_proj", spec.hidden_size)], attended)
    return encoder.add(mixed, x, f"{module}.after_attention")


def _mixed_rows(encoder: EncoderGraph, conformer: ConformerSpec, module: str, x: str) -> str:
    """The convolution over neighbouring rows, between two projections."""
    spec, conv = encoder.spec, f"{module}.conv"
    size, normed = spec.hidden_size, encoder.norm(f"{module}.norm_conv", x)
    # The second half of the first projection gates the first one.
    halves = []
    for part, name in enumerate(("up", "gate")):
        weight = encoder.part(f"{conv}.{name}.weight", f"{conv}.pointwise_conv1.weight", part * size, size, size)
        bias = encoder.part(f"{conv}.{name}.bias", f"{conv}.pointwise_conv1.bias", part * size, size, None)
        inputs = {"x": normed, "weight": weight, "bias": bias}
        halves.append(encoder.graph.add("linear", inputs, name=f"{conv}.{name}", dtype="float32"))
    up, gate = halves
    gated = encoder.graph.add("gate", {"gate": gate, "up": up}, name=f"{conv}.gated", activation="sigmoid")
    attrs = {"size": conformer.size, "before": conformer.size // 2, "depthwise": True}
    y = _convolved(encoder, f"{conv}.depthwise_conv", gated, size, conformer.size, attrs)
    y = encoder.graph.add("activate", {"x": y}, name=f"{conv}.activated", activation=spec.activation)
    mixed = encoder.linear([(f"{conv}.pointwise_conv2", size)], y)
    return encoder.add(mixed, x, f"{module}.after_conv")
