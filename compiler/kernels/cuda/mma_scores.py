"""The scores of attention kernels that compute weights as powers of two."""

from __future__ import annotations

import math

from ...ir.heads import Scores
from ..builder import Scalar, number
from .functions import fast_exp2, fast_reciprocal


def capped_score(scores: Scores, score: Scalar) -> Scalar:
    """cap * tanh(scale * score / cap), as cap - 2 cap / (1 + exp(2 scale * score / cap)). Near 0 its relative error
    grows, but a weight depends on the absolute one.
    """
    cap = scores.softcap
    assert cap is not None
    power = fast_exp2(score * number(2 * math.log2(math.e) * scores.scale / cap, "float32"))
    return number(cap, "float32") - number(2 * cap, "float32") * fast_reciprocal(number(1, "float32") + power)
