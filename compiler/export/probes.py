"""Texts with which two tokenizers are compared: their ids must be equal."""

from __future__ import annotations

import json

from ..formats.checkpoint import TokenizerFiles
from ..text.tokenizer import Tokenizer

TEXTS = (
    "",
    "The quick brown fox jumps over the lazy dog, twice; isn't that 3,141.59 times too many?",
    "I'LL say we've  TWO   spaces,\ttabs\t\tand\n\nlines\r\n  \n indented.",
    'fn main() { let x_1 = vec![0u8; 1024]; println!("{:?}", x_1); } // 100%',
    " leading, trailing ",
    "   ",
    "\n\n\n",
    "Größe, façade, naïve, Ελλάδα, Привет мир, 你好世界, こんにちは, 안녕하세요, مرحبا, नमस्ते, สวัสดี",
    "cafe\u0301 ﬁne ① ½ \u200b\u00a0| 😀👩‍👩‍👧 ✈️ \u2581x \x00 \x7f",
    "12345678901234567890 0x1F 1e-5 v2.0.1",
)


def different_texts(files: TokenizerFiles, other: TokenizerFiles) -> list[str]:
    """The texts with other ids: prose, code, numbers, many scripts, and every added token between spaces."""
    one, two = Tokenizer(files), Tokenizer(other)
    added = [each["content"] for each in json.loads(files.content).get("added_tokens") or []]
    texts = [*TEXTS, *(f"{left}{token}{right}" for token in added[:512] for left, right in (("", "x"), ("a ", " b ")))]
    return [
        text
        for text in texts
        if one.encode(text) != two.encode(text)
        or one.encode(text, split_special_tokens=False) != two.encode(text, split_special_tokens=False)
    ]
