"""Rebuilds the tokenizer.json of a model from its tokenizer.model, a SentencePiece model of type BPE or unigram
(sentencepiece_model.proto and normalizer.cc of github.com/google/sentencepiece).

Texts get the ids that SentencePiece gives them, except that the tokenizers library drops combining marks after
characters that a model's own normalization replaces. As in transformers, control tokens and user-defined tokens are
found before a text is split. Each part of a text between them starts with a space if texts do, unless
tokenizer_config.json has "legacy": false.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from ..runtime.errors import CheckpointError, UnsupportedModel, reason_of
from .added_tokens import TokenizerConfig
from .json_file import reject_git_lfs_pointer
from .protobuf import Damaged, fields, signed
from .tokenizer_json import (
    BYTE,
    NORMAL,
    SPACE,
    TO_PIECES,
    USER_DEFINED,
    Vocabulary,
    added_tokens,
    bpe,
    implied_merges,
    pieces_decoder,
    precompiled,
    prefixed,
    surrounded,
)

FILE = "tokenizer.model"
MAX_BYTES = 256 << 20
UNIGRAM, BPE = 1, 2
# The score of a piece of a unigram model that no text may contain.
NEVER = -1e6
# Numbers of the fields that we read, with their defaults.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
TRAINER_FIELDS: Mapping[str, tuple[int, Any]] = {
    "model_type": (3, UNIGRAM), "treat_whitespace_as_suffix": (24, 0), "byte_fallback": (35, 0), "unk_id": (40, 0),
    "bos_id": (41, 1), "eos_id": (42, 2), "pad_id": (43, -1),
}  # fmt: skip
NORMALIZER_FIELDS: Mapping[str, tuple[int, Any]] = {
    "precompiled_charsmap": (2, b""), "add_dummy_prefix": (3, 1), "remove_extra_whitespaces": (4, 1),
    "escape_whitespaces": (5, 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """``trainer`` and ``normalizer`` have the values of TRAINER_FIELDS and NORMALIZER_FIELDS."""

    where: Path
    vocabulary: Vocabulary
    scores: tuple[float, ...]
    trainer: Mapping[str, Any]
    normalizer: Mapping[str, Any]

    @property
    def charsmap(self) -> bytes | None:
        """The model's normalization, as SentencePiece compiles it; None if it has none."""
        return self.normalizer["precompiled_charsmap"] or None

    def token(self, name: str) -> str | None:
        """The piece that is the model's "bos", "eos", "pad" or "unk" token, or None if the model lacks it."""
        number = self.trainer[f"{name}_id"]
        return self.vocabulary.tokens[number] if 0 <= number < len(self.vocabulary.tokens) else None

    def renamed(self, config: Mapping[str, Any]) -> SentencePieceModel:
        """The model with the names that tokenizer_config.json gives to unused pieces, as in transformers."""
        declared = config.get("added_tokens_decoder")
        tokens = list(self.vocabulary.tokens)
        for key, value in declared.items() if isinstance(declared, dict) else ():
            content = value.get("content") if isinstance(value, dict) else None
            number = int(key) if key.isascii() and key.isdigit() and len(key) < 16 else len(tokens)
            if isinstance(content, str) and number < len(tokens) and content not in tokens:
                if self.vocabulary.kinds[number] in (NORMAL, BYTE):
                    # `add_declared_tokens` reports that the ids differ.
                    continue
                tokens[number] = content
        return replace(self, vocabulary=Vocabulary(tokens, self.vocabulary.kinds))


def tokenizer_content(model: SentencePieceModel, config: TokenizerConfig) -> dict[str, Any]:
    """The content of a tokenizer.json. Raises CheckpointError."""
    flags = {
        key: config.flag(key, default)
        for key, default in (
            ("add_prefix_space", bool(model.normalizer["add_dummy_prefix"])),
            ("legacy", True),
            ("add_bos_token", True),
            ("add_eos_token", False),
        )
    }
    prefix = flags["add_prefix_space"]
    vocabulary = model.vocabulary
    ids = vocabulary.ids()
    first = _named(config.values, "bos_token", model.token("bos")) if flags["add_bos_token"] else None
    last = _named(config.values, "eos_token", model.token("eos")) if flags["add_eos_token"] else None
    declared = config.values.get("added_tokens_decoder")
    values = declared.values() if isinstance(declared, dict) else ()
    named = [str(each.get("content")) for each in values if isinstance(each, dict)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(vocabulary, without=named),
        "normalizer": _normalizer(model, prefixes=prefix and flags["legacy"]),
        "pre_tokenizer": None if flags["legacy"] or not prefix else _first_prefix(),
        "post_processor": surrounded(first if first in ids else None, last if last in ids else None, ids),
        "decoder": pieces_decoder(strips=prefix),
        "model": _model(model),
    }


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Raises CheckpointError for a file that is damaged, UnsupportedModel for a model of another kind."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {reason_of(error)}; download it again") from error
    reject_git_lfs_pointer(data, str(path))
    if len(data) > MAX_BYTES:
        raise CheckpointError(f"{path}: is larger than {MAX_BYTES >> 20} MB; it is not a SentencePiece model")
    tokens: list[str] = []
    kinds: list[int] = []
    scores: list[float] = []
    parts: dict[int, bytes] = {TRAINER: b"", NORMALIZER: b""}
    try:
        for number, value in fields(data):
            if number == PIECES and isinstance(value, bytes):
                piece = {1: b"", 2: 0.0, 3: NORMAL, **dict(fields(value))}
                tokens.append(_bytes(piece[1]).decode())
                scores.append(float(piece[2]))
                kinds.append(int(piece[3]))
            elif number in parts and isinstance(value, bytes):
                parts[number] += value
        if not tokens:
            raise Damaged("it has no pieces")
        if (wrong := next((number for number, score in enumerate(scores) if not isfinite(score)), None)) is not None:
            raise Damaged(f"the score of piece {wrong} is {scores[wrong]}")
        trainer = _values(parts[TRAINER], TRAINER_FIELDS)
        if trainer["model_type"] == UNIGRAM and not 0 <= trainer["unk_id"] < len(tokens):
            raise Damaged(f"'unk_id' is {trainer['unk_id']}, and it has {len(tokens)} pieces")
        normalizer = _values(parts[NORMALIZER], NORMALIZER_FIELDS)
    except (Damaged, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: is not a SentencePiece model: {error}; download it again, or add the model's tokenizer.json",
            file=str(path),
        ) from error
    model = SentencePieceModel(path, Vocabulary(tokens, kinds), tuple(scores), trainer, normalizer)
    _require_supported(model)
    return model


def _require_supported(model: SentencePieceModel) -> None:
    tokens, kinds = model.vocabulary.tokens, model.vocabulary.kinds
    if len(set(tokens)) != len(tokens) or not all(NORMAL <= kind <= BYTE for kind in kinds):
        raise CheckpointError(
            f"{model.where}: has a piece twice, or a piece of an unknown type; download it again", file=str(model.where)
        )
    for name, found, expected in (
        ("model_type", model.trainer["model_type"], (UNIGRAM, BPE)),
        ("treat_whitespace_as_suffix", model.trainer["treat_whitespace_as_suffix"], (0,)),
        ("escape_whitespaces", model.normalizer["escape_whitespaces"], (1,)),
    ):
        if found not in expected:
            raise UnsupportedModel(
                f"{model.where}: {name!r} is {found}, which is not supported; supported: "
                f"{' and '.join(map(str, expected))}; add the model's tokenizer.json",
                file=str(model.where), key=name,
            )  # fmt: skip


def _model(model: SentencePieceModel) -> dict[str, Any]:
    vocabulary = model.vocabulary
    falls_back = bool(model.trainer["byte_fallback"])
    if model.trainer["model_type"] == BPE:
        merges = implied_merges(vocabulary, model.scores)
        return bpe(vocabulary.ids(), merges, unk_token=vocabulary.unknown, fuse_unk=True, byte_fallback=falls_back)
    pairs = [
        [token, score if kind in (NORMAL, USER_DEFINED) else NEVER]
        for token, kind, score in zip(vocabulary.tokens, vocabulary.kinds, model.scores, strict=True)
    ]
    return {"type": "Unigram", "unk_id": model.trainer["unk_id"], "vocab": pairs, "byte_fallback": falls_back}


def _normalizer(model: SentencePieceModel, *, prefixes: bool) -> dict[str, Any] | None:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append(precompiled(model.charsmap))
    if model.normalizer["remove_extra_whitespaces"]:
        for pattern, content in (("^ +| +$", ""), (" {2,}", " ")):
            steps.append({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    steps.append(prefixed() if prefixes else TO_PIECES)
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "normalizers": steps}


def _first_prefix() -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}


def _values(message: bytes, known: Mapping[str, tuple[int, Any]]) -> dict[str, Any]:
    found = dict(fields(message))
    values: dict[str, Any] = {}
    for name, (number, default) in known.items():
        value = found.get(number, default)
        if isinstance(default, bytes):
            values[name] = _bytes(value)
        elif isinstance(value, int):
            values[name] = signed(value)
        else:
            raise Damaged(f"{name!r} is not a number")
    return values


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise Damaged("a number in place of a text")
    return value


def _named(config: Mapping[str, Any], key: str, default: str | None) -> str | None:
    value = config.get(key, default)
    text = value.get("content") if isinstance(value, dict) else value
    # `read_tokenizer_files` reports values of other types.
    return text if isinstance(text, str) else None
