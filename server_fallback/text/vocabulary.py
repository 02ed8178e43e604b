"""Reads the bytes of each token from a tokenizer.json, for log-probabilities and for grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar.compiler.runtime.errors import BundleError, RequestError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``tokens`` has the bytes of each id that the model has logits for, None if the id has no token.

    ``special_ids`` are the special tokens, which are not part of an answer's text; their bytes are those of their
    names. ``spaced_by`` names a decoder that puts spaces between words, so that the bytes of its tokens do not add up
    to the text; it is None for other decoders.
    """

    tokens: tuple[bytes | None, ...]
    special_ids: frozenset[int]
    eos_token_ids: tuple[int, ...]
    spaced_by: str | None

    @property
    def size(self) -> int:
        return len(self.tokens)

    def name(self, token_id: int) -> str:
        """The token as text; incomplete characters become U+FFFD."""
        return (self.tokens[token_id] or b"").decode(errors="replace")

    def written(self, token_id: int, skip_special_tokens: bool) -> bytes:
        """The bytes that a token adds to decoded text."""
        return b"" if skip_special_tokens and token_id in self.special_ids else self.tokens[token_id] or b""

    def spoken(self) -> list[bytes]:
        """The bytes that each id adds to an answer's text.

        Raises RequestError for a tokenizer that puts spaces between words.
        """
        if self.spaced_by is not None:
            raise RequestError(
                f"a grammar needs a tokenizer whose tokens are bytes; this model's decoder, {self.spaced_by}, puts "
                "spaces "
                "between words"
            )
        silent = self.special_ids | set(self.eos_token_ids)
        return [b"" if token is None or index in silent else token for index, token in enumerate(self.tokens)]


def read_vocabulary(
    tokenizer_json: Path, vocab_size: int, eos_token_ids: Sequence[int], spoken: Collection[str] = ()
) -> Vocabulary:
    """``spoken`` are added tokens that are part of an answer's text even if they are special.

    Raises BundleError for a file that is not a tokenizer.
    """
    try:
        file = json.loads(tokenizer_json.read_bytes())
        entries = _entries(file["model"]["vocab"])
        added = [
            (int(token["id"]), str(token["content"]), bool(token["special"]) and token["content"] not in spoken)
            for token in file.get("added_tokens") or ()
        ]
        parts = _decoders(file.get("decoder"))
        bytes_of = _token_bytes(parts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{tokenizer_json}: is not a tokenizer: {error!r}; compile the bundle again") from error
    tokens: list[bytes | None] = [None] * vocab_size
    for name, token_id in entries:
        if 0 <= token_id < vocab_size:
            tokens[token_id] = bytes_of(name)
    for token_id, content, _ in added:
        if 0 <= token_id < vocab_size:
            tokens[token_id] = content.encode()
    types = [part["type"] for part in parts]
    return Vocabulary(
        tuple(tokens),
        frozenset(token_id for token_id, _, special in added if special),
        tuple(eos_token_ids),
        ", ".join(types) if {"WordPiece", "BPEDecoder", "CTC"} & set(types) else None,
    )


def _entries(vocab: Mapping[str, int] | Sequence[tuple[str, float]]) -> list[tuple[str, int]]:
    """Most models have a mapping from names to ids; Unigram models have a list of names and scores."""
    if isinstance(vocab, Mapping):
        return [(str(name), int(token_id)) for name, token_id in vocab.items()]
    return [(str(name), index) for index, (name, _) in enumerate(vocab)]


def _decoders(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _token_bytes(parts: Sequence[Mapping[str, Any]]) -> Callable[[str], bytes]:
    """The way in which the decoder converts a token's name to bytes."""
    types = {part["type"] for part in parts}
    if "ByteLevel" in types:
        byte_of = {character: byte for byte, character in enumerate(_byte_characters())}

        def byte_level(name: str) -> bytes:
            try:
                return bytes([byte_of[character] for character in name])
            except KeyError:
                return name.encode()

        return byte_level
    replaced = [
        part["pattern"].get("String") for part in parts if part["type"] == "Replace" and part.get("content") == " "
    ]
    spaces = [space for space in (*replaced, "▁" if "Metaspace" in types else None) if space]

    def byte_fallback(name: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(name) if "ByteFallback" in types else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        for space in spaces:
            name = name.replace(space, " ")
        return name.encode()

    return byte_fallback


def _byte_characters() -> list[str]:
    """The characters that byte-level tokenizers write for bytes: printable bytes as they are, the others from U+0100.

    Radford et al. 2019.
    """
    hidden = iter(range(0x100, 0x200))
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return [chr(byte) if byte in printable else chr(next(hidden)) for byte in range(256)]
