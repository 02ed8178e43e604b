"""A request's sampling as the device takes it: which states of its slot apply, their values, and the settings of each
token.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nearfar.compiler.ir.sampling import BIAS, COUNTS, DEFAULTS, DRAW, MARK, STRIDE, WORD, Sampling, Settings, draw_at
from nearfar.compiler.runtime.batch import FloatArray


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """``flags``: those of `compiler/ir/sampling.py`, without the mask's. ``row`` has all settings except the draw.

    The first number of ``seed`` is drawn for the first new token.
    """

    sampling: Sampling
    seed: int
    flags: int
    row: Settings

    def settings(self, index: int) -> tuple[float, ...]:
        """The row of settings for new token number ``index``, from 0 on. It does not depend on what else is sampled."""
        draw = draw_at(self.seed, index) if self.row.temperature else 0.0
        return (*self.row[:DRAW], draw, *self.row[DRAW + 1 :])


def resolve_sampling(sampling: Sampling, answered: int = 0, *, marks: bool = False) -> ResolvedSampling:
    """A request without a seed gets a random one. ``answered`` tokens of the answer are part of the prompt already.
    ``marks``: the answer gets the engine's watermark.
    """
    seed = secrets.randbits(32) if sampling.seed is None else seed_after(sampling.seed, answered)
    flags = (COUNTS if sampling.penalizes else 0) | (BIAS if sampling.logit_bias else 0) | (MARK if marks else 0)
    row = Settings(**{name: getattr(sampling, name) for name in DEFAULTS})
    return ResolvedSampling(sampling, seed, flags, row)


def seed_after(seed: int, count: int) -> int:
    """The seed whose numbers are those of ``seed`` after its first ``count``."""
    return (seed + count * STRIDE) & WORD


def dense_bias(vocab_size: int, logit_bias: Mapping[int, float]) -> FloatArray:
    """(V,): what is added to the logit of each token. Made when a slot needs it, because it takes 600 kB for 152,000
    tokens.
    """
    bias = np.zeros(vocab_size, np.float32)
    bias[list(logit_bias)] = list(logit_bias.values())
    return bias
