"""Reads the keys of config.json that encoders share into a ModelSpec. Defaults are those of transformers."""

from __future__ import annotations

from collections.abc import Mapping

from ..formats.config import ConfigReader
from ..formats.harmless_keys import HARMLESS_KEYS
from ..ir.spec import ModelSpec, RopeSpec
from .decoder_config import read_activation, read_num_layers
from .rope_config import DEFAULT_ROPE_THETA

# Keys of encoders that do not change their results, besides those of all models.
ENCODER_HARMLESS = frozenset(
    {
        "architectures", "decoder_bias", "directionality", "is_encoder_decoder", "model_type", "pooler_fc_size",
        "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "pos_token_id",
        "tie_weights_", "tie_word_embeddings", "vocab_pad_token_id",
    }
)  # fmt: skip


def read_encoder_config(
    config: ConfigReader,
    *,
    names: Mapping[str, str] | None = None,
    activation: str | None = None,
    activation_key: str = "hidden_act",
    default_activation: str = "gelu",
    eps_key: str = "layer_norm_eps",
    default_eps: float = 1e-12,
    first_position: int = 0,
    num_token_types: int = 0,
    windows: tuple[int | None, ...] = (),
    rope: RopeSpec | None = None,
    positions_by: str = "absolute",
    window_rope: RopeSpec | None = None,
    qkv_bias: bool = True,
    output_bias: bool = True,
    mlp_bias: bool = True,
    harmless: frozenset[str] = frozenset(),
) -> ModelSpec:
    """The spec of an encoder. ``names``: its own names of shared keys. ``first_position``: the row of a text's first
    token in the table of positions. ``activation``: that of the feed-forward, which otherwise a key names. ``rope``
    None: nothing is rotated. ``positions_by``: the value of 'position_embedding_type', if there is one.

    Reads all keys and finishes the reader. Raises CheckpointError for wrong values, and UnsupportedModel for values
    that need mathematics that we do not compile.
    """
    own = names or {}

    def key(name: str) -> str:
        return own.get(name, name)

    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    config.expect("is_encoder_decoder", False)
    config.expect("pruned_heads", {}, None)
    config.expect("position_embedding_type", positions_by, None)
    hidden_size, num_heads = config.integer(key("hidden_size")), config.integer(key("num_attention_heads"))
    if hidden_size % num_heads:
        raise config.contradiction(
            key("hidden_size"), f"{key('hidden_size')!r} is {hidden_size}, not a multiple of {num_heads} heads"
        )
    positions, num_layers = config.integer("max_position_embeddings"), read_num_layers(config, key("num_hidden_layers"))
    if positions <= first_position:
        raise config.contradiction(
            "max_position_embeddings", f"'max_position_embeddings' is {positions}, which leaves no position for a token"
        )
    spec = ModelSpec(
        model_type=config.text("model_type"),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        intermediate_size=config.integer(key("intermediate_size")),
        max_position_embeddings=positions - first_position,
        rms_norm_eps=config.number(eps_key, default=default_eps),
        rope=rope or RopeSpec(DEFAULT_ROPE_THETA),
        window_rope=window_rope,
        unrotated=() if rope is not None else tuple(range(num_layers)),
        windows=windows,
        activation=activation or read_activation(config, activation_key, default_activation),
        tie_word_embeddings=False,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        causal=False,
        first_position=first_position,
        num_token_types=num_token_types,
    )
    config.ignore("bos_token_id", "eos_token_id")
    config.finish(HARMLESS_KEYS | ENCODER_HARMLESS | harmless)
    return spec
