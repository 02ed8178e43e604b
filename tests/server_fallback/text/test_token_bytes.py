"""The bytes of tokens in the text that they wrote."""

from __future__ import annotations

import random

import pytest

from nearfar.server_fallback.text.token_bytes import KeptText, cut_parts, split_text

SMILE = "😀".encode()


@pytest.mark.parametrize(
    ("text", "own", "parts"),
    [
        ("ab", [b"ab"], [b"ab"]),
        ("é", [b"\xc3", b"\xa9"], [b"\xc3", b"\xa9"]),
        ("a😀", [b"a" + SMILE[:1], SMILE[1:3], SMILE[3:]], [b"a" + SMILE[:1], SMILE[1:3], SMILE[3:]]),
        # A decoder drops the space at the start of an answer, and writes an incomplete character as U+FFFD.
        ("Hi", [b" Hi"], [b"Hi"]),
        ("Hi", [b" ", b" Hi"], [b"", b"Hi"]),
        ("\ufffd", [SMILE[:1], SMILE[1:2]], [b"", b"\xef\xbf\xbd"]),
        ("", [b"<s>"], [b""]),
        ("", [], []),
    ],
)
def test_a_text_is_divided_among_the_tokens_that_wrote_it(text: str, own: list[bytes], parts: list[bytes]) -> None:
    assert split_text(text, own) == parts


def test_parts_are_cut_as_their_text_is() -> None:
    text, parts = "aé😀b", [b"a\xc3", b"\xa9", SMILE[:2], SMILE[2:] + b"b"]
    for start in range(-2, 6):
        for end in range(-2, 6):
            kept = text[max(0, start) : max(0, start, end)].encode()
            assert b"".join(cut_parts(text, parts, start, end)) == kept
    assert cut_parts(text, parts, 1, 3) == [b"\xc3", b"\xa9", SMILE[:2], SMILE[2:]]


def test_what_a_reader_keeps_of_its_text_is_divided_among_the_tokens() -> None:
    chosen = random.Random(5)
    for _ in range(200):
        # Runs of text that are kept or dropped, which arrive in pieces and are decided late.
        runs = [("".join(chosen.choices("aé<", k=chosen.randint(1, 4))), chosen.random() < 0.6) for _ in range(6)]
        text = "".join(run for run, _ in runs)
        marks = [keep for run, keep in runs for _ in run]
        kept, given, found, decided = KeptText(), 0, list[bytes](), 0
        while given < len(text):
            step = chosen.randint(1, 3)
            piece = text[given : given + step]
            given += len(piece)
            kept.feed([piece[:1].encode(), piece[1:].encode()])
            until = given if given == len(text) else chosen.randint(decided, given)
            texts = [
                character for character, keep in zip(text[decided:until], marks[decided:until], strict=True) if keep
            ]
            found += kept.take(texts, text[until:given])
            decided = until
        assert b"".join(found).decode() == "".join(run for run, keep in runs if keep)
