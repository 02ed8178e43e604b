from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.compiler.runtime.text.token_bound import bytes_per_token


def byte_level(vocab: dict[str, int] | None = None) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(
        models.BPE(
            vocab={**alphabet, "ab": 256} if vocab is None else vocab, merges=[("a", "b")] if vocab is None else []
        )
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def byte_fallback() -> Any:
    from tokenizers import Tokenizer, models, normalizers

    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab, [("▁", "a")], byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend


def composed() -> Any:
    from tokenizers import normalizers

    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    return backend


@pytest.mark.parametrize(("make", "limit"), [(byte_level, 2), (byte_fallback, 6), (composed, 8)])
@settings(max_examples=60)
@given(text=st.one_of(st.text(max_size=20), st.text("ab A\u1fbe\u0308\u0301\u212a", max_size=20)))
def test_no_token_represents_more_bytes_than_the_limit(make: Callable[[], Any], limit: int, text: str) -> None:
    backend = make()
    assert bytes_per_token(backend) == limit
    assert len(backend.encode(text).ids) * limit >= len(text.encode())


def test_an_added_token_counts_with_its_own_length() -> None:
    backend = byte_level()
    backend.add_special_tokens(["<|end|>"])
    assert bytes_per_token(backend) == 7


def shrinking() -> dict[str, Any]:
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    stripped, spaced, deleted, absorbing = byte_level(), byte_level(), byte_level(), byte_level()
    stripped.normalizer = normalizers.Strip()
    deleted.normalizer = normalizers.Replace(Regex(" +"), " ")
    spaced.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()])
    absorbing.add_special_tokens([AddedToken("<|end|>", rstrip=True)])
    words = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    return {
        "a normalizer strips": stripped,
        "a normalizer deletes": deleted,
        "a pre-tokenizer removes": spaced,
        "a token absorbs space": absorbing,
        "bytes are missing": byte_level({"a": 0}),
        "words are unknown": words,
    }


@pytest.mark.parametrize("why", ["a normalizer strips", "a normalizer deletes", "a pre-tokenizer removes",
                                 "a token absorbs space", "bytes are missing", "words are unknown"])  # fmt: skip
def test_the_number_of_bytes_is_unlimited_if_text_may_be_dropped(why: str) -> None:
    assert bytes_per_token(shrinking()[why]) is None


def test_nfc_does_not_shrink_text_to_less_than_a_fourth() -> None:
    def size(text: str) -> int:
        return len(text.encode())

    characters = [chr(code) for code in range(0x110000) if unicodedata.decomposition(chr(code))]
    # The longest way to write each character that others decompose into.
    longest: dict[str, int] = {}
    for character in characters:
        parts = unicodedata.normalize("NFD", character)
        if len(parts) == 1:
            longest[parts] = max(longest.get(parts, 0), size(character))
    composed = {unicodedata.normalize("NFC", character) for character in characters} | set(longest)
    ratios = {
        text: sum(max(longest.get(part, 0), size(part)) for part in unicodedata.normalize("NFD", text)) / size(text)
        for text in composed
    }
    assert max(ratios.values()) == ratios["\u0390"] == 3.5
