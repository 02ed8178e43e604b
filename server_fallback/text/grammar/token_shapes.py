"""Classifies the tokens of a vocabulary by their bytes, once for all its grammars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ESCAPED_BYTES = bytes((*range(0x20), 0x22, 0x5C, 0x7F))
_CONTINUATIONS = bytes(range(0x80, 0xC0))


@dataclass(frozen=True, slots=True)
class FreeText:
    """Tokens for grammars that allow any text until a trigger.

    ``free`` has one bit for each token of complete characters that cannot complete the trigger, whatever precedes it.
    ``order`` are the ids of tokens with bytes: first those that can complete the trigger, then the shortest.
    """

    free: npt.NDArray[np.int32]
    order: npt.NDArray[np.intp]


class TokenShapes:
    """``tokens`` are the bytes that each id writes, empty for special tokens."""

    def __init__(self, tokens: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.eos_token_ids = eos_token_ids
        # One bit for each token of complete characters without quotes, backslashes and controls.
        self.plain = _bits(
            [_has_complete_characters(token) and token.translate(None, _ESCAPED_BYTES) == token for token in tokens]
        )
        # The ids of tokens with bytes, the shortest first.
        lengths = np.array([len(token) for token in tokens])
        order = np.argsort(lengths, kind="stable")
        self.shortest_first: npt.NDArray[np.intp] = order[lengths[order] > 0]
        # The tokens that only continue a character.
        self.continuing = [
            token_id for token_id, token in enumerate(tokens) if token and not token.strip(_CONTINUATIONS)
        ]

    def around(self, trigger: str) -> FreeText:
        word = trigger.encode()
        ends = tuple(word[start:] for start in range(len(word)))
        holds = [word in token for token in self.tokens]
        triggers = np.array([held or token.startswith(ends) for held, token in zip(holds, self.tokens, strict=True)])
        free = _bits(
            [
                _has_complete_characters(token) and not held
                for token, held in zip(self.tokens, triggers.tolist(), strict=True)
            ]
        )
        order = self.shortest_first
        # First the tokens that contain the trigger, then those that may end it.
        rank = 2 - triggers[order].astype(int) - np.array(holds)[order]
        return FreeText(free, order[np.argsort(rank, kind="stable")])


def _has_complete_characters(token: bytes) -> bool:
    """Whether the token has complete characters only."""
    try:
        return token.decode() != ""
    except UnicodeDecodeError:
        return False


def _bits(values: Sequence[bool]) -> npt.NDArray[np.int32]:
    """(ceil(V / 32),), least significant bit first."""
    padded = np.zeros(-(-len(values) // 32) * 32, bool)
    padded[: len(values)] = values
    return np.packbits(padded, bitorder="little").view(np.int32)
