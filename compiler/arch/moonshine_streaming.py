"""Moonshine streaming: a decoder whose layers also attend to the rows of an encoder of sound, which reads frames of 5
ms, each by itself, and whose layers see a few rows before and behind each.

Frames are normed, compressed and projected; two causal convolutions of 5 frames with a stride of 2 make a row of four.
Rows have no positions until the decoder's table of positions is added to them. So the rows of a window may also be
read from the middle on: those behind the first ones, whose receptive field is cut off, are the same.
"""

from __future__ import annotations

from dataclasses import replace

from ..formats.config import ConfigReader
from ..formats.harmless_keys import HARMLESS_KEYS
from ..ir.graph import Graph, Parameter, Source
from ..ir.spec import KEY_TILE, AudioSpec, ModelSpec, ReceptiveField
from ..ir.speech import SAMPLE_RATE
from . import decoder
from .decoder_config import read_activation, read_num_layers
from .encoder import EncoderGraph
from .moonshine import EPS, LAYOUT
from .rope_config import RopeSizes, read_rope
from .sources import ENCODER, Layer, append_sources, convolved, read_frames, source_input

__all__ = ["forward", "listen", "read_config"]

# The norm of frames.
FRAME_EPS = 1e-6
# The samples of a frame, and the frames of a row; the convolutions halve their number twice.
FRAME, FRAMES_OF_ROW, SIZE, STRIDE = 80, 4, 5, 2
# The rows before each that the two convolutions read.
ROWS_BEFORE = (1, 2)
POSITION_TABLE = "model.decoder.pos_emb.weight"
# The longest window, and the most tokens of its text. The table of positions has more rows.
SECONDS, TOKENS = 30, 512
POSITIONS = SECONDS * SAMPLE_RATE // (FRAME * FRAMES_OF_ROW)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "moonshine_streaming"."""
    config.expect("is_encoder_decoder", True)
    config.expect("architectures", ["MoonshineStreamingForConditionalGeneration"])
    config.expect("attention_bias", False)
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    config.expect("num_key_value_heads", num_heads)
    head_dim = config.optional_integer("head_dim") or hidden_size // num_heads
    positions = config.integer("max_position_embeddings", default=4096)
    section = config.section("encoder_config")
    if section is None:
        raise config.contradiction("encoder_config", "'encoder_config' is missing; it has the sizes of the encoder")
    audio = _read_encoder(section)
    if audio.positions > positions:
        raise config.unsupported(
            "max_position_embeddings",
            f"'max_position_embeddings' is {positions}, fewer than the {audio.positions} rows of {SECONDS} s",
        )
    spec = ModelSpec(
        model_type=config.text("model_type"),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=read_num_layers(config),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        max_position_embeddings=min(positions, TOKENS),
        rms_norm_eps=EPS,
        rope=read_rope(config, RopeSizes(head_dim, positions, rotates_parts=True)),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        mlp_bias=True,
        activation=read_activation(config, "hidden_act", "silu"),
        audio=audio,
        bos_token_id=config.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=config.token_ids("eos_token_id"),
    )
    # Heads that are padded compute the same.
    config.finish(HARMLESS_KEYS | {"pad_head_dim_to_multiple_of"})
    return spec


def _read_encoder(config: ConfigReader) -> AudioSpec:
    config.expect("attention_bias", False)
    config.expect("hidden_act", "gelu")
    config.expect("sample_rate", SAMPLE_RATE)
    config.expect("frame_ms", 1000 * FRAME / SAMPLE_RATE, 1000 * FRAME / SAMPLE_RATE)
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    config.expect("num_key_value_heads", num_heads)
    layers = read_num_layers(config)
    windows = config.pairs("sliding_windows")
    if len(windows) != layers or any(back < 1 for back, _ in windows):
        raise config.contradiction(
            "sliding_windows",
            f"'sliding_windows' is {windows!r:.80}; expected one row back or more for each of {layers} layers",
        )
    spec = AudioSpec(
        mel_bins=0,
        frame_samples=FRAME,
        hop_samples=FRAME,
        frames_of_row=FRAMES_OF_ROW,
        row_elements=FRAME * FRAMES_OF_ROW,
        positions=POSITIONS,
        hidden_size=hidden_size,
        num_layers=layers,
        num_heads=num_heads,
        head_dim=config.optional_integer("head_dim") or hidden_size // num_heads,
        intermediate_size=config.integer("intermediate_size"),
        rows_back=tuple(back for back, _ in windows),
        rows_ahead=tuple(ahead for _, ahead in windows),
        receptive_field=ReceptiveField(
            sum(ROWS_BEFORE) + sum(back - 1 for back, _ in windows), sum(max(ahead - 1, 0) for _, ahead in windows)
        ),
    )
    # Its rows have no positions.
    config.finish(HARMLESS_KEYS | {"model_type", "max_position_embeddings"})
    return spec


def forward(spec: ModelSpec, page_size: int, context: int, *, embeds: bool = False) -> Graph:
    """The decoder; see `Architecture`."""
    return decoder.forward(spec, page_size, context, embeds=embeds, layout=LAYOUT, layers=Layer)


def listen(spec: ModelSpec, page_size: int) -> Graph:
    """The encoder; see `ListeningArchitecture`. The output "rows" (S, E) has positions, and is projected to the size of
    the decoder.
    """
    audio = spec.audio
    assert audio is not None
    of_encoder = replace(
        spec,
        hidden_size=audio.hidden_size,
        num_layers=audio.num_layers,
        num_heads=audio.num_heads,
        num_kv_heads=audio.num_heads,
        head_dim=audio.head_dim,
        intermediate_size=audio.intermediate_size,
        activation="gelu",
        unrotated=tuple(range(audio.num_layers)),
        windows=tuple(map(max, audio.rows_back, audio.rows_ahead)),
        causal=False,
    )
    encoder = EncoderGraph(of_encoder, audio.positions)
    graph, size = encoder.graph, audio.hidden_size
    # The exponential of what the compression multiplies by is the norm's weight.
    attrs = {"eps": FRAME_EPS, "dtype": "float32", "centered": True}
    inputs = {"x": read_frames(graph, audio), "weight": encoder.vector(f"{ENCODER}.embedder.comp.factors", FRAME)}
    x = graph.add("rms_norm", inputs, name=f"{ENCODER}.embedder.normed", **attrs)
    x = graph.add("activate", {"x": x}, name=f"{ENCODER}.embedder.compressed", activation="asinh")
    x = convolved(encoder, "embedder.linear", x, FRAMES_OF_ROW * size, "silu", bias=False)
    # Frames 2t and 2t + 1 of the first convolution read 4t - 4 to 4t + 2, and frame t of the second one 2t - 4 to 2t.
    x = _with_before(encoder, "embedder.conv1", x, ROWS_BEFORE[0], 7 * size)
    x = convolved(encoder, "embedder.conv1", x, 2 * 2 * size, "silu", copies=2)
    x = _with_before(encoder, "embedder.conv2", x, ROWS_BEFORE[1], SIZE * 2 * size)
    x = convolved(encoder, "embedder.conv2", x, size, "none")
    for layer in range(audio.num_layers):
        x = _encoder_layer(encoder, layer, x, audio)
    x = _norm(encoder, f"{ENCODER}.final_norm", x)
    # Those in the window, of which the batch may have only the last rows.
    places = {"positions": source_input(graph, "positions")}
    places["position_table"] = encoder.matrix(POSITION_TABLE, audio.positions, size)
    x = graph.add("embed_positions", {"x": x, **places}, name=f"{ENCODER}.placed")
    if size != spec.hidden_size:
        x = encoder.linear([("model.decoder.proj", spec.hidden_size)], x, bias=False)
    return append_sources(encoder, spec, x, page_size)


def _with_before(encoder: EncoderGraph, module: str, x: str, before: int, columns: int) -> str:
    """``before`` rows before each row, and the first elements of itself, ``columns`` in all."""
    graph, name = encoder.graph, f"{ENCODER}.{module}"
    near = {"x": x, "positions": encoder.input("positions")}
    x = graph.add("near_rows", near, name=f"{name}.near", size=2 * before + 1)
    attrs = {"start": 0, "stop": columns, "dtype": "float32"}
    return graph.add("slice_columns", {"x": x}, name=f"{name}.frames", **attrs)


def _norm(encoder: EncoderGraph, module: str, x: str) -> str:
    """A LayerNorm, whose factors are stored without 1."""
    name, size = f"{module}.gamma", encoder.spec.hidden_size
    encoder.graph.parameters[name] = Parameter(name, (Source(name, 0, size, offset=1.0),), None)
    attrs = {"eps": EPS, "dtype": "float32", "centered": True}
    return encoder.graph.add("rms_norm", {"x": x, "weight": name}, name=f"{module}.out", **attrs)


def _encoder_layer(encoder: EncoderGraph, layer: int, x: str, audio: AudioSpec) -> str:
    module, heads = f"{ENCODER}.layers.{layer}", audio.num_heads * audio.head_dim
    normed = _norm(encoder, f"{module}.input_layernorm", x)
    parts = [(f"{module}.self_attn.{role}_proj", heads) for role in "qkv"]
    qkv = encoder.linear(parts, normed, f"{module}.self_attn.qkv_proj", bias=False, dtype="activation")
    bias = window_bias(audio.rows_back[layer], audio.rows_ahead[layer])
    more = {"distance_bias": encoder.vector(bias, audio.num_heads * (2 * (audio.positions + KEY_TILE) - 1))}
    attended = encoder.attention(layer, qkv, name=f"{module}.attended", more=more)
    mixed = encoder.linear([(f"{module}.self_attn.o_proj", audio.hidden_size)], attended, bias=False)
    x = encoder.add(mixed, x, f"{module}.after_attention")
    normed = _norm(encoder, f"{module}.post_attention_layernorm", x)
    inner = encoder.linear([(f"{module}.mlp.fc1", audio.intermediate_size)], normed, activation="gelu")
    out = encoder.linear([(f"{module}.mlp.fc2", audio.hidden_size)], inner)
    return encoder.add(out, x, f"{module}.after_feed_forward")


def window_bias(back: int, ahead: int) -> str:
    """The name of the vector of biases by distance, which hides the keys outside of a window."""
    return f"{ENCODER}.window_{back}_{ahead}"
