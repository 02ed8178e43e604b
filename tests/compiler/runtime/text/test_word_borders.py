"""Texts that are much longer than a context: only their beginnings are tokenized, with the tokens of the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from encoder_tokenizers import TEXTS, UNKNOWN, VECTORS
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.beginnings import Beginnings
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.compiler.runtime.text.word_borders import WINDOW, border_before, border_pattern

MODELS: dict[str, Any] = json.loads(VECTORS.read_text())["tokenizers"]
WORDS = st.sampled_from(
    [
        "hello",
        "日本語",
        "中文",
        "🦊",
        "e\u0301",
        "ﬁ",
        "!!",
        "...",
        "<mask>",
        "kept",
        "xxx",
        "∀",
        "\u200b",
        *"aZ9",
    ]
)
PARTS = st.one_of(
    WORDS,
    st.sampled_from([" ", "  ", "\n", "\u3000", "\u00a0"]),
    st.sampled_from([text for text in TEXTS if "[CLS]" not in text]),
)


def tokenizer(name: str, *, whole: bool = False) -> Tokenizer:
    """``whole``: one that always tokenizes complete texts."""
    files = TokenizerFiles(Path("tokenizer.json"), json.dumps(MODELS[name]).encode(), unk_token=UNKNOWN[name])
    made = Tokenizer(files)
    if whole:
        made.__dict__["_beginnings"] = Beginnings(made._backend, None, None, None)
    return made


def shortened(made: Tokenizer, text: str, count: int) -> Any:
    try:
        pair = made.encode_shortened("hello", text, count + 6)
        return made.encode_shortened(text, None, count), pair, made.beginning(text, count)
    except RequestError as error:
        return error.message


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=60)
@given(parts=st.lists(PARTS, min_size=1, max_size=12), times=st.integers(1, 40), count=st.integers(0, 40))
# A word that is too long for BERT is one token, whose beginning would be several.
@example(parts=["hello"], times=40, count=1)
def test_a_shortened_text_has_the_tokens_of_the_whole(name: str, parts: list[str], times: int, count: int) -> None:
    text = "".join(parts) * times
    whole = shortened(WHOLE[name], text, count)
    # What follows the beginning is not read, so control tokens there that cannot be split are no error.
    assert shortened(TOKENIZERS[name], text, count) == whole or isinstance(whole, str)
    least = TOKENIZERS[name].least_tokens(text, count)
    try:
        assert least <= len(WHOLE[name].encode(text, add_special_tokens=False))
    except RequestError:
        assert least >= 0


TOKENIZERS = {name: tokenizer(name) for name in MODELS}
WHOLE = {name: tokenizer(name, whole=True) for name in MODELS}


class Longest:
    """A tokenizer's backend that records the longest text that it encodes."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.characters = backend, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        if not name.startswith("encode_batch"):
            return found

        def encode(texts: list[str], **options: Any) -> Any:
            self.characters = max(self.characters, *map(len, texts))
            return found(texts, **options)

        return encode


TEXTS_OF_ONE_KIND = ["a ", "hello world ", "日本語中文", "!", "the boat. ", "f(x, y) ", "ab", "1", "é", "龘", "🦊👍"]
# A long word of BERT is one token, and so are characters that Unigram does not know. ALBERT's normalizer changes the
# number of characters of a long word with accents.
_LONG = ("ab", "1", "é", "🦊👍")
ONE_WORD = {
    "bert-cased": _LONG,
    "bert-uncased": _LONG,
    "mpnet": _LONG,
    "albert": ("é", "龘"),
    **dict.fromkeys(("deberta-v2", "deberta-v3", "xlm-roberta"), ("龘",)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", TEXTS_OF_ONE_KIND)
def test_a_text_that_cannot_fit_is_tokenized_only_at_its_beginning(name: str, text: str) -> None:
    made = tokenizer(name)
    backend = made._backend = Longest(made._backend)
    long = text * (1_000_000 // len(text))
    if text in ONE_WORD.get(name, ()):
        assert made.least_tokens(long, 256) == 0
        return
    assert made.least_tokens(long, 256) > 256
    assert len(made.encode_shortened(long, None, 256).ids) == 256
    assert len(made.encode_shortened("hello", long, 256).ids) == 256
    assert len(made.beginning(long, 256)) < 10_000
    assert backend.characters <= 16 * 8 * 256


def test_long_words_of_a_single_letter_are_counted_by_the_longest_piece() -> None:
    made = tokenizer("xlm-roberta")
    assert made.least_tokens("x" * 100_000, 256) > 256
    # Adjacent unknown characters are one token.
    assert made.least_tokens("∀" * 100_000, 256) == made.least_tokens("~" * 100_000, 256) == 0


@pytest.mark.parametrize("text", ["x", "xlo", "lox", "日本語", "日本語日"])
def test_the_end_of_a_long_word_may_change_all_of_its_pieces(text: str) -> None:
    for length in range(1000, 1000 + 2 * len(text)):
        word = (text * length)[:length]
        assert shortened(TOKENIZERS["xlm-roberta"], word, 9) == shortened(WHOLE["xlm-roberta"], word, 9)


def test_a_tokenizer_that_does_not_divide_at_spaces_has_no_borders() -> None:
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

    def words(pre_tokenizer: Any, normalizer: Any = None, added: str = "<s>") -> Any:
        backend = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
        if pre_tokenizer is not None:
            backend.pre_tokenizer = pre_tokenizer
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.add_tokens([AddedToken(added)])
        return backend

    spaces, joins = pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(split=False)
    assert border_pattern(words(spaces)) is not None
    assert border_pattern(words(pre_tokenizers.ByteLevel())) is not None
    for backend in (
        words(None),
        words(joins),
        words(spaces, added="New York"),
        words(spaces, normalizers.Sequence([normalizers.Replace(" ", ""), normalizers.NFC()])),
    ):
        assert border_pattern(backend) is None


def test_the_last_border_near_the_place_is_found() -> None:
    pattern = border_pattern(TOKENIZERS["xlm-roberta"]._backend)
    assert pattern is not None
    assert border_before(pattern, "ab cd ef", 7) == 5
    assert border_before(pattern, "ab cd ef", 5) == 2
    assert border_before(pattern, "ab  cd\n -e", 10) is None
    assert border_before(pattern, "a b" + "x" * WINDOW, WINDOW + 2) is None
