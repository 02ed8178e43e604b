"""A watermark: who has its secret key recognises a text as written by a model that marks its answers.

The key and each token choose a green list for the token after it: a share of the vocabulary, whose logits are raised.
Who has the key counts the green tokens of a text. Kirchenbauer et al. 2023, "A Watermark for Large Language Models",
with a context of one token. `tests/conformance/watermark.json` holds vectors; kernels compute the same in 32-bit words.

A cipher of the key and the token before makes the two words of a list, so nobody computes the key, or another list,
from lists that they found out: one block of the permutation of Chaskey-12 (Mouha et al. 2014; ISO/IEC 29192-6) between
two additions of the key (Even and Mansour 1997). Beside these words, cheap hashes select the tokens of the list.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..names import WATERMARK_SHARE, WATERMARK_STRENGTH

# The words of a key, and what the device has of a watermark: these, the share and the strength.
KEY_WORDS = 4
COLUMNS = KEY_WORDS + 2
# The state of a plan that marks answers.
WATERMARK = "watermark"
ROUNDS = 12
# The shifts and factors of MurmurHash3's finalizer (Appleby 2011).
SHIFTS, FACTORS = (16, 13, 16), (0x85EBCA6B, 0xC2B2AE35)

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Watermark:
    """``key`` has 16 bytes. ``share`` of the tokens, above 0 and below 1, are in a green list; ``strength`` is added to
    their logits.
    """

    key: bytes = field(repr=False)
    share: float = WATERMARK_SHARE
    strength: float = WATERMARK_STRENGTH

    @staticmethod
    def of(secret: bytes, share: float = WATERMARK_SHARE, strength: float = WATERMARK_STRENGTH) -> Watermark:
        """The watermark of a secret of any length."""
        return Watermark(hashlib.sha256(secret).digest()[: 4 * KEY_WORDS], share, strength)

    @property
    def limit(self) -> int:
        """A token is green if its hash is below this number."""
        return min(max(round(self.share * 2**32), 1), 2**32 - 1)

    def row(self) -> npt.NDArray[np.int32]:
        """(6,): the words of the key, ``limit``, and the bits of ``strength`` as a float32."""
        words = np.array([*np.frombuffer(self.key, "<u4"), self.limit], np.uint32)
        return np.concatenate([words, np.array([self.strength], np.float32).view(np.uint32)]).view(np.int32)

    def are_green(self, before: npt.ArrayLike, token_ids: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each token is in the green list of the one before it. Both have shapes that broadcast."""
        return green(self.row(), np.asarray(before), np.asarray(token_ids))


def green(row: npt.NDArray[np.int32], before: npt.NDArray[Any], token_ids: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """As `Watermark.are_green`, for a `Watermark.row`."""
    words = row.view(np.uint32)
    first, second = list_words(words[:KEY_WORDS], np.atleast_1d(before).astype(np.uint32))
    found = mixed(mixed(np.atleast_1d(token_ids).astype(np.uint32) ^ first) ^ second) < words[KEY_WORDS]
    shaped: npt.NDArray[np.bool_] = found.reshape(np.broadcast_shapes(before.shape, token_ids.shape))
    return shaped


def list_words(key: Words, before: Words) -> tuple[Words, Words]:
    """The words of the green list after each token ``before``."""
    v = [before ^ key[0], *(np.full_like(before, word) for word in key[1:])]
    for _ in range(ROUNDS):
        v = chaskey_round(*v)
    return v[0] ^ key[0], v[1] ^ key[1]


def chaskey_round(a: Words, b: Words, c: Words, d: Words) -> list[Words]:
    a, c = a + b, c + d
    b, d = turned(b, 5) ^ a, turned(d, 8) ^ c
    a = turned(a, 16)
    a, c = a + d, c + b
    b, d = turned(b, 7) ^ c, turned(d, 13) ^ a
    return [a, b, turned(c, 16), d]


def turned(x: Words, bits: int) -> Words:
    """Rotated to the left."""
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def mixed(x: Words) -> Words:
    for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x


def mark_logits(logits: npt.NDArray[np.float32], row: npt.NDArray[np.int32], before: int) -> npt.NDArray[np.float32]:
    """Logits (V,) of the token after ``before``, those of the green list raised. Masked ones stay below all others."""
    strength = row.view(np.float32)[KEY_WORDS + 1]
    listed = green(row, np.array(before), np.arange(len(logits)))
    marked: npt.NDArray[np.float32] = logits + np.where(listed, strength, np.float32(0))
    return marked
