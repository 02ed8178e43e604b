"""The tokens of a beginning that no continuation changes, compared with complete encodings of random vocabularies."""

from __future__ import annotations

import random
from itertools import pairwise
from string import ascii_letters
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from nearfar.compiler.formats.byte_level import FAR_READING, WORDS
from nearfar.compiler.runtime.text import stable_tokens
from nearfar.compiler.runtime.text.stable_tokens import StableTokens

CHARACTERS = "ab'lsLA1! \n\r\té日本\u0301▁/"
ADDED = ("<a>", "<a>b", "ll'", "1!")
PATTERNS = sorted(stable_tokens.PATTERNS)
CONTINUATIONS = [*CHARACTERS, "'ll", "  a", " \n", "ab" * 40, "日A" * 9, "\n" * 9, "11", "<a>b", "b!"]
# What splits a text into words, in front of the split into bytes.
SPLITS: dict[str, Any] = {
    "none": [],
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "digits": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)],
    **{f"split {index}": [pre_tokenizers.Split(Regex(each), "isolated")] for index, each in enumerate(PATTERNS)},
}


def merges(rng: random.Random, base: list[str], count: int, longest: int) -> list[tuple[str, str]]:
    """Random merges, most of the newest tokens, so that they cascade."""
    tokens, found = list(base), list[tuple[str, str]]()
    for _ in range(count):
        pool = tokens[-6:] if rng.random() < 0.5 else tokens
        pair = rng.choice(pool), rng.choice(tokens)
        if len("".join(pair)) <= longest and "".join(pair) not in tokens:
            tokens.append("".join(pair))
            found.append(pair)
    return found


def byte_level(split: str, seed: int, *, composed: bool, whole: bool) -> tuple[Any, str]:
    """A tokenizer, and characters that it merges."""
    rng = random.Random(seed)
    one = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    some = "".join(rng.sample(CHARACTERS, 4))
    spelled = sorted(set(one.pre_tokenize_str(some)[0][0]))
    pairs = merges(rng, spelled, rng.randrange(1, 30), rng.choice([2, 3, 5, 8]))
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, pairs)]
    made: Any = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, pairs, ignore_merges=whole))
    parts = SPLITS[split]
    made.pre_tokenizer = pre_tokenizers.Sequence([*parts, one] if not parts or split.startswith("split") else parts)
    if composed:
        made.normalizer = normalizers.NFC()
    made.add_tokens([AddedToken(name) for name in rng.sample(ADDED, rng.randrange(3))])
    return made, some


def sentence_pieces(seed: int) -> tuple[Any, str]:
    """A tokenizer that reads a whole text as one word, with bytes for unknown characters, as Gemma's and Llama 2's."""
    rng = random.Random(seed)
    some = "".join(rng.sample("abA1!▁日", 4))
    pairs = merges(rng, list(some), rng.randrange(1, 30), rng.choice([2, 3, 5, 8]))
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), *some, *map("".join, pairs)]
    model = models.BPE({name: index for index, name in enumerate(names)}, pairs, byte_fallback=True)
    made: Any = Tokenizer(model)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return made, some.replace("▁", " ")


def check(made: Any, beginning: str) -> int:
    """Compare the stable tokens of ``beginning`` with the whole encodings of its continuations; their number."""
    stable = StableTokens.of(made)
    assert stable is not None
    text = beginning + "a"
    cut = stable.cut(text, len(beginning))
    if cut is None:
        return 0
    encoding = made.encode(text[:cut], add_special_tokens=False)
    count = stable.count(encoding)
    for more in (text[cut : len(beginning)] + each for each in CONTINUATIONS):
        # A continuation may allow another cut only.
        if stable.cut(text[:cut] + more, cut) == cut:
            whole = made.encode(text[:cut] + more, add_special_tokens=False)
            assert encoding.ids[:count] == whole.ids[:count], (text[:cut], more)
    return count


TEXTS = st.lists(st.tuples(st.text(CHARACTERS, min_size=1, max_size=4), st.integers(1, 90)), min_size=1, max_size=4)


def run_of(parts: list[tuple[str, int]], some: str, seed: int) -> str:
    """A text of repeated parts, and of characters that have merges."""
    rng = random.Random(seed)
    merged = "".join(rng.choices(some, k=rng.randrange(1, 5))) * rng.randrange(120)
    return "".join(text * times for text, times in parts) + merged


@pytest.mark.parametrize("split", SPLITS)
@settings(max_examples=60)
@given(parts=TEXTS, seed=st.integers(0, 10**6), composed=st.booleans(), whole=st.booleans())
def test_no_continuation_changes_the_stable_tokens(
    split: str, parts: list[tuple[str, int]], seed: int, composed: bool, whole: bool
) -> None:
    made, some = byte_level(split, seed, composed=composed, whole=whole)
    check(made, run_of(parts, some, seed))


@settings(max_examples=200)
@given(parts=TEXTS, seed=st.integers(0, 10**6))
def test_no_continuation_changes_the_stable_tokens_of_one_long_word(parts: list[tuple[str, int]], seed: int) -> None:
    made, some = sentence_pieces(seed)
    check(made, run_of(parts, some, seed))


def cascade(rng: random.Random) -> Any:
    """Merges of neighbours in the alphabet, later ones first, of which each excludes the one before: the tokens of a
    word depend on its end, however long it is.
    """
    pairs = list(pairwise(ascii_letters))[::-1]
    for _ in range(rng.randrange(4)):
        pairs.remove(rng.choice(pairs))
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, pairs)]
    made: Any = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


@settings(max_examples=200)
@given(seed=st.integers(0, 10**6), start=st.integers(0, 20), length=st.integers(25, 60))
def test_tokens_that_depend_on_the_end_of_a_long_word_are_not_stable(seed: int, start: int, length: int) -> None:
    made, letters = cascade(random.Random(seed)), ascii_letters[start:]
    stable = StableTokens.of(made)
    assert stable is not None
    word = (letters * 3)[:length]
    count = stable.count(made.encode(word))
    for longer in range(length, length + 9):
        whole = made.encode((letters * 3)[:longer])
        assert made.encode(word).ids[:count] == whole.ids[:count]


def test_most_tokens_of_long_words_are_stable() -> None:
    made, _ = byte_level("gpt-2", 1, composed=False, whole=False)
    for text in ("!", "日本", "ab1", "\n", "é", " "):
        assert check(made, text * 400) > 200


@pytest.mark.parametrize(
    ("text", "more", "cut"),
    [
        ("\n" + " " * 400, "\nb", None),
        ("\n" + " " * 400, "b", 401),
        ("\n \n", " \nb", 3),
        ("a\n" + " " * 400, "\nb", 1),
        ("a" + "\u0301" * 400, "\u0316", None),
        ("a" * 400, "\u0301", 399),
        ("a" * 400, "b", 400),
    ],
)
def test_white_space_and_marks_may_allow_no_cut(text: str, more: str, cut: int | None) -> None:
    made, _ = byte_level(f"split {PATTERNS.index(WORDS['qwen2'].patterns[0])}", 1, composed=True, whole=False)
    stable = StableTokens.of(made)
    assert stable is not None
    assert stable.cut(text + more, len(text)) == cut


def test_a_cut_may_be_inside_of_a_long_added_token() -> None:
    made, _ = byte_level("gpt-2", 1, composed=False, whole=False)
    name = "<|a_long_name_of_a_token_that_marks_a_turn|>"
    made.add_tokens([AddedToken(name)])
    stable = StableTokens.of(made)
    assert stable is not None
    text = "ab c" * 99 + name
    for end in range(len(text) - len(name), len(text)):
        encoding = made.encode(text[:end])
        count = stable.count(encoding)
        assert count > 0
        assert encoding.ids[:count] == made.encode(text).ids[:count]


def test_an_added_token_may_take_the_white_space_in_front_of_it() -> None:
    made, _ = byte_level("gpt-2", 1, composed=False, whole=False)
    made.add_tokens([AddedToken("<mask>", lstrip=True)])
    stable = StableTokens.of(made)
    assert stable is not None
    assert stable.cut(" " * 400 + "<mask>", 399) is None
    assert stable.cut(" " * 400 + "b<mask>", 399) == 399
    assert stable.cut("b" * 400 + "<mask>", 400) == 400


@pytest.mark.parametrize("pattern", sorted(FAR_READING))
def test_words_that_depend_on_far_text_are_not_known(pattern: str) -> None:
    made, _ = byte_level("none", 1, composed=False, whole=False)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    words = [len(split.pre_tokenize_str("日" + "A" * 1000 + end)) for end in ("", "a")]
    assert words == [2, 1]
    assert StableTokens.of(made) is not None
    made.pre_tokenizer = pre_tokenizers.Sequence([split, made.pre_tokenizer])
    assert StableTokens.of(made) is None


@pytest.mark.parametrize(
    "options", [{"dropout": 0.1}, {"end_of_word_suffix": "</w>"}, {"continuing_subword_prefix": "##"}]
)
def test_words_whose_characters_depend_on_their_place_are_not_known(options: dict[str, Any]) -> None:
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    made: Any = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, [], **options))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    assert StableTokens.of(made) is None
