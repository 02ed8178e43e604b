"""A grammar over one answer, as the engine's Constraint. Token ids flow in, masks of what may come next flow out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nearfar.compiler.errors import RequestError

if TYPE_CHECKING:
    from xgrammar import GrammarMatcher


class GrammarConstraint:
    """A matcher's state after the tokens so far; it is used by nothing else."""

    def __init__(self, matcher: GrammarMatcher, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._words = -(-vocab_size // 32)
        self._ends = np.full(self._words, -1, np.int32)
        for token_id in eos_token_ids:
            self._ends[token_id >> 5] &= ~np.int32(np.uint32(1 << (token_id & 31)).view(np.int32))
        self._mask: npt.NDArray[np.int32] | None = None

    def mask(self) -> npt.NDArray[np.int32]:
        """A new array each time the state changes. Raises RequestError where no token of the vocabulary continues the text."""
        if self._mask is None:
            # xgrammar writes into any array of the DLPack protocol; where all tokens may come, it writes ones.
            self._mask = np.empty(self._words, np.int32)
            self._matcher.fill_next_token_bitmask(self._mask)
        if not self._mask.any():
            raise RequestError("no token of this model's vocabulary continues the answer; give another grammar", param="response_format")
        return self._mask

    def accept(self, token_id: int) -> None:
        """Raises RequestError for a token that the mask does not hold."""
        if not self._matcher.accept_token(token_id):
            raise RequestError(f"token {token_id} does not continue the grammar; choose one that mask() allows", token_id=token_id)
        self._mask = None

    @property
    def finished(self) -> bool:
        return not (self.mask() & self._ends).any()
