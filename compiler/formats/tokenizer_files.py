"""Reads the tokenizer's files of a checkpoint: tokenizer.json, or what one is made of, and the files that add to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..runtime.errors import CheckpointError
from ..runtime.text.tokenizer_files import TokenizerFiles, load_backend
from . import sentencepiece_model
from .added_tokens import add_declared_tokens, declared_tokens, read_tokenizer_config
from .chat_template_files import read_chat_template
from .json_file import read_json_object
from .vocabulary_files import MERGES, SENTENCE_PIECES, VOCABULARY, WORD_PIECES, rules_of

# Tokenizers that are no JSON.
VOCABULARIES = (MERGES, sentencepiece_model.FILE, WORD_PIECES, *SENTENCE_PIECES)
# The tokens that a chat template may name.
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")


def read_tokenizer_files(path: Path, vocab_size: int) -> TokenizerFiles:
    """The files in the folder ``path``; without a tokenizer.json, one is made of tokenizer.model or of a
    vocabulary. Raises CheckpointError, also for token ids beyond the model's vocabulary, and UnsupportedModel.
    """
    config = read_tokenizer_config(path)
    where = path / "tokenizer.json"
    named: dict[str, str | None] = dict.fromkeys(NAMED)
    if where.is_file():
        content = read_json_object(where)
        stored = where.read_bytes()
    elif (path / sentencepiece_model.FILE).is_file():
        where = path / sentencepiece_model.FILE
        model = sentencepiece_model.read_sentencepiece(where).renamed(config.values)
        content = sentencepiece_model.tokenizer_content(model, config)
        stored = json.dumps(content, ensure_ascii=False).encode()
        named = {f"{name}_token": model.token(name) for name in ("bos", "eos", "pad", "unk")}
    elif (rules := rules_of(config)) is not None:
        where = path / rules.file
        config = replace(config, values={**rules.tokens, **config.values})
        content = rules.content(config)
        stored = json.dumps(content, ensure_ascii=False).encode()
    else:
        raise _bad(
            path,
            f"has neither tokenizer.json nor {sentencepiece_model.FILE}, nor {VOCABULARY} with {MERGES}, nor any of "
            f"{', '.join((WORD_PIECES, *SENTENCE_PIECES))}; download the tokenizer too",
        )
    backend = load_backend(stored, where)
    _require_in_vocabulary(where, backend, vocab_size)
    add_bos_token = config.flag("add_bos_token", None)
    known = [token.content for token in backend.get_added_tokens_decoder().values()]
    changed = add_declared_tokens(backend, declared_tokens(config, known), vocab_size)
    special = {key: config.token_text(key) if config.has(key) else default for key, default in named.items()}
    return TokenizerFiles(
        where=where,
        content=with_added_tokens(content, backend).encode() if changed else stored,
        chat_template=read_chat_template(path, config.values),
        add_bos_token=add_bos_token,
        **special,
    )


def with_added_tokens(content: Mapping[str, Any], backend: Any) -> str:
    """The content of tokenizer.json with the added tokens of ``backend``, which was loaded from it. Nothing else
    changes.
    """
    added = json.loads(backend.to_str())["added_tokens"]
    return json.dumps({**content, "added_tokens": added}, ensure_ascii=False)


def _require_in_vocabulary(path: Path, backend: Any, vocab_size: int) -> None:
    size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if size > vocab_size:
        raise _bad(
            path,
            f"has token ids up to {size - 1}, but the model's vocabulary has {vocab_size} "
            "('vocab_size' in config.json); use the tokenizer that belongs to this model",
        )


def _bad(path: Path, message: str) -> CheckpointError:
    return CheckpointError(f"{path}: {message}", file=str(path))
