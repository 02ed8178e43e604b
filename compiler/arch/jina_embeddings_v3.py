"""Jina Embeddings 3: XLM-RoBERTa with rotated heads instead of a table of positions. Sturua et al. 2024.

Its first files have an adapter for each task beside every matrix; see `formats/task_adapters.py`.
"""

from __future__ import annotations

import re

from ..formats.config import ConfigReader
from ..ir.graph import Graph
from ..ir.spec import ModelSpec, RopeSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec
from .bert import LayerNames, add_layer
from .decoder_config import even_head_dim
from .encoder import EncoderGraph, HeadLayout, finish
from .encoder_config import read_encoder_config
from .rope_config import RopeSizes, read_rope

PREFIX = "roberta."
OTHER_HEADS = re.compile(r"(?:pooler|lm_head|classifier)\..*")
HEAD = HeadLayout(classifier="classifier.out_proj", dense=[("classifier.dense", "tanh")])
NAMES = LayerNames(
    layers="encoder.layers",
    heads=["mixer.Wqkv"],
    joined="",
    attended="mixer.out_proj",
    attention_norm="norm1",
    inner="mlp.fc1",
    outer="mlp.fc2",
    norm="norm2",
)
THETA = 20_000.0
# Keys of the model's own code that do not change its results, and those of its adapters.
HARMLESS = frozenset(
    {
        "emb_pooler", "load_trained_adapters", "lora_adaptations", "lora_alpha", "lora_dropout_p",
        "lora_main_params_trainable", "lora_rank", "matryoshka_dimensions", "output_past", "task_instructions",
        "truncate_dim", "use_flash_attn",
    }
)  # fmt: skip


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "jina_embeddings_v3", or "xlm-roberta" with a rotation."""
    config.expect("use_reg_tokens", False)
    sizes = RopeSizes(even_head_dim(config, None), config.integer("max_position_embeddings"), default_theta=THETA)
    # The name in its first files.
    rope = RopeSpec(config.number("rotary_emb_base")) if config.has("rotary_emb_base") else read_rope(config, sizes)
    return read_encoder_config(
        config,
        num_token_types=config.integer("type_vocab_size", minimum=0, default=1),
        default_eps=1e-5,
        rope=rope,
        positions_by="rotary",
        harmless=HARMLESS,
    )


def encode(spec: ModelSpec, context: int, task: EmbeddingSpec | ClassifierSpec) -> Graph:
    """The graph of one forward pass on a batch of complete texts."""
    encoder = EncoderGraph(spec, context)
    x = encoder.embedding("embeddings.word_embeddings")
    x = encoder.positions(x, None, "embeddings.token_type_embeddings" if spec.num_token_types else None)
    x = encoder.norm("emb_ln", x)
    for layer in range(spec.num_layers):
        x = add_layer(encoder, layer, x, NAMES)
    return finish(encoder, x, task, HEAD)
