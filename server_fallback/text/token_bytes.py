"""Divides text among the tokens that wrote it, in bytes: a character may be written by several tokens."""

from __future__ import annotations

from collections.abc import Sequence


def split_text(text: str, own: Sequence[bytes]) -> list[bytes]:
    """The part of ``text`` that each of a run of tokens wrote, in UTF-8. ``own`` are the tokens' own bytes.

    Joined, the parts are always the text. A decoder may drop bytes at the start of the run, such as the space before
    the first word of an answer. If it changed others, as for an incomplete character, the last token wrote all of the
    text.
    """
    whole, joined = text.encode(), b"".join(own)
    dropped = len(joined) - len(whole)
    if not own or not joined.endswith(whole):
        return [b""] * (len(own) - 1) + [whole][: len(own)]
    parts: list[bytes] = []
    for each in own:
        skipped = min(dropped, len(each))
        dropped -= skipped
        parts.append(each[skipped:])
    return parts


def cut_parts(text: str, parts: Sequence[bytes], start: int, end: int) -> list[bytes]:
    """What the characters from ``start`` to ``end`` of a text leave of its parts; see `split_text`."""
    first, last = (len(text[: max(0, at)].encode()) for at in (start, max(start, end)))
    cut: list[bytes] = []
    for part in parts:
        cut.append(part[max(0, first) : max(0, last)])
        first, last = first - len(part), last - len(part)
    return cut


class KeptText:
    """The texts that a reader keeps of the text that it is fed, and what they leave of each token's part.

    A reader of tool calls drops the calls, and holds back text whose kind it does not know yet.
    """

    def __init__(self) -> None:
        # The tokens that are not decided yet: the number of bytes of each, all their bytes, and which of these are kept
        # as far as that is decided.
        self._sizes: list[int] = []
        self._text = b""
        self._kept = bytearray()

    def feed(self, parts: Sequence[bytes]) -> None:
        self._sizes += map(len, parts)
        self._text += b"".join(parts)

    def take(self, texts: Sequence[str], undecided: str = "") -> list[bytes]:
        """What ``texts``, which the reader keeps in this order, leave of the tokens before its ``undecided`` text."""
        at, decided = len(self._kept), len(self._text) - len(undecided.encode())
        self._kept += bytes(decided - at)
        for text in map(str.encode, texts):
            start = self._text.find(text, at, decided)
            assert start >= 0, "a reader keeps only text that it was fed"
            at = start + len(text)
            self._kept[start:at] = b"\1" * len(text)
        parts: list[bytes] = []
        position = 0
        while self._sizes and position + self._sizes[0] <= decided:
            size = self._sizes.pop(0)
            own = self._text[position : position + size]
            keeps = self._kept[position : position + size]
            parts.append(bytes(byte for byte, keep in zip(own, keeps, strict=True) if keep))
            position += size
        self._text, self._kept = self._text[position:], self._kept[position:]
        return parts
