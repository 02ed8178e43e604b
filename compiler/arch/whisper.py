"""Whisper: a decoder whose layers also attend to the rows of an encoder of sound. Radford et al. 2022.

The encoder reads windows of a fixed length: two convolutions, the second one over every other row, and layers that see
the whole window. A row of the graph stands for two frames, so that every value has one row for each of the window's
positions. The decoder is GPT-2's, with an attention to the encoder's rows in each layer. Their keys and values do not
change while a text is written, so the encoder's graph computes them too.
"""

from __future__ import annotations

from dataclasses import replace

from ..formats.config import ConfigReader
from ..formats.harmless_keys import HARMLESS_KEYS
from ..ir.graph import Graph
from ..ir.spec import AudioSpec, ModelSpec, RopeSpec
from ..ir.speech import FRAME, HOP
from . import decoder
from .decoder_config import read_activation, read_num_layers
from .encoder import EncoderGraph
from .sources import ENCODER, Layer, append_sources, convolved, read_frames

__all__ = ["forward", "listen", "read_config"]

LAYOUT = decoder.DecoderLayout(
    centered_norms=True,
    norm_bias=True,
    gated=False,
    positions="model.embed_positions",
)
EPS = 1e-5
# The first convolution makes as many rows as it reads, the second one half of them.
FRAMES_OF_ROW = 2
# Keys that concern training, fine-tuning as a classifier, or the times of words.
OTHER_KEYS = frozenset(
    {
        "activation_dropout", "apply_spec_augment", "classifier_proj_size", "decoder_layerdrop", "encoder_layerdrop",
        "forced_decoder_ids", "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob", "mask_time_length",
        "mask_time_min_masks", "mask_time_prob", "median_filter_width", "use_weighted_layer_sum",
    }
)  # fmt: skip


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "whisper"."""
    config.expect("is_encoder_decoder", True)
    config.expect("architectures", ["WhisperForConditionalGeneration"])
    hidden_size, num_heads = config.integer("d_model"), config.integer("decoder_attention_heads")
    encoder_heads, encoder_layers = config.integer("encoder_attention_heads"), read_num_layers(config, "encoder_layers")
    # For transformers, these are other names of the encoder's.
    names = {"num_hidden_layers": encoder_layers, "hidden_size": hidden_size}
    for key, value in {**names, **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), encoder_heads)}.items():
        config.expect(key, value)
    for key, heads in (("decoder_attention_heads", num_heads), ("encoder_attention_heads", encoder_heads)):
        if hidden_size % heads or hidden_size // heads % 2:
            raise config.unsupported(
                key, f"{key!r} is {heads}: heads of {hidden_size} / {heads} elements ('d_model') are not supported"
            )
    layers, mel_bins = read_num_layers(config, "decoder_layers"), config.integer("num_mel_bins")
    spec = ModelSpec(
        model_type=config.text("model_type"),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        intermediate_size=config.integer("decoder_ffn_dim"),
        max_position_embeddings=config.integer("max_target_positions"),
        rms_norm_eps=EPS,
        rope=RopeSpec(theta=10_000.0),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        activation=read_activation(config, "activation_function", "gelu"),
        unrotated=tuple(range(layers)),
        embedding_scale=hidden_size**0.5 if config.flag("scale_embedding", default=False) else 1.0,
        audio=AudioSpec(
            mel_bins=mel_bins,
            frame_samples=FRAME,
            hop_samples=HOP,
            frames_of_row=FRAMES_OF_ROW,
            row_elements=(FRAMES_OF_ROW + 2) * mel_bins,
            positions=config.integer("max_source_positions"),
            hidden_size=hidden_size,
            num_layers=encoder_layers,
            num_heads=encoder_heads,
            head_dim=hidden_size // encoder_heads,
            intermediate_size=config.integer("encoder_ffn_dim"),
        ),
        bos_token_id=config.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=config.token_ids("eos_token_id"),
    )
    config.finish(HARMLESS_KEYS | OTHER_KEYS)
    return spec


def forward(spec: ModelSpec, page_size: int, context: int, *, embeds: bool = False) -> Graph:
    """The decoder; see `Architecture`."""
    return decoder.forward(spec, page_size, context, embeds=embeds, layout=LAYOUT, layers=Layer)


def listen(spec: ModelSpec, page_size: int) -> Graph:
    """The encoder; see `ListeningArchitecture`. The output "rows" (S, E) is that of its last norm."""
    audio = spec.audio
    assert audio is not None
    # Every layer sees the whole window.
    of_encoder = replace(
        spec,
        num_heads=audio.num_heads,
        num_kv_heads=audio.num_heads,
        head_dim=audio.head_dim,
        intermediate_size=audio.intermediate_size,
        max_position_embeddings=audio.positions,
        causal=False,
    )
    encoder = EncoderGraph(of_encoder, audio.positions)
    graph, size = encoder.graph, spec.hidden_size
    # Rows of two frames: those of the first convolution at 2t and 2t + 1.
    x = convolved(encoder, "conv1", read_frames(graph, audio), 2 * size, "gelu", copies=2)
    near = {"x": x, "positions": encoder.input("positions")}
    x = graph.add("near_rows", near, name=f"{ENCODER}.conv2.near", size=3)
    # Of the frames 2t - 2 to 2t + 3, the second convolution reads 2t - 1 to 2t + 1.
    attrs = {"start": size, "stop": 4 * size, "dtype": "float32"}
    x = graph.add("slice_columns", {"x": x}, name=f"{ENCODER}.conv2.frames", **attrs)
    x = convolved(encoder, "conv2", x, size, "gelu")
    x = encoder.positions(x, f"{ENCODER}.embed_positions", None)
    for layer in range(audio.num_layers):
        x = _encoder_layer(encoder, layer, x, audio)
    x = encoder.norm(f"{ENCODER}.layer_norm", x, "rows")
    return append_sources(encoder, spec, x, page_size)


def _encoder_layer(encoder: EncoderGraph, layer: int, x: str, audio: AudioSpec) -> str:
    size, module = encoder.spec.hidden_size, f"{ENCODER}.layers.{layer}"
    normed = encoder.norm(f"{module}.self_attn_layer_norm", x)
    parts = [(f"{module}.self_attn.{role}_proj", size) for role in "qkv"]
    qkv = encoder.linear(parts, normed, f"{module}.self_attn.qkv_proj", dtype="activation")
    attended = encoder.attention(0, qkv, name=f"{module}.attended")
    mixed = encoder.linear([(f"{module}.self_attn.out_proj", size)], attended)
    x = encoder.add(mixed, x, f"{module}.after_attention")
    normed = encoder.norm(f"{module}.final_layer_norm", x)
    activation = encoder.spec.activation
    inner = encoder.linear([(f"{module}.fc1", audio.intermediate_size)], normed, activation=activation)
    return encoder.add(encoder.linear([(f"{module}.fc2", size)], inner), x, f"{module}.after_feed_forward")
