"""The keys of a GGUF file for a tokenizer.json: the inverse of `tokenizer.py`.

llama.cpp identifies the split of words by a name. A split without a name, and everything else that no key expresses, is
refused. What differs nevertheless shows when the file is read again; see `export/gguf_file.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...nearest import did_you_mean
from ...runtime.errors import UnsupportedModel
from ...runtime.text.tokenizer_files import TokenizerFiles, load_backend
from ..byte_level import WORDS
from ..tokenizer_json import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    implied_merges,
)
from .tokenizer import ENDS
from .writer import Value

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
# The patterns by which `ByteLevel` and `Digits` split.
_OWN_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGITS = r"\p{N}"
NO_TOKENIZER: Mapping[str, Value] = {"tokenizer.ggml.model": "none"}


def tokenizer_metadata(
    files: TokenizerFiles, architecture: str, vocab_size: int, end_ids: Sequence[int], pre: str | None = None
) -> dict[str, Value]:
    """``end_ids``: the tokens that end an answer. ``pre``: the name of the split of words to write, whatever the
    tokenizer's is. Raises UnsupportedModel.
    """
    return _Tokenizer(files, architecture).metadata(vocab_size, end_ids, pre)


def byte_level_metadata(files: TokenizerFiles, architecture: str, vocab_size: int, pre: str | None) -> dict[str, Value]:
    """The vocabulary and the split of words of a byte-level tokenizer, without the tokens around a text."""
    return _Tokenizer(files, architecture).byte_level(vocab_size, pre)


class _Tokenizer:
    def __init__(self, files: TokenizerFiles, architecture: str) -> None:
        self._files, self._architecture = files, architecture
        self._content: dict[str, Any] = json.loads(files.content)
        self._model: dict[str, Any] = self._content["model"]
        if self._model.get("type", "BPE") != "BPE":
            raise self._unsupported(f"its model is {self._model.get('type')!r}; only BPE can be exported")
        self._added: list[dict[str, Any]] = self._content.get("added_tokens") or []
        self._ids = {**self._model["vocab"], **{each["content"]: each["id"] for each in self._added}}
        self._merges = [
            merge.split(" ", 1) if isinstance(merge, str) else list(merge) for merge in self._model["merges"]
        ]

    def metadata(self, vocab_size: int, end_ids: Sequence[int], pre: str | None) -> dict[str, Value]:
        vocabulary = self._vocabulary(vocab_size)
        keys = self._byte_level(pre) if not self._model.get("byte_fallback") else self._pieces(vocabulary, pre)
        texts = {"bos": self._files.bos_token, "padding": self._files.pad_token, "unknown": self._files.unk_token}
        named = {key: self._ids.get(text) for key, text in texts.items() if text is not None}
        eos = None if self._files.eos_token is None else self._ids.get(self._files.eos_token)
        ends = list(dict.fromkeys([*([] if eos is None else [eos]), *end_ids]))
        # llama.cpp knows the others by their names.
        unnamed = [end for end in ends[1:] if vocabulary.tokens[end] not in ENDS]
        if len(unnamed) > 2:
            raise self._unsupported(
                f"{len(ends)} tokens end an answer, of which GGUF names three: "
                f"{', '.join(vocabulary.tokens[end] for end in ends)}"
            )
        named |= dict(zip(("eos", "eot", "eom"), [*ends[:1], *unnamed], strict=False))
        return {
            **keys,
            "tokenizer.ggml.tokens": vocabulary.tokens,
            "tokenizer.ggml.token_type": np.array(vocabulary.kinds, np.int32),
            **{f"tokenizer.ggml.{key}_token_id": number for key, number in named.items() if number is not None},
            "tokenizer.ggml.add_bos_token": self._adds_bos(),
            **({"tokenizer.chat_template": self._files.chat_template} if self._files.chat_template else {}),
        }

    def byte_level(self, vocab_size: int, pre: str | None) -> dict[str, Value]:
        if self._model.get("byte_fallback"):
            raise self._unsupported("an encoder's pieces with single bytes cannot be exported")
        vocabulary, unknown = self._vocabulary(vocab_size), self._ids.get(self._files.unk_token or "<unk>")
        return {
            **self._byte_level(pre),
            "tokenizer.ggml.tokens": vocabulary.tokens,
            "tokenizer.ggml.token_type": np.array(vocabulary.kinds, np.int32),
            **({} if unknown is None else {"tokenizer.ggml.unknown_token_id": unknown}),
        }

    def _vocabulary(self, vocab_size: int) -> Vocabulary:
        """A token for each row of the embedding."""
        tokens = [f"[PAD{number}]" for number in range(vocab_size)]
        kinds = [UNUSED] * vocab_size
        specials = {each["content"]: each["special"] for each in self._added}
        unknown = self._model.get("unk_token")
        for token, number in self._ids.items():
            if kinds[number] != UNUSED:
                raise self._unsupported(f"tokens {tokens[number]!r} and {token!r} have the same id")
            tokens[number] = token
            if token in specials:
                kinds[number] = CONTROL if specials[token] else USER_DEFINED
            else:
                kinds[number] = BYTE if self._model.get("byte_fallback") and _BYTE_TOKEN.fullmatch(token) else NORMAL
            if token == unknown:
                kinds[number] = UNKNOWN
        if len(set(tokens)) < len(tokens):
            raise self._unsupported("it has a token that is named as the ones that fill the vocabulary, '[PAD...]'")
        return Vocabulary(tokens, kinds)

    def _byte_level(self, pre: str | None) -> dict[str, Value]:
        if pre is None:
            pre = self._split_name()
        elif pre not in WORDS:
            raise self._unsupported(f"the split of words {pre!r} is not known{did_you_mean(pre, list(WORDS))}")
        spaced = next((merge for merge in self._merges if any(" " in part for part in merge)), None)
        if spaced is not None:
            raise self._unsupported(f"the merge of {spaced} has a space, which GGUF cannot express")
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.merges": [" ".join(merge) for merge in self._merges],
        }

    def _split_name(self) -> str:
        splits, composed = self._splits(), self._content.get("normalizer") == {"type": "NFC"}
        whole = bool(self._model.get("ignore_merges"))
        for name, words in WORDS.items():
            if splits == words.patterns and (composed, whole) == (words.composed, words.whole):
                return name
        raise self._unsupported(
            f"llama.cpp has no name for its split of words, by {' then '.join(map(repr, splits or ('nothing',)))}"
            f"{' after NFC' if composed else ''}; give the name of another split with --pre, or --no-tokenizer to "
            "export only the weights"
        )

    def _splits(self) -> tuple[str, ...]:
        """The patterns that a text is split by, in order."""
        normalizer = self._content.get("normalizer")
        if normalizer not in (None, {"type": "NFC"}):
            raise self._unsupported(f"GGUF cannot express its normalizer {normalizer}")
        step = self._content.get("pre_tokenizer") or {}
        steps = step.get("pretokenizers", [step])
        patterns: list[str] = []
        for each in steps:
            kind = each.get("type")
            if (
                kind == "Split"
                and each["behavior"] == "Isolated"
                and not each.get("invert")
                and "Regex" in each["pattern"]
            ):
                patterns.append(each["pattern"]["Regex"])
            elif kind == "Digits" and each.get("individual_digits"):
                patterns.append(_DIGITS)
            elif kind == "ByteLevel" and not each.get("add_prefix_space"):
                patterns += [_OWN_SPLIT] if each.get("use_regex", True) else []
            else:
                raise self._unsupported(f"GGUF cannot express its split of words by {each}")
        return tuple(patterns)

    def _pieces(self, vocabulary: Vocabulary, pre: str | None) -> dict[str, Value]:
        """A SentencePiece vocabulary: llama.cpp merges the pair whose token has the highest score."""
        if pre is not None:
            raise self._unsupported("it splits no words by a pattern; remove --pre")
        is_gemma = self._architecture.startswith("gemma")
        made: dict[str, int] = {}
        for rank, merge in enumerate(self._merges):
            made.setdefault("".join(merge), rank)
        scores = [
            -float(number if is_gemma else made.get(token, len(made) + number))
            for number, token in enumerate(vocabulary.tokens)
        ]
        # Gemma's are read in the order of their ids.
        if implied_merges(vocabulary, None if is_gemma else scores) != self._merges:
            raise self._unsupported("its merges do not follow from scores of its tokens, which GGUF has instead")
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": np.array(scores, np.float32),
            "tokenizer.ggml.add_space_prefix": self._prefixes(),
        }

    def _prefixes(self) -> bool:
        """Whether a text begins with a space."""
        normalizer, split = self._content.get("normalizer"), self._content.get("pre_tokenizer")
        steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        if split is None and steps == [{"type": "Prepend", "prepend": SPACE}, spaces]:
            return True
        if split is None and steps == [spaces]:
            return False
        # Gemma's split by spaces, of which none are left.
        if steps == [spaces] and split == {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
        }:  # fmt: skip
            return False
        if not steps and split is not None and split.get("type") == "Metaspace" and not split.get("split", True):
            scheme = split.get("prepend_scheme", "always")
            if split.get("replacement") == SPACE and scheme in ("first", "always", "never"):
                return bool(scheme != "never")
        raise self._unsupported(f"GGUF cannot express its normalizer {normalizer} with its split of words {split}")

    def _adds_bos(self) -> bool:
        """Whether a text begins with the bos token. Raises UnsupportedModel if it gets other tokens."""
        ids = load_backend(self._files.content, self._files.where).encode("", add_special_tokens=True).ids
        bos = None if self._files.bos_token is None else self._ids.get(self._files.bos_token)
        if ids not in ([], [bos]):
            raise self._unsupported(f"it adds the tokens {ids} to each text; GGUF can only add the bos token")
        return bool(ids) if self._files.add_bos_token is None else self._files.add_bos_token

    def _unsupported(self, message: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self._files.where}: {message}", file=str(self._files.where))
