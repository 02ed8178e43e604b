"""The keys of a GGUF file for an encoder: the inverse of `encoders.py`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ir.spec import ModelSpec
from ...ir.tasks import ClassifierSpec, EmbeddingSpec
from ...runtime.errors import UnsupportedModel
from ...runtime.text.tokenizer_files import TokenizerFiles, load_backend
from ..tokenizer_json import CONTINUES, CONTROL, NORMAL, SPACE, UNUSED, USER_DEFINED
from .encoders import ENCODERS, LABELS, POOLINGS, RANK
from .write_tokenizer import byte_level_metadata
from .writer import Value

# The score of what fills a vocabulary.
UNLIKELY = -1000.0


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


def encoder_tokenizer(files: TokenizerFiles, architecture: str, vocab_size: int, pre: str | None) -> dict[str, Value]:
    """The keys of an encoder's tokenizer. ``pre``: as in `tokenizer_metadata`. Raises UnsupportedModel for a tokenizer
    that GGUF cannot express.
    """
    content = json.loads(files.content)
    kind = content["model"].get("type", "BPE")
    if kind not in ("WordPiece", "Unigram", "BPE"):
        raise unsupported(files, f"a model of type {kind!r} cannot be exported with an encoder")
    if pre is not None and kind != "BPE":
        raise unsupported(files, "it splits no words by a pattern; remove --pre")
    if kind == "BPE":
        keys = byte_level_metadata(files, architecture, vocab_size, pre)
    else:
        keys = (word_pieces if kind == "WordPiece" else scored_pieces)(files, content, vocab_size)
    around = load_backend(files.content, files.where).encode("", add_special_tokens=True).ids
    if len(around) != 2:
        raise unsupported(files, f"puts {len(around)} tokens around a text; GGUF can express two")
    named = {"bos": around[0], "cls": around[0], "seperator": around[1]}
    if kind != "WordPiece":
        # llama.cpp itself puts both tokens around the texts of BERT.
        named["eos"] = around[1]
        keys |= {f"tokenizer.ggml.add_{key}_token": True for key in ("bos", "eos", "sep")}
    return {**keys, **{f"tokenizer.ggml.{key}_token_id": number for key, number in named.items()}}


def word_pieces(files: TokenizerFiles, content: Mapping[str, Any], vocab_size: int) -> dict[str, Value]:
    """Those of BERT's tokenizer, which marks the pieces that begin a word."""
    normalizer = content.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        raise unsupported(files, "only word pieces with BERT's normalizer can be exported")
    ids = content["model"]["vocab"]
    tokens, kinds = listed(content, ids, vocab_size)
    for number in {**ids, **added_ids(content)}.values():
        token = tokens[number]
        begins = token if kinds[number] == CONTROL else SPACE + token
        tokens[number] = token.removeprefix(CONTINUES) if token.startswith(CONTINUES) else begins
    lowercases, strips = bool(normalizer.get("lowercase")), normalizer.get("strip_accents")
    named = {"unknown": ids.get(content["model"]["unk_token"]), "padding": ids.get(files.pad_token or "[PAD]")}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        **{f"tokenizer.ggml.{key}_token_id": number for key, number in named.items() if number is not None},
        "tokenizer.ggml.normalizer.lowercase": lowercases,
        "tokenizer.ggml.normalizer.strip_accents": lowercases if strips is None else bool(strips),
    }


def scored_pieces(files: TokenizerFiles, content: Mapping[str, Any], vocab_size: int) -> dict[str, Value]:
    """Those of XLM-RoBERTa's tokenizer, which chooses the likeliest pieces."""
    model, charsmap = content["model"], charsmap_of(files, content.get("normalizer"))
    tokens, kinds = listed(content, {token: index for index, (token, _) in enumerate(model["vocab"])}, vocab_size)
    scores = [float(score) for _, score in model["vocab"]]
    keys: dict[str, Value] = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array([*scores, *[UNLIKELY] * (vocab_size - len(scores))], np.float32),
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.unknown_token_id": int(model["unk_id"]),
    }
    return keys if charsmap is None else {**keys, "tokenizer.ggml.precompiled_charsmap": np.frombuffer(charsmap, "u1")}


def charsmap_of(files: TokenizerFiles, normalizer: Mapping[str, Any] | None) -> bytes | None:
    """SentencePiece's normalization, beside which there may be only what removes spaces, as the split of words does."""
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    maps = [base64.b64decode(each["precompiled_charsmap"]) for each in steps if each["type"] == "Precompiled"]
    spaces = {"Regex": " {2,}"}
    known = ("Precompiled", "Strip")
    other = next((each for each in steps if each["type"] not in known and each.get("pattern") != spaces), None)
    if other is not None or len(maps) > 1:
        what = "two of SentencePiece's" if other is None else f"of type {other['type']!r}"
        raise unsupported(files, f"GGUF cannot express its normalizers: {what}")
    return maps[0] if maps else None


def listed(content: Mapping[str, Any], ids: Mapping[str, int], vocab_size: int) -> tuple[list[str], list[int]]:
    """A token and its kind for each row of the embedding. ``ids``: those of the pieces."""
    added = {each["content"]: each for each in content.get("added_tokens") or []}
    tokens, kinds = [f"[PAD{number}]" for number in range(vocab_size)], [UNUSED] * vocab_size
    for token, number in {**ids, **added_ids(content)}.items():
        tokens[number] = token
        kinds[number] = NORMAL if token not in added else CONTROL if added[token]["special"] else USER_DEFINED
    return tokens, kinds


def added_ids(content: Mapping[str, Any]) -> dict[str, int]:
    return {each["content"]: each["id"] for each in content.get("added_tokens") or []}


def unsupported(files: TokenizerFiles, message: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{files.where}: {message}; export only the weights with --no-tokenizer", file=str(files.where)
    )
