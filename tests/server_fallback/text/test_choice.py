"""Pieces of several tokens: the same text and tokens as with one token per piece."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearfar.server_fallback.engine.request import GeneratedToken
from nearfar.server_fallback.text.choice import Piece, TokenSpan, joined

PARTS = st.tuples(st.sampled_from(["", "a", "b "]), st.sampled_from(["", "r", "s "]))


@given(st.lists(PARTS, max_size=6))
def test_joined_pieces_hold_the_same_text_in_the_same_order(parts: list[tuple[str, str]]) -> None:
    pieces = [
        Piece(text, (TokenSpan(GeneratedToken(index), index),), reasoning)
        for index, (text, reasoning) in enumerate(parts)
    ]
    found = list(joined(pieces))

    def spoken(pieces: list[Piece]) -> str:
        """Reasoning is in capitals, so that its position within the text shows."""
        return "".join(piece.reasoning.upper() + piece.text for piece in pieces)

    assert spoken(found) == spoken(pieces)
    assert [token for piece in found for token in piece.tokens] == [token for piece in pieces for token in piece.tokens]
    turns = sum(
        bool(after.reasoning and any(before.text for before in pieces[:index])) for index, after in enumerate(pieces)
    )
    assert len(found) <= 1 + turns
