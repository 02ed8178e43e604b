"""Tiny encoders, and decoders without a head, that transformers writes: random weights, with sizes that do not fit any
tile; and their results.

Head size 12, hidden size 72, feed-forward size 70, vocabulary 509: none is a power of two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_models import VOCAB_SIZE, write_modules, write_tokenizer

FloatArray = npt.NDArray[np.float32]
CONTEXT = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 72,
    "intermediate_size": 70,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": CONTEXT,
}
OF_DISTILBERT = {
    "vocab_size": VOCAB_SIZE,
    "dim": 72,
    "hidden_dim": 70,
    "n_layers": 3,
    "n_heads": 6,
    "max_position_embeddings": CONTEXT,
}
# Two positions belong to padding and to what is before it.
OF_ROBERTA = {**SIZES, "max_position_embeddings": CONTEXT + 2, "pad_token_id": 1, "type_vocab_size": 1}
# All distances beyond 20 are one.
OF_DEBERTA = {
    **SIZES,
    "relative_attention": True,
    "position_buckets": 12,
    "max_relative_positions": 20,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
    "attention_head_size": 12,
    "conv_kernel_size": 3,
    "conv_act": "gelu",
}
OF_MPNET = {
    **SIZES,
    "max_position_embeddings": CONTEXT + 2,
    "pad_token_id": 1,
}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "cls_token_id": 1, "sep_token_id": 1}
# A window of 5 tokens on each side.
OF_MODERNBERT = {**SIZES, **IDS, "num_hidden_layers": 4, "local_attention": 10}
OF_DECODERS = {**SIZES, "num_key_value_heads": 3, "head_dim": 24, "pad_token_id": 0, "eos_token_id": 1}
OF_GEMMA = {
    **OF_DECODERS,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 20,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
    "sliding_window": 6,
    "use_bidirectional_attention": True,
}


# A window of 5 tokens on each side, and larger heads on full layers.
OF_GEMMA2 = {
    **OF_DECODERS,
    "head_dim": 12,
    "global_head_dim": 20,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 14,
    "embedding_dim": 50,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 5,
}
# A window of 6 tokens on each side, and a stretched rotation.
OF_PRIVACY_FILTER = {
    **OF_DECODERS,
    "head_dim": 20,
    "sliding_window": 6,
    "num_local_experts": 5,
    "num_experts_per_tok": 3,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 32.0,
        "truncate": False,
        "original_max_position_embeddings": 16,
    },
}


@dataclass(frozen=True)
class Family:
    """``name``: transformers' name of the family. ``labels_tokens``, ``labels_texts``: it has a class that does."""

    name: str
    sizes: dict[str, Any] = field(default_factory=lambda: SIZES)
    labels_tokens: bool = True
    labels_texts: bool = True


FAMILIES = {
    "albert": Family("Albert", {**SIZES, "embedding_size": 20}),
    "bert": Family("Bert"),
    "deberta-v2": Family("DebertaV2", OF_DEBERTA),
    "distilbert": Family("DistilBert", OF_DISTILBERT),
    "electra": Family("Electra", {**SIZES, "embedding_size": 20}),
    "eurobert": Family(
        "EuroBert", {**SIZES, "num_key_value_heads": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    ),
    "embedding_gemma2_text": Family("EmbeddingGemma2Text", OF_GEMMA2, labels_tokens=False, labels_texts=False),
    "gte": Family("Gte", SIZES),
    "jina_embeddings_v3": Family("JinaEmbeddingsV3", {**SIZES, "pad_token_id": 1}),
    "modernbert": Family("ModernBert", OF_MODERNBERT),
    "mpnet": Family("MPNet", OF_MPNET),
    # EmbeddingGemma: 3 tokens on each side.
    "gemma3_text": Family("Gemma3Text", OF_GEMMA, labels_tokens=False),
    "nomic_bert": Family("NomicBert", {**SIZES, "hidden_act": "silu"}),
    "openai_privacy_filter": Family("OpenAIPrivacyFilter", OF_PRIVACY_FILTER, labels_texts=False),
    "qwen3": Family("Qwen3", OF_DECODERS),
    "roberta": Family("Roberta", OF_ROBERTA),
    "xlm-roberta": Family("XLMRoberta", OF_ROBERTA),
}


def make_encoder(family: str, head: str, folder: Path, **config: Any) -> Any:
    """Write a checkpoint into a folder. ``head`` is a pooling of sentence-transformers, or "ForSequenceClassification"
    or "ForTokenClassification". Returns transformers' model.
    """
    import torch
    import transformers

    own = FAMILIES[family]
    classifies = head.startswith("For")
    torch.manual_seed(len(family))
    settings = getattr(transformers, f"{own.name}Config")(**{**own.sizes, **config})
    model = getattr(transformers, f"{own.name}{head if classifies else 'Model'}")(settings).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + noise * 0.1 if parameter.ndim == 1 else noise / parameter.shape[1] ** 0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    if not classifies:
        write_modules(folder, pooling=head)
    return model


def texts_of(lengths: Sequence[int]) -> list[list[int]]:
    """Random token ids, none of them that of padding."""
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(2, VOCAB_SIZE, length).tolist() for length in lengths]


def rows_of(model: Any, token_ids: Sequence[int], token_types: Sequence[int] = ()) -> FloatArray:
    """The rows (T, E) of transformers' last layer."""
    return _run(model, token_ids, token_types).last_hidden_state[0].numpy()  # type: ignore[no-any-return]


def logits_of(model: Any, token_ids: Sequence[int], token_types: Sequence[int] = ()) -> FloatArray:
    """The scores (L,) of a text's labels in transformers, or (T, L) of those of its tokens."""
    return _run(model, token_ids, token_types).logits[0].numpy()  # type: ignore[no-any-return]


def _run(model: Any, token_ids: Sequence[int], token_types: Sequence[int]) -> Any:
    import torch

    types = {"token_type_ids": torch.tensor([list(token_types)])} if len(token_types) else {}
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(token_ids)]), **types)


def write_json(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**known, **values}))
