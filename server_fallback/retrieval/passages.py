"""Cuts a text into passages of a number of tokens, at the ends of paragraphs, sentences or words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nearfar.compiler.runtime.text.tokenizer import Tokenizer

from .store import Span

# A heading or paragraph ends at an empty line; a sentence after its mark.
PIECES = re.compile(r".+?(?:\n\s*\n+|(?<=[.!?。！？])\s+|\Z)", re.DOTALL)
# The share of a passage that repeats the end of the one before, so that a fact across its border is found.
OVERLAP = 0.15


def passages_of(text: str, tokenizer: Tokenizer, max_tokens: int) -> list[Span]:
    """Passages in order, each of at most ``max_tokens`` tokens without special ones. Passages of white space are left
    out.
    """
    found, pieces, tokens = list[Span](), list[tuple[int, int, int]](), 0
    for begins, ends, count in _pieces(text, tokenizer, max_tokens):
        if pieces and tokens + count > max_tokens:
            found += _span(text, pieces[0][0], pieces[-1][1])
            pieces = _overlap(pieces, min(int(max_tokens * OVERLAP), max_tokens - count))
            tokens = sum(size for _, _, size in pieces)
        pieces.append((begins, ends, count))
        tokens += count
    if pieces:
        found += _span(text, pieces[0][0], pieces[-1][1])
    return found


def _pieces(text: str, tokenizer: Tokenizer, max_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Sentences with their numbers of tokens. One that is too long is cut after a token."""
    for match in PIECES.finditer(text):
        begins, ends = match.span()
        count = len(tokenizer.encode(match[0], add_special_tokens=False))
        while count > max_tokens:
            part = tokenizer.beginning(text[begins:ends], max_tokens)
            # A token may stand for no character of its own.
            cut = begins + max(1, len(part))
            yield begins, cut, max_tokens
            begins = cut
            count = len(tokenizer.encode(text[begins:ends], add_special_tokens=False))
        if begins < ends:
            yield begins, ends, count


def _overlap(pieces: list[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    """The last pieces that together have at most this many tokens."""
    kept, tokens = list[tuple[int, int, int]](), 0
    for piece in reversed(pieces[1:]):
        if tokens + piece[2] > most:
            break
        kept.insert(0, piece)
        tokens += piece[2]
    return kept


def _span(text: str, begins: int, ends: int) -> list[Span]:
    part = text[begins:ends]
    begins += len(part) - len(part.lstrip())
    part = part.strip()
    return [Span(begins, begins + len(part), part)] if part else []
