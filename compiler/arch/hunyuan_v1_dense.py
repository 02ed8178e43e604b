"""Hunyuan dense: Llama with norms of queries and keys behind their rotation, which is stretched once and for all by
'alpha'. Tencent 2025.
"""

from __future__ import annotations

from functools import partial

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_decoder_config
from .rope_config import RopeSizes, read_rope

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm", norm_after_rope=True
)
# Ids of tokens, and settings of classifiers and of training.
HARMLESS = frozenset(
    {
        "add_classification_head", "cla_share_factor", "class_num", "dense_list", "eod_token_id", "im_end_id",
        "im_newline_id", "im_start_id", "mask_init_id", "org_vocab_size", "pad_id", "pool_type", "text_end_id",
        "text_start_id",
    }
)  # fmt: skip

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "hunyuan_v1_dense"."""
    # Published configs contain these keys although every dense Hunyuan has the same values.
    config.expect("use_qk_norm", True)
    config.expect("use_rotary_pos_emb", True)
    config.expect("use_cla", False)
    config.expect("mlp_bias", False)
    config.expect("norm_type", "rms", "hf_rms")
    config.expect("num_experts", 1, None)
    head_dim = even_head_dim(config, config.optional_integer("head_dim"))
    config.expect("attention_head_dim", head_dim, None)
    rope = read_rope(config, RopeSizes(head_dim, config.integer("max_position_embeddings"), reads_alpha=True))
    return read_decoder_config(
        config,
        head_dim=head_dim,
        bias_keys=("attention_bias",),
        qk_norm=True,
        ropes={"full_attention": rope, "sliding_attention": rope},
        default_eps=1e-5,
        harmless=HARMLESS,
    )
