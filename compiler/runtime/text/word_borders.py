"""Where a text may be cut so that the tokens of its beginning are the first tokens of the whole: between two words that
a tokenizer always divides, whatever is around them; and in a long word of Unigram, after tokens that no end changes.

A text that is much longer than a model's context is then tokenized only as far as needed. In TypeScript:
web/src/encoders/tokenizer/word_borders.ts.
"""

from __future__ import annotations

import re
import unicodedata
from string import punctuation
from typing import Any

from .token_bound import component_parts

# A long text is cut near the end of a part. A part without a border there is made longer.
WINDOW = 4096
# They change the characters on each side of such a border by themselves.
_LOCAL_NORMALIZERS = frozenset(
    ("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend", "Replace",
     "Strip", "StripAccents")
)  # fmt: skip
_PLAIN = re.compile(r"[^\s▁]*")
_MARK = r"[!-/:-@\[-`{-~]"
# Kinds of borders, each with texts on its two sides, which show whether a tokenizer divides there.
KINDS = (
    # A space behind a letter, a digit or a mark, in front of a letter or a digit.
    (
        rf"(?<=[^\W_]|{_MARK}) (?=[^\W_])",
        (("ab", " cd"), ("12", " éß"), ("日本", " 34"), *((f"a{mark}", " b") for mark in punctuation)),
    ),
    # Two ideographs, two marks, or a mark and a letter, which are words of their own for BERT.
    (r"(?<=[一-鿿])(?=[一-鿿])", (("日", "本"), ("中文", "字符"))),
    (f"(?<={_MARK})(?={_MARK})", tuple((f"a{mark}", ",b") for mark in punctuation)),
    # Not of marks in the names of special tokens, such as "</s>" and "[CLS]".
    (
        r"(?<=[!-.:;=?@\\^`{}~])(?=[!-.:;=?@\\^`{}~])",
        tuple((f"a{mark}", ",b") for mark in punctuation if mark not in "/<>[]_|"),
    ),
    (r"(?<=[!-.:;=?@\\^-`{-~])(?=[^\W_])", tuple((f"a{mark}", "b") for mark in "!.:;=?@\\^_`{~")),
)


def border_pattern(backend: Any) -> re.Pattern[str] | None:
    """A pattern of the borders for a `tokenizers.Tokenizer`, None if it has none.

    Each match is the place to cut. No added token's name contains one.
    """
    normalizers = component_parts(backend.normalizer, "normalizers")
    if backend.pre_tokenizer is None or any(part["type"] not in _LOCAL_NORMALIZERS for part in normalizers):
        return None
    names = [token.content for token in backend.get_added_tokens_decoder().values()]
    found = [
        pattern
        for pattern, pairs in KINDS
        if not any(re.search(pattern, name) for name in names)
        and all(_divides(backend, left, right) for left, right in pairs)
    ]
    return re.compile("|".join(found)) if found else None


def border_before(pattern: re.Pattern[str], text: str, size: int) -> int | None:
    """The last border at most `WINDOW` characters before ``size``; None if there is none."""
    found = None
    for found in pattern.finditer(text, max(1, size - WINDOW), size):  # noqa: B007
        pass
    return None if found is None else found.start()


def longest_piece(backend: Any) -> int | None:
    """The number of characters of the longest piece of Unigram; None for other models, whose words have no such ends.

    Unigram's best pieces up to a place do not depend on what follows it, and one of the last ``longest_piece`` places
    of a beginning is between two pieces of the whole. So tokens that all of these ends agree on are the whole's.
    """
    if type(backend.model).__name__ != "Unigram" or border_pattern(backend) is None:
        return None
    return max(map(len, backend.get_vocab(with_added_tokens=False)))


def least_pieces(backend: Any, text: str, longest: int) -> int:
    """A lower bound on the number of Unigram's pieces of a plain text, 0 of others: a piece has at most ``longest``
    characters, and the unknown piece none that is a piece itself.
    """
    if not is_plain(backend, text):
        return 0
    known = {character for character in set(text) if backend.model.token_to_id(character) is not None}
    return sum(map(known.__contains__, text)) // longest


def is_plain(backend: Any, text: str) -> bool:
    """Whether the normalizer leaves a text and each of its characters as they are, and none is white space or a mark
    that belongs to the character before it.
    """
    if not _PLAIN.fullmatch(text) or any(map(unicodedata.combining, text)):
        return False
    normalize = (lambda part: part) if backend.normalizer is None else backend.normalizer.normalize_str
    return all(normalize(part).endswith(part) for part in (text, *set(text)))


def _divides(backend: Any, left: str, right: str) -> bool:
    return _words(backend, left) + _words(backend, right) == _words(backend, left + right)


def _words(backend: Any, text: str) -> list[str]:
    normalized = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized)]
