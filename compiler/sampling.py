"""Choosing the next token from logits, the same in every runtime for the same seed.

Greedy at temperature 0. Else one number u in [0, 1) of mulberry32 a token, and the first token, in the order of the vocabulary, whose
running sum of exp((logit - max) / temperature) exceeds u times the total; sums in float64. `tests/conformance/sampling.json` holds
vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import RequestError

MASK = 0xFFFFFFFF


@dataclass(slots=True)
class Sampler:
    """``state`` starts as the seed, 0 to 2^32 - 1, and moves on with every token drawn."""

    temperature: float = 0.0
    state: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise RequestError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if not 0 <= self.state <= MASK:
            raise RequestError(f"seed is {self.state}; it must be between 0 and {MASK}")

    def next(self, logits: npt.NDArray[np.float32], argmax: int) -> int:
        """The next token of logits (V,), whose first largest is ``argmax``."""
        if self.temperature == 0:
            return argmax
        scaled = (logits.astype(np.float64) - float(logits.max())) / self.temperature
        sums = np.cumsum(np.exp(scaled))
        chosen = int(np.searchsorted(sums, self.draw() * sums[-1], side="right"))
        return min(chosen, len(logits) - 1)

    def draw(self) -> float:
        """The next number of mulberry32 (Ettinger 2017), in [0, 1)."""
        self.state = (self.state + 0x6D2B79F5) & MASK
        t = self.state
        t = ((t ^ (t >> 15)) * (t | 1)) & MASK
        t ^= (t + ((t ^ (t >> 7)) * (t | 61))) & MASK
        return ((t ^ (t >> 14)) & MASK) / 4294967296
