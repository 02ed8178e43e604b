"""Writes the parts of a tokenizer.json from a vocabulary in another format."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The kinds of tokens, with SentencePiece's numbers.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# SentencePiece's character for a space.
SPACE = "\u2581"
# What begins a word piece that continues a word.
CONTINUES = "##"
TO_PIECES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a file by id, and the kind of each."""

    tokens: Sequence[str]
    kinds: Sequence[int]

    def ids(self) -> dict[str, int]:
        """The ids of all tokens that may occur."""
        return {token: number for number, token in enumerate(self.tokens) if self.kinds[number] != UNUSED}

    @property
    def unknown(self) -> str | None:
        pairs = zip(self.tokens, self.kinds, strict=True)
        return next((token for token, kind in pairs if kind == UNKNOWN), None)


def bpe(ids: dict[str, int], merges: list[list[str]], **options: Any) -> dict[str, Any]:
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        **options, "vocab": ids, "merges": merges,
    }  # fmt: skip


def word_pieces(
    ids: dict[str, int],
    unknown: str,
    *,
    lowercases: bool,
    strips_accents: bool | None = None,
    splits_chinese: bool = True,
) -> dict[str, Any]:
    """The parts of BERT's tokenizer. ``strips_accents`` None: if it ``lowercases``."""
    return {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": splits_chinese,
            "strip_accents": strips_accents, "lowercase": lowercases,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": CONTINUES, "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": CONTINUES,
            "max_input_chars_per_word": 100, "vocab": ids,
        },
    }  # fmt: skip


def scored_pieces(pieces: Sequence[tuple[str, float]], unknown: int, charsmap: bytes | None) -> dict[str, Any]:
    """The parts of a SentencePiece tokenizer that chooses the likeliest pieces of each word. ``charsmap``: its
    normalization, as SentencePiece compiles it.
    """
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    return {
        "normalizer": None if charsmap is None else precompiled(charsmap),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": list(map(list, pieces)), "byte_fallback": False},
    }


def precompiled(charsmap: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}


def implied_merges(vocabulary: Vocabulary, scores: Sequence[float] | None) -> list[list[str]]:
    """The merges of a SentencePiece vocabulary, which lists none: every pair of tokens that form a token, in the order
    of the merged tokens' ``scores``, or of their ids.
    """
    ids = {
        token: number
        for number, token in enumerate(vocabulary.tokens)
        if vocabulary.kinds[number] in (NORMAL, USER_DEFINED)
    }
    ranked = []
    for token, number in ids.items():
        rank = float(number) if scores is None else -float(scores[number])
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                ranked.append((rank, ids[left], ids[right], left, right))
    return [[left, right] for *_, left, right in sorted(ranked)]


def prefixed() -> dict[str, Any]:
    """The normalizer that puts a space before each text."""
    return {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, TO_PIECES]}


def pieces_decoder(*, strips: bool) -> dict[str, Any]:
    """From pieces to text. ``strips``: without the space that starts each text."""
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strips:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": decoders}


def added_tokens(
    vocabulary: Vocabulary, stripping: Collection[str] = (), without: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The tokens that are found in a text before it is split: special and user-defined tokens. Tokens in ``stripping``
    include the white space after them; those in ``without`` are left out.
    """
    added = []
    for number, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind not in (CONTROL, UNKNOWN, USER_DEFINED) or not token or token in without:
            continue
        added.append(
            {
                "id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": token in stripping,
                "normalized": False, "special": kind != USER_DEFINED,
            }
        )  # fmt: skip
    return added


def surrounded(first: str | None, last: str | None, ids: dict[str, int]) -> dict[str, Any] | None:
    """A template that starts each text with a token and ends it with another. None if neither token is given."""
    if first is None and last is None:
        return None
    texts: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    before, behind = ([{"SpecialToken": {"id": token, "type_id": 0}}] if token else [] for token in (first, last))
    single, other = [*before, texts[0], *behind], [*before, texts[1], *behind]
    special = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (first, last) if token}
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *other], "special_tokens": special}


def around_texts(
    first: str, last: str, ids: Mapping[str, int], *, doubled: bool, trims: bool = False
) -> dict[str, Any]:
    """What puts special tokens around a text, and one or with ``doubled`` two between those of a pair, whose second has
    tokens of another type unless ``doubled``. ``trims``: the places of tokens are without the spaces in them.
    """
    ends = {"sep": (last, ids[last]), "cls": (first, ids[first])}
    if doubled:
        return {"type": "RobertaProcessing", **ends, "trim_offsets": trims, "add_prefix_space": False}
    return {"type": "BertProcessing", **ends}
