"""Byte-level tokenizers: how each splits a text into words, by llama.cpp's name ("tokenizer.ggml.pre"), and the parts
of their tokenizer.json. The regular expressions are those of the models' own tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .tokenizer_json import bpe

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WHITE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _WHITE
)  # fmt: skip
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _WHITE
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _WHITE
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _WHITE
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _WHITE
)
# Where their words end may depend on the end of a long run of letters: of "日" and capitals, a word ends behind "日" if
# no small letter follows the capitals, and else behind it.
FAR_READING = frozenset({_TEKKEN, _GPT4O})


@dataclass(frozen=True, slots=True)
class Words:
    """The rules by which a byte-level tokenizer splits a text into words: each of ``patterns`` in turn. ``whole``: a
    word that is itself a token is not built from merges. ``bos``: a text starts with the bos token by default.
    ``composed``: the text is normalized to NFC.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    bos: bool = False
    composed: bool = False


_GPT2_WORDS = Words((_GPT2,))
_LLAMA3_WORDS = Words((_LLAMA3,), whole=True, bos=True)
_QWEN2_WORDS = Words((_QWEN2,), composed=True)
_DIGITS_WORDS = Words((r"\p{N}", _GPT2))
WORDS = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4", "granite-docling", "roberta-bpe"), _GPT2_WORDS),
    "modern-bert": Words((_GPT2,), composed=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "midm-2.0", "pixtral"), _LLAMA3_WORDS),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), Words((_LLAMA3,))),
    "glm4": Words((_LLAMA3,), whole=True),
    **dict.fromkeys(("qwen2", "megrez", "kormo"), _QWEN2_WORDS),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan"), Words((_QWEN2,))),
    "qwen35": Words((_QWEN35,)),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone"), _DIGITS_WORDS),
    "tekken": Words((_TEKKEN,), whole=True, bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Words((_GPT4O,))),
}  # fmt: skip


def byte_level(words: Words, ids: Mapping[str, int], merges: list[list[str]]) -> dict[str, Any]:
    """The parts of a tokenizer.json, from the vocabulary and the merges."""
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in words.patterns
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": {"type": "NFC"} if words.composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, bytes_]},
        "decoder": bytes_,
        "model": bpe(dict(ids), merges, ignore_merges=words.whole),
    }
