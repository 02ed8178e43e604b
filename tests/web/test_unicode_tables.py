"""The sets of characters in web/src/encoders/tokenizer/unicode_tables.ts are those of the tokenizers library."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from conftest import ROOT

SOURCE = ROOT / "web/src/encoders/tokenizer/unicode_tables.ts"


def characters_of(name: str) -> set[int]:
    code = re.search(rf"const {name} = new CharacterSet\((.*?)\);", SOURCE.read_text(), flags=re.DOTALL)
    assert code is not None
    numbers = [int(digits, 36) for digits in "".join(re.findall(r'"([^"]*)"', code[1])).split()]
    found, end = set(), 0
    for distance, more in zip(numbers[::2], numbers[1::2], strict=True):
        start = end + distance
        end = start + more
        found |= set(range(start, end + 1))
    return found


@pytest.mark.exhaustive
def test_the_tables_are_those_of_the_library() -> None:
    from tokenizers import normalizers, pre_tokenizers

    options = {"handle_chinese_chars": False, "lowercase": False}
    clean = normalizers.BertNormalizer(clean_text=True, strip_accents=False, **options)
    strip = normalizers.BertNormalizer(clean_text=False, strip_accents=True, **options)
    divide = pre_tokenizers.BertPreTokenizer()
    tests: dict[str, Callable[[str], bool]] = {
        "CONTROLS": lambda each: clean.normalize_str(f"a{each}") == "a",
        "ACCENTS": lambda each: strip.normalize_str(f"a{each}") == "a",
        "PUNCTUATION": lambda each: [word for word, _ in divide.pre_tokenize_str(f"a{each}b")] == ["a", each, "b"],
    }
    accents = normalizers.StripAccents()
    codes = [code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    for name, holds in tests.items():
        assert {code for code in codes if holds(chr(code))} == characters_of(name), name
    marks = {code for code in codes if accents.normalize_str(f"a{chr(code)}") == "a"}
    assert marks - characters_of("ACCENTS") == characters_of("OTHER_MARKS")
    assert marks > characters_of("ACCENTS")
