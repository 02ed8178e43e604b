"""A lower bound on the number of tokens of a text, so that a text that is too long is refused before it is encoded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# NFC composes characters: at most 7 bytes of UTF-8 (U+1FBE U+0308 U+0301) become 2 (U+0390).
_NFC_SHRINK = 4
# The name of a single byte's token in byte-fallback tokenizers.
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_KEEPING_PRE_TOKENIZERS = ("ByteLevel", "Metaspace", "Digits")


def bytes_per_token(backend: Any) -> int | None:
    """The maximum number of bytes of a text that one token of a `tokenizers.Tokenizer` can represent; None if it is
    unlimited.

    The limit exists only for BPE tokenizers that encode every byte and drop no text. It does not exist with a
    normalizer other than NFC, Prepend and a Replace that does not shorten, a pre-tokenizer that removes text, an added
    token that absorbs white space, or an unknown token.
    """
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    normalizers, pre_tokenizers = (
        component_parts(backend.normalizer, "normalizers"),
        component_parts(backend.pre_tokenizer, "pretokenizers"),
    )
    added = backend.get_added_tokens_decoder().values()
    byte_level = any(part["type"] == "ByteLevel" for part in pre_tokenizers)
    keeps = (
        bytes_are_tokens(backend)
        and all(part["type"] == "NFC" or _grows(part) for part in normalizers)
        and all(_keeps(part) for part in pre_tokenizers)
        and not any(token.lstrip or token.rstrip for token in added)
    )
    if not keeps:
        return None
    # A byte-level name has one character for each byte.
    longest = max(len(name) if byte_level else len(name.encode()) for name in vocab)
    longest = max([longest, *(len(token.content.encode()) for token in added)])
    return longest * (_NFC_SHRINK if any(part["type"] == "NFC" for part in normalizers) else 1)


def bytes_are_tokens(backend: Any) -> bool:
    """Whether a `tokenizers.Tokenizer` is of BPE and encodes every byte, so that no text is unknown."""
    model = backend.model
    if type(model).__name__ != "BPE":
        return False
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    if any(part["type"] == "ByteLevel" for part in component_parts(backend.pre_tokenizer, "pretokenizers")):
        return _has_byte_level(vocab)
    return _falls_back_to_bytes(model, vocab)


def component_parts(component: Any, several: str) -> list[Mapping[str, Any]]:
    """The parts of a normalizer or a pre-tokenizer, in the form of tokenizer.json."""
    return [] if component is None else _flat(json.loads(component.__getstate__()), several)


def _flat(part: Mapping[str, Any], several: str) -> list[Mapping[str, Any]]:
    return [inner for each in part[several] for inner in _flat(each, several)] if part["type"] == "Sequence" else [part]


def _grows(part: Mapping[str, Any]) -> bool:
    if part["type"] == "Replace":
        pattern = part["pattern"].get("String")
        return pattern is not None and len(part["content"].encode()) >= len(pattern.encode())
    return bool(part["type"] == "Prepend")


def _keeps(part: Mapping[str, Any]) -> bool:
    if part["type"] in ("Split", "Punctuation"):
        return bool(part["behavior"] != "Removed")
    return part["type"] in _KEEPING_PRE_TOKENIZERS


def _has_byte_level(vocab: Mapping[str, int]) -> bool:
    from tokenizers.pre_tokenizers import ByteLevel

    return all(character in vocab for character in ByteLevel.alphabet())


def _falls_back_to_bytes(model: Any, vocab: Mapping[str, int]) -> bool:
    return bool(getattr(model, "byte_fallback", False)) and all(f"<0x{byte:02X}>" in vocab for byte in range(256))
