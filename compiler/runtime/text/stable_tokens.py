"""The tokens of a text's beginning that no continuation changes, for byte-pair encoding (BPE), whatever the text.

A word is merged by itself, and BPE has two properties. If the tokens of a word have a border at a place, the tokens
before it are those of the beginning that ends there, because no merge crossed it. And tokens in a row are those of
their text if each two neighbours are those of theirs (Berglund and van der Merwe, "Formalizing BPE Tokenization",
2023). A token has at most ``longest`` characters, so the whole word has a border at one of the last ``longest`` places
of any beginning. If all beginnings that end there, read from the start of one token, still begin with this token, then
the whole word has it too, and all before it. web/src/encoders/tokenizer/stable_tokens.ts does the same.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from ...formats.byte_level import FAR_READING, WORDS
from .token_bound import BYTE_TOKEN, bytes_are_tokens, component_parts

# A word of these patterns ends where it does whatever follows the next few characters, except for white space in front
# of a line's end. Others may look at a whole run of letters, as those in FAR_READING do.
PATTERNS = frozenset(pattern for words in WORDS.values() for pattern in words.patterns) - FAR_READING
# More characters than a pattern looks ahead.
_LOOK_AHEAD = 4
_MOST_BYTES_PER_CHARACTER = 4
# A text is cut at one of this many places. Combining marks and white space may allow none.
_PLACES = 64
_NORMALIZED = 16
_LINE_END = re.compile(r"[\r\n]")


@dataclass(frozen=True, slots=True)
class StableTokens:
    """Lengths are in characters of the model, which are bytes for a byte-level one. ``merges``: a tokenizer that reads
    a whole text as one word. ``uncertain``: how much of the end of a beginning an added token or a pattern may change.
    ``stripping``: added tokens that take the white space in front of them.
    """

    merges: Any
    byte_level: bool
    longest: int
    uncertain: int
    normalizer: Any
    stripping: tuple[str, ...]

    @staticmethod
    def of(backend: Any) -> StableTokens | None:
        """None for a `tokenizers.Tokenizer` whose words may depend on what follows far behind, or that is not BPE."""
        from tokenizers import Tokenizer, normalizers

        normalizing = component_parts(backend.normalizer, "normalizers")
        splitting = component_parts(backend.pre_tokenizer, "pretokenizers")
        byte_level = any(part["type"] == "ByteLevel" for part in splitting)
        model = backend.model
        if (
            not bytes_are_tokens(backend)
            or model.dropout is not None
            or model.continuing_subword_prefix
            or model.end_of_word_suffix
            or not all(map(_keeps_places, normalizing))
            or not all(map(_looks_near, splitting))
        ):
            return None
        names = backend.get_vocab(with_added_tokens=False)
        if not byte_level and any(BYTE_TOKEN.search(name) and not BYTE_TOKEN.fullmatch(name) for name in names):
            return None
        added = backend.get_added_tokens_decoder().values()
        longest_added = max((len(token.content) for token in added), default=0)
        return StableTokens(
            Tokenizer(model),
            byte_level,
            max(map(len, names)),
            _MOST_BYTES_PER_CHARACTER * (_LOOK_AHEAD + longest_added),
            normalizers.NFC() if any(part["type"] == "NFC" for part in normalizing) else None,
            tuple(token.content for token in added if token.lstrip),
        )

    @property
    def least_characters(self) -> int:
        """A shorter beginning may have no token that is known to be stable."""
        return self.uncertain + 3 * self.longest

    def cut(self, text: str, size: int) -> int | None:
        """A place at most ``size`` to cut a longer text, whose two sides are normalized and split by themselves; None
        if the last characters before it have no such place.
        """
        start = len(text[:size].rstrip())
        size = size if self._splits_space(text, start, size) else start
        places = range(size, max(0, size - _PLACES), -1)
        return next((place for place in places if self._divides(text, place)), None)

    def count(self, encoding: Any) -> int:
        """The number of first tokens of a beginning that are the first tokens of any text that begins so."""
        tokens, words = encoding.tokens, encoding.word_ids
        end = index = len(tokens)
        length = 0
        while index > 0 and length < self.uncertain:
            index = end = index - 1
            length += self._length(tokens[index])
        length = 0
        for index in range(end - 1, -1, -1):
            # Bytes of an unknown character are never merged.
            if words[index] != words[end] or self._is_byte(tokens[index]):
                return index + 1
            length += len(tokens[index])
            if length - len(tokens[index]) > 2 * self.longest:
                return index + 1 if self._stays("".join(tokens[index:end]), tokens[index]) else 0
        return 0

    def _stays(self, word: str, first: str) -> bool:
        """Whether each beginning of ``word`` that ends at one of its last places has this ``first`` token."""
        ends = [word[: len(word) - shorter] for shorter in range(self.longest)]
        first_id = self.merges.token_to_id(first)
        return all(each.ids[0] == first_id for each in self.merges.encode_batch_fast(ends))

    def _length(self, token: str) -> int:
        return 1 if self._is_byte(token) else len(token)

    def _is_byte(self, token: str) -> bool:
        return not self.byte_level and BYTE_TOKEN.fullmatch(token) is not None

    def _divides(self, text: str, place: int) -> bool:
        left, right = text[max(0, place - _NORMALIZED) : place], text[place : place + _NORMALIZED]
        if self.normalizer is not None:
            composed = self.normalizer.normalize_str
            if unicodedata.combining(text[place]) or composed(left) + composed(right) != composed(left + right):
                return False
        return self._splits_space(text, len(text[:place].rstrip()), place)

    def _splits_space(self, text: str, start: int, place: int) -> bool:
        """Whether white space from ``start`` may be cut at a place: what follows it does not belong to its words."""
        if start == place:
            return True
        following = text[place:]
        end = place + len(following) - len(following.lstrip())
        line_ends = text[place - 1] not in "\r\n" and _LINE_END.search(text, start, place)
        return not (line_ends and _LINE_END.search(text, place, end)) and not text.startswith(self.stripping, end)


def _keeps_places(part: Any) -> bool:
    """Whether a normalizer changes each character by itself, NFC apart."""
    single = part["type"] == "Replace" and len(part["pattern"].get("String", "")) == 1
    return single or part["type"] in ("NFC", "Prepend")


def _looks_near(part: Any) -> bool:
    if part["type"] == "Split":
        pattern = part["pattern"]
        return not part["invert"] and (pattern.get("Regex") in PATTERNS or len(pattern.get("String", "")) == 1)
    return part["type"] in ("ByteLevel", "Digits", "Metaspace")
