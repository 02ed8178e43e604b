"""The keys of a GGUF file for an encoder: the inverse of `encoders.py`."""

from __future__ import annotations

import json

import numpy as np

from ...ir.spec import ClassifierSpec, EmbeddingSpec, ModelSpec
from ...runtime.errors import UnsupportedModel
from ...runtime.text.tokenizer_files import TokenizerFiles, load_backend
from ..tokenizer_json import CONTINUES, CONTROL, NORMAL, SPACE, UNUSED, USER_DEFINED
from .encoders import ENCODERS, LABELS, POOLINGS, RANK
from .writer import Value


def encoder_metadata(
    architecture: str, spec: ModelSpec, task: EmbeddingSpec | ClassifierSpec | None
) -> dict[str, Value]:
    """Raises UnsupportedModel for a task that llama.cpp does not do with this architecture."""
    full = [layer for layer, window in enumerate(spec.windows) if layer and window is None]
    windows = {window for window in spec.windows if window is not None}
    rotates = len(spec.unrotated) < spec.num_layers
    values: dict[str, Value | None] = {
        "block_count": spec.num_layers,
        "context_length": spec.max_position_embeddings,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        ENCODERS[architecture].eps_key: spec.rms_norm_eps,
        "attention.causal": False,
        "vocab_size": spec.vocab_size,
        "rope.freq_base": spec.rope.theta if rotates else None,
        "rope.freq_base_swa": None if spec.window_rope is None else spec.window_rope.theta,
        # A window has half of these tokens on each side, and the token itself.
        "attention.sliding_window": 2 * (windows.pop() - 1) if windows else None,
        "attention.sliding_window_pattern": (full[0] if full else spec.num_layers) if spec.windows else None,
        **task_metadata(architecture, task),
    }
    own = {f"{architecture}.{key}": value for key, value in values.items() if value is not None}
    return own | ({"tokenizer.ggml.token_type_count": spec.num_token_types} if spec.num_token_types else {})


def task_metadata(architecture: str, task: EmbeddingSpec | ClassifierSpec | None) -> dict[str, Value | None]:
    """The pooling, and the labels. Raises UnsupportedModel."""
    encoder = ENCODERS[architecture]
    if isinstance(task, EmbeddingSpec):
        number = next((number for number, name in POOLINGS.items() if number and name == task.pooling), None)
        if number is None or task.dense:
            what = f"{len(task.dense)} dense layers behind its pooling" if task.dense else f"pooling {task.pooling!r}"
            raise UnsupportedModel(f"GGUF cannot express an encoder with {what}")
        return {"pooling_type": number}
    if task is None or task.per_token or task.pools_late or task.pooling != encoder.pooling or not encoder.head:
        raise UnsupportedModel(
            f"GGUF cannot express this classifier: files of {architecture} score "
            + (f"the row of complete texts that pooling {encoder.pooling!r} makes" if encoder.head else "no texts")
        )
    return {"pooling_type": RANK, LABELS: list(task.labels)}


def word_piece_metadata(files: TokenizerFiles, vocab_size: int) -> dict[str, Value]:
    """The keys of BERT's tokenizer, which marks the pieces that begin a word. Raises UnsupportedModel for another."""
    content = json.loads(files.content)
    model, normalizer = content["model"], content.get("normalizer") or {}
    if model.get("type") != "WordPiece" or normalizer.get("type") != "BertNormalizer":
        raise UnsupportedModel(
            f"{files.where}: only word pieces with BERT's normalizer can be exported with an encoder, not a model of "
            f"type {model.get('type')!r}; export only the weights with --no-tokenizer",
            file=str(files.where),
        )
    added = {each["content"]: each for each in content.get("added_tokens") or []}
    ids = {**model["vocab"], **{token: each["id"] for token, each in added.items()}}
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    kinds = [UNUSED] * vocab_size
    for token, number in ids.items():
        kinds[number] = NORMAL if token not in added else CONTROL if added[token]["special"] else USER_DEFINED
        begins = token if kinds[number] == CONTROL else SPACE + token
        tokens[number] = token.removeprefix(CONTINUES) if token.startswith(CONTINUES) else begins
    around = load_backend(files.content, files.where).encode("", add_special_tokens=True).ids
    if len(around) != 2:
        raise UnsupportedModel(f"{files.where}: puts {len(around)} tokens around a text; GGUF can express two")
    lowercases, strips = bool(normalizer.get("lowercase")), normalizer.get("strip_accents")
    named = {"bos": around[0], "cls": around[0], "seperator": around[1], "unknown": ids.get(model["unk_token"])}
    named["padding"] = ids.get(files.pad_token or "[PAD]")
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        **{f"tokenizer.ggml.{key}_token_id": number for key, number in named.items() if number is not None},
        "tokenizer.ggml.normalizer.lowercase": lowercases,
        "tokenizer.ggml.normalizer.strip_accents": lowercases if strips is None else bool(strips),
    }
