"""What a vocabulary's tokens look like, once for all its grammars: their bytes flow in, the ids of each kind flow out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ESCAPED_BYTES = bytes((*range(0x20), 0x22, 0x5C, 0x7F))
_CONTINUATIONS = bytes(range(0x80, 0xC0))


@dataclass(frozen=True, slots=True)
class FreeText:
    """Where any text may come until a trigger: ``free`` has one bit for each token of whole characters that cannot complete the trigger,
    whatever came before; ``order`` are the ids of tokens with bytes, first those that can, then the shortest.
    """

    free: npt.NDArray[np.int32]
    order: npt.NDArray[np.intp]


class TokenShapes:
    """``tokens``: what each id writes, nothing for special ones."""

    def __init__(self, tokens: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.eos_token_ids = eos_token_ids
        # One bit for each token of whole characters without quotes, backslashes and controls.
        self.plain = _bits([_is_whole(token) and token.translate(None, _ESCAPED_BYTES) == token for token in tokens])
        # The ids of tokens with bytes, the shortest first.
        lengths = np.array([len(token) for token in tokens])
        order = np.argsort(lengths, kind="stable")
        self.shortest_first: npt.NDArray[np.intp] = order[lengths[order] > 0]
        # Those that only go on with a character.
        self.continuing = [
            token_id for token_id, token in enumerate(tokens) if token and not token.strip(_CONTINUATIONS)
        ]

    def around(self, trigger: str) -> FreeText:
        word = trigger.encode()
        ends = tuple(word[start:] for start in range(len(word)))
        holds = [word in token for token in self.tokens]
        triggers = np.array([held or token.startswith(ends) for held, token in zip(holds, self.tokens, strict=True)])
        free = _bits(
            [_is_whole(token) and not held for token, held in zip(self.tokens, triggers.tolist(), strict=True)]
        )
        order = self.shortest_first
        # Those that hold all of it first, then those that may be its end.
        rank = 2 - triggers[order].astype(int) - np.array(holds)[order]
        return FreeText(free, order[np.argsort(rank, kind="stable")])


def _is_whole(token: bytes) -> bool:
    """Whether what the token leads to does not depend on the rest of a character."""
    try:
        return token.decode() != ""
    except UnicodeDecodeError:
        return False


def _bits(values: Sequence[bool]) -> npt.NDArray[np.int32]:
    """(ceil(V / 32),), least significant bit first."""
    padded = np.zeros(-(-len(values) // 32) * 32, bool)
    padded[: len(values)] = values
    return np.packbits(padded, bitorder="little").view(np.int32)
