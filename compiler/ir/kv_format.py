"""The formats of KV pages: as computed, or rows of small integers or floats with a scale.

A row is the key or the value of one token and kv head. A format of codes packs it into 32-bit words: its codes, then
the bits of one float32 scale. An element is code * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

# "activation": as computed. The others are the keys of `KV_FORMATS`.
KvName = Literal["activation", "q8", "q4", "fp8"]
KV_NAMES: Final = ("activation", "q8", "q4", "fp8")


@dataclass(frozen=True, slots=True)
class KvFormat:
    """Codes of ``bits`` bits from -``steps`` to ``largest_code``. The element of largest magnitude has code -steps.

    A word has ``4 * vectors`` codes: the lowest bits of byte b hold element b, and the next ones element b + 4.
    ``zero`` is the stored value of code 0. ``rotates_keys``: keys are multiplied by an orthonormal Hadamard matrix
    before they are rounded (`ops.kv_pages.rotated`), so that outliers spread over the head. ``floats``: codes are E4M3
    floats (`ir/e4m3.py`), else integers.
    """

    name: KvName
    bits: int
    steps: int
    largest_code: int
    zero: int
    rotates_keys: bool
    floats: bool = False

    @property
    def vectors(self) -> int:
        """Vectors of four codes in a word."""
        return 8 // self.bits

    @property
    def multiple(self) -> int:
        """The elements of a word, which divides the head size."""
        return 4 * self.vectors

    def words(self, head_dim: int) -> int:
        """The number of words of a row, including its scale."""
        assert head_dim % self.multiple == 0, (self.name, head_dim)
        return head_dim // self.multiple + 1

    def head_dim(self, words: int) -> int:
        """The inverse of `words`."""
        return (words - 1) * self.multiple


KV_FORMATS: Mapping[str, KvFormat] = MappingProxyType(
    {
        "q8": KvFormat("q8", bits=8, steps=127, largest_code=127, zero=0, rotates_keys=False),
        "q4": KvFormat("q4", bits=4, steps=8, largest_code=7, zero=8, rotates_keys=True),
        "fp8": KvFormat("fp8", bits=8, steps=448, largest_code=448, zero=0, rotates_keys=False, floats=True),
    }
)


def kv_format(name: str) -> KvFormat | None:
    """The format of this name; None for pages as computed."""
    return None if name == "activation" else KV_FORMATS[name]


def hadamard_size(head_dim: int) -> int:
    """The size of the blocks of a head that are rotated: the largest power of two that divides the head size."""
    return head_dim & -head_dim
