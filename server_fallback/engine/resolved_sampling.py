"""A request's sampling as the device takes it: which states of its slot apply, the states' values, and the settings of each token."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nearfar.compiler.ir.sampling import BIAS, COUNTS, IN_PROMPT, draw_at
from nearfar.compiler.runtime.batch import FloatArray, IntArray

from .request import Sampling


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """``flags``: those of `compiler/ir/sampling.py` except the mask. ``logit_bias`` (V,), None for no bias. ``answered`` tokens of
    the answer stand in the prompt."""

    sampling: Sampling
    seed: int
    flags: int
    logit_bias: FloatArray | None
    answered: int = 0

    def settings(self, index: int) -> tuple[float, ...]:
        """The row of settings for the ``index``-th new token: it depends on the seed and the token's place in the answer alone."""
        own = self.sampling
        draw = draw_at(self.seed, self.answered + index) if own.temperature else 0.0
        penalties = own.repetition_penalty, own.frequency_penalty, own.presence_penalty
        return own.temperature, own.top_k, own.top_p, own.min_p, draw, *penalties


def resolve_sampling(sampling: Sampling, vocab_size: int, answered: int = 0) -> ResolvedSampling:
    """Fill in a random seed where none is given."""
    penalizes = sampling.repetition_penalty != 1 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0
    bias = None
    if sampling.logit_bias:
        bias = np.zeros(vocab_size, np.float32)
        bias[list(sampling.logit_bias)] = list(sampling.logit_bias.values())
    seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
    return ResolvedSampling(sampling, seed, (COUNTS if penalizes else 0) | (0 if bias is None else BIAS), bias, answered)


def token_counts(vocab_size: int, prompt: Sequence[int], answer: Sequence[int]) -> IntArray:
    """What a slot must count from: (V,), as `compiler/ir/sampling.py` says. Both are the request's, whatever made way in a full context."""
    counts = np.zeros(vocab_size, np.int32)
    counts[np.asarray(prompt, np.int64)] = IN_PROMPT
    np.add.at(counts, np.asarray(answer, np.int64), 1)
    return counts
