"""Moonshine: a decoder whose layers also attend to the rows of an encoder of sound, which reads the samples of a clip
of any length. Jeffries et al. 2024.

Three convolutions, of 127, 7 and 3 frames with strides of 64, 3 and 2, make a row of 384 samples. A norm over the whole
clip follows the first one. A row of the graph has the frames of 384 samples: 6 of the first convolution, and 2 of the
second one. Both read frames of the row behind, so two more rows than the encoder makes hold the last frames.
"""

from __future__ import annotations

from dataclasses import replace

from ..formats.config import ConfigReader
from ..formats.harmless_keys import HARMLESS_KEYS
from ..ir.graph import Graph, Parameter, Source, Value
from ..ir.rope import rotary_dim
from ..ir.rotary_pairs import RotaryPairs
from ..ir.spec import AudioSpec, ModelSpec
from ..ir.speech import ROW_FRAMES, SAMPLE_RATE
from . import decoder
from .decoder_config import read_activation, read_num_layers
from .encoder import EncoderGraph
from .rope_config import RopeSizes, read_rope
from .sources import ENCODER, Layer, append_sources, convolved, read_frames

__all__ = ["forward", "listen", "read_config"]

LAYOUT = decoder.DecoderLayout(
    # The inner projection of a feed-forward has the values first, then the gate.
    fused={"mlp.fc1": ("mlp.up_proj", "mlp.gate_proj")},
    centered_norms=True,
    interleaved=True,
)
EPS = 1e-5
# The size and the stride of each convolution.
CONVOLUTIONS = ((127, 64), (7, 3), (3, 2))
# The frames of a row, of the first and of the second convolution, and the rows that hold only frames for others.
FRAMES_OF_ROW, PAIR, ROWS_BEHIND = 6, 2, 2
# The samples that a row reads, to a multiple of 32: packed weights have groups of as many columns.
ROW_SAMPLES = 448
# The longest window, which is our choice: the rotation of the encoder bounds nothing.
SECONDS = 30
_FRAMES = (SECONDS * SAMPLE_RATE - CONVOLUTIONS[0][0]) // CONVOLUTIONS[0][1] + 1
POSITIONS = -(-_FRAMES // FRAMES_OF_ROW)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "moonshine"."""
    config.expect("is_encoder_decoder", True)
    config.expect("architectures", ["MoonshineForConditionalGeneration"])
    config.expect("attention_bias", False)
    config.expect("encoder_hidden_act", "gelu")
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("decoder_num_attention_heads")
    # transformers computes the encoder with the decoder's heads.
    for key in ("encoder_num_attention_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads"):
        config.expect(key, num_heads)
    if hidden_size % num_heads or hidden_size // num_heads % 2:
        raise config.unsupported(
            "decoder_num_attention_heads",
            f"'decoder_num_attention_heads' is {num_heads}: heads of {hidden_size} / {num_heads} elements "
            "('hidden_size') are not supported",
        )
    head_dim, positions = hidden_size // num_heads, config.integer("max_position_embeddings")
    intermediate_size = config.integer("intermediate_size")
    spec = ModelSpec(
        model_type=config.text("model_type"),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=read_num_layers(config, "decoder_num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        max_position_embeddings=positions,
        rms_norm_eps=EPS,
        rope=read_rope(config, RopeSizes(head_dim, positions, rotates_parts=True, default_rotated=0.9)),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
        mlp_bias=True,
        activation=read_activation(config, "decoder_hidden_act", "silu"),
        audio=AudioSpec(
            mel_bins=0,
            frame_samples=CONVOLUTIONS[0][0],
            hop_samples=CONVOLUTIONS[0][1],
            frames_of_row=FRAMES_OF_ROW,
            row_elements=ROW_SAMPLES,
            positions=POSITIONS,
            hidden_size=hidden_size,
            num_layers=read_num_layers(config, "encoder_num_hidden_layers"),
            num_heads=num_heads,
            head_dim=head_dim,
            intermediate_size=intermediate_size,
            rows_behind=ROWS_BEHIND,
        ),
        bos_token_id=config.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=config.token_ids("eos_token_id"),
    )
    # Heads that are padded compute the same.
    config.finish(HARMLESS_KEYS | {"pad_head_dim_to_multiple_of"})
    return spec


def forward(spec: ModelSpec, page_size: int, context: int, *, embeds: bool = False) -> Graph:
    """The decoder; see `Architecture`."""
    return decoder.forward(spec, page_size, context, embeds=embeds, layout=LAYOUT, layers=Layer)


def listen(spec: ModelSpec, page_size: int) -> Graph:
    """The encoder; see `ListeningArchitecture`. The output "rows" (S, E) is that of its last norm."""
    audio = spec.audio
    assert audio is not None
    of_encoder = replace(spec, activation="gelu", max_position_embeddings=audio.positions, causal=False)
    encoder = EncoderGraph(of_encoder, audio.positions, norm_bias=False, tables="encoder.")
    graph, size = encoder.graph, spec.hidden_size
    x = convolved(encoder, "conv1", read_frames(graph, audio), FRAMES_OF_ROW * size, "tanh", bias=False)
    x = _normed_clip(encoder, x)
    # Frames 2t and 2t + 1 of the second convolution read 6t to 6t + 9 of the first one.
    x = _with_behind(encoder, "conv2", x, FRAMES_OF_ROW * size, 10 * size)
    x = convolved(encoder, "conv2", x, PAIR * 2 * size, "gelu", copies=PAIR)
    # Frame t of the third one reads 2t to 2t + 2 of the second one.
    x = _with_behind(encoder, "conv3", x, PAIR * 2 * size, 3 * 2 * size)
    x = convolved(encoder, "conv3", x, size, "gelu")
    for layer in range(audio.num_layers):
        x = _encoder_layer(encoder, layer, x)
    x = encoder.norm(f"{ENCODER}.layer_norm", x, "rows")
    return append_sources(encoder, spec, x, page_size)


def _normed_clip(encoder: EncoderGraph, x: str) -> str:
    graph, size, module = encoder.graph, encoder.spec.hidden_size, f"{ENCODER}.groupnorm"
    graph.inputs[ROW_FRAMES] = Value(ROW_FRAMES, ("S",), "int32")
    frames = {"x": x, "row_frames": ROW_FRAMES}
    moments = graph.add("row_moments", frames, name=f"{module}.moments", frame=size)
    inputs = {"x": x, "moments": moments, "positions": encoder.input("positions")}
    inputs |= {role: encoder.vector(f"{module}.{role}", size) for role in ("weight", "bias")}
    return graph.add("clip_norm", inputs, name=f"{module}.out", eps=EPS)


def _with_behind(encoder: EncoderGraph, module: str, x: str, row: int, columns: int) -> str:
    """Each row of ``row`` elements and the first ones of that behind it, ``columns`` in all."""
    graph, name = encoder.graph, f"{ENCODER}.{module}"
    near = {"x": x, "positions": encoder.input("positions")}
    x = graph.add("near_rows", near, name=f"{name}.near", size=3)
    attrs = {"start": row, "stop": row + columns, "dtype": "float32"}
    return graph.add("slice_columns", {"x": x}, name=f"{name}.frames", **attrs)


def _encoder_layer(encoder: EncoderGraph, layer: int, x: str) -> str:
    spec, module = encoder.spec, f"{ENCODER}.layers.{layer}"
    normed = encoder.norm(f"{module}.input_layernorm", x)
    attended = encoder.attention(layer, _joint_heads(encoder, f"{module}.self_attn", normed), name=f"{module}.attended")
    mixed = encoder.linear([(f"{module}.self_attn.o_proj", spec.hidden_size)], attended, bias=False)
    x = encoder.add(mixed, x, f"{module}.after_attention")
    normed = encoder.norm(f"{module}.post_attention_layernorm", x)
    inner = encoder.linear([(f"{module}.mlp.fc1", spec.intermediate_size)], normed, activation=spec.activation)
    return encoder.add(
        encoder.linear([(f"{module}.mlp.fc2", spec.hidden_size)], inner), x, f"{module}.after_feed_forward"
    )


def _joint_heads(encoder: EncoderGraph, module: str, x: str) -> str:
    """The projection to queries, keys and values; of the first two, pairs (2i, 2i + 1) rotate."""
    graph, spec, name = encoder.graph, encoder.spec, f"{module}.qkv_proj"
    pairs = RotaryPairs(spec.head_dim, rotary_dim(spec.rope, spec.head_dim))
    sources = tuple(
        Source(f"{module}.{role}_proj.weight", 0, spec.hidden_size, pairs=None if role == "v" else pairs)
        for role in "qkv"
    )
    graph.parameters[f"{name}.weight"] = Parameter(f"{name}.weight", sources, spec.hidden_size)
    return graph.add("linear", {"x": x, "weight": f"{name}.weight"}, name=f"{name}.out", dtype="activation")
