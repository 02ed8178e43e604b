"""Choose a token on the host quickly: the same token as `sampling.choose_token`, without sorting the entire vocabulary.

Weights are computed as float32 first. They determine the few tokens that can be kept; exact weights then decide among
those. If the rounding of the float32 sums could matter, `choose_token` decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.sampling import Settings, choose_token

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.intp]
# Elements that fit into a core's L1 cache, and elements that share a sum or a maximum.
BLOCK = 8192
STRIPE = 128
# The error of a sum of float32 weights is less than this share of it: exponents are off by 2^-24 of their size, which
# is at most 20 for weights that matter.
DOUBT = 1e-5
# The same for float64 weights, which take ten times as long.
EXACT_DOUBT = 1e-11
# For top_p, only tokens whose log-weight exceeds the first of these are sorted; if they are too few, the next one
# applies.
CUTS = (-5.0, -10.0, -float("inf"))


def quick_choice(logits: FloatArray, settings: Settings) -> int:
    """As `choose_token`. Logits (V,) must be finite."""
    if settings.temperature == 0:
        return int(np.argmax(logits))
    top_k = int(settings.top_k)
    if 0 < top_k < len(logits):
        return choose_among(logits, largest(logits, top_k), settings)
    weights, sums = stripe_weights(logits, settings.temperature)
    if settings.top_p < 1:
        head = likeliest(logits, weights, settings, float(sums.sum()), DOUBT)
        if head is None:
            exact = exact_weights(logits, settings.temperature)
            head = likeliest(logits, exact, settings, float(exact.sum()), EXACT_DOUBT)
        if head is None:
            return choose_token(logits, settings)
        return choose_among(logits, head, settings._replace(top_p=1.0))
    if settings.min_p > 0:
        return choose_among(logits, np.flatnonzero(weights >= settings.min_p * (1 - 10 * DOUBT)), settings)
    chosen = walk(weights, sums, settings.draw)
    return choose_token(logits, settings) if chosen is None else chosen


def log_probability(logits: FloatArray, token: int) -> np.float32:
    """The log-probability of a token under the softmax of finite logits (V,)."""
    _, sums = stripe_weights(logits, 1.0)
    return np.float32(np.float64(logits[token]) - np.float64(logits.max()) - np.log(sums.sum()))


def choose_among(logits: FloatArray, tokens: IntArray, settings: Settings) -> int:
    """`choose_token` if only ``tokens``, in rising order, can be kept."""
    return int(tokens[choose_token(logits[tokens], settings)])


def largest(logits: FloatArray, count: int) -> IntArray:
    """Tokens whose logits are the ``count`` largest, and perhaps some more, in rising order."""
    # At least ``count`` stripes have a maximum of at least this threshold, so no smaller logit is among the largest.
    aligned = len(logits) // STRIPE * STRIPE
    maxima = logits[:aligned].reshape(-1, STRIPE).max(axis=1)
    among = maxima if count <= len(maxima) else logits
    return np.flatnonzero(logits >= np.partition(among, -count)[-count])


def stripe_weights(logits: FloatArray, temperature: float) -> tuple[FloatArray, npt.NDArray[np.float64]]:
    """exp((logit - max) / temperature) of each token, and the sums of each stripe; the last stripe may be shorter."""
    weights = np.empty_like(logits)
    most, factor = logits.max(), np.float32(1 / temperature)
    for start in range(0, len(logits), BLOCK):
        block = weights[start : start + BLOCK]
        np.subtract(logits[start : start + BLOCK], most, out=block)
        if temperature != 1:
            # Masked logits have nearly the largest magnitude of float32.
            with np.errstate(over="ignore"):
                np.multiply(block, factor, out=block)
        np.exp(block, out=block)
    return weights, np.add.reduceat(weights, np.arange(0, len(weights), STRIPE)).astype(np.float64)


def exact_weights(logits: FloatArray, temperature: float) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    weights: npt.NDArray[np.float64] = np.exp((x - x.max()) / temperature)
    return weights


def likeliest(
    logits: FloatArray, weights: npt.NDArray[np.floating[Any]], settings: Settings, total: float, doubt: float
) -> IntArray | None:
    """The tokens that top_p keeps, in rising order. None if an error of the sums by a share ``doubt`` could change the
    last one.
    """
    mass, most = settings.top_p * total, float(logits.max())
    for cut in CUTS:
        head = np.flatnonzero(logits >= most + settings.temperature * cut)
        order = head[np.argsort(-logits[head], kind="stable")]
        sums = np.cumsum(weights[order], dtype=np.float64)
        last = int(np.searchsorted(sums, mass))
        if last < len(order) and sums[last] > mass * (1 + doubt) and (last == 0 or sums[last - 1] < mass * (1 - doubt)):
            return np.flatnonzero(logits >= logits[order[last]])
    return None


def walk(weights: FloatArray, sums: npt.NDArray[np.float64], draw: float) -> int | None:
    """The first token at which the running sum of all weights exceeds ``draw`` times their sum, or None if rounding
    could change it.
    """
    ends = np.cumsum(sums)
    target, doubt = draw * ends[-1], DOUBT * ends[-1]
    stripe = int(np.searchsorted(ends, target, side="right"))
    if stripe == len(ends):
        return None
    before = ends[stripe - 1] if stripe else 0.0
    inside = before + np.cumsum(weights[stripe * STRIPE : (stripe + 1) * STRIPE], dtype=np.float64)
    index = int(np.searchsorted(inside, target, side="right"))
    if index == len(inside):
        return None
    start = inside[index - 1] if index else before
    certain = (target - start > doubt or stripe * STRIPE + index == 0) and inside[index] - target > doubt
    return stripe * STRIPE + index if certain else None
