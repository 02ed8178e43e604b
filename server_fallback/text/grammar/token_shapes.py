"""What a vocabulary's tokens look like, once for all its grammars: their bytes flow in, the ids of each kind flow out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_ESCAPED_BYTES = bytes((*range(0x20), 0x22, 0x5C, 0x7F))
_CONTINUATIONS = bytes(range(0x80, 0xC0))


class TokenShapes:
    """``tokens``: what each id writes, nothing for special ones."""

    def __init__(self, tokens: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.eos_token_ids = eos_token_ids
        # One bit for each token of whole characters without quotes, backslashes and controls.
        self.plain = _bits([_is_plain(token) for token in tokens])
        # The ids of tokens with bytes, the shortest first.
        lengths = np.array([len(token) for token in tokens])
        order = np.argsort(lengths, kind="stable")
        self.shortest_first: npt.NDArray[np.intp] = order[lengths[order] > 0]
        # Those that only go on with a character.
        self.continuing = [token_id for token_id, token in enumerate(tokens) if token and not token.strip(_CONTINUATIONS)]


def _is_plain(token: bytes) -> bool:
    if not token or token.translate(None, _ESCAPED_BYTES) != token:
        return False
    try:
        token.decode()
    except UnicodeDecodeError:
        # A part of a character: what it leads to depends on the rest.
        return False
    return True


def _bits(values: Sequence[bool]) -> npt.NDArray[np.int32]:
    """(ceil(V / 32),), least significant bit first."""
    padded = np.zeros(-(-len(values) // 32) * 32, bool)
    padded[: len(values)] = values
    return np.packbits(padded, bitorder="little").view(np.int32)
