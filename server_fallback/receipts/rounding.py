"""Whether a token could have been chosen instead if the logits were rounded otherwise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nearfar.compiler.ir.sampling import FloatArray, Settings


def may_choose(logits: FloatArray, settings: Settings, token_id: int, error: float) -> bool:
    """Whether `choose_token` may choose the token if each of the logits (V,) is off by at most ``error``.

    Every bound is the worst case over all such logits, so this is never false for a difference that rounding explains.
    """
    x = logits.astype(np.float64)
    # Of a difference of two logits.
    doubt, own = 2 * error, float(x[token_id])
    if settings.temperature == 0:
        return own >= float(x.max()) - doubt
    temperature = settings.temperature
    weights = np.exp((x - x.max()) / temperature)
    sure, possible = _kept(x, weights, settings, doubt)
    if not possible[token_id]:
        return False
    # By how much the ratio of two weights may differ.
    factor = math.exp(min(doubt / temperature, 700.0))
    sure_weights, possible_weights = weights * sure, weights * possible
    before, after = slice(0, token_id), slice(token_id + 1, None)
    mass = float(weights[token_id])
    # The lowest and the highest share at which the token's interval can begin and end: what is on the other side of the
    # border weighs as much, and what is on this side as little, as it may.
    least_before, most_before = float(sure_weights[before].sum()), float(possible_weights[before].sum())
    least_after, most_after = float(sure_weights[after].sum()), float(possible_weights[after].sum())
    begin = _share(least_before, (most_after + mass) * factor)
    end = _share((most_before + mass) * factor, least_after)
    # The draw is compared with sums in float64.
    return begin - 1e-9 <= settings.draw <= end + 1e-9


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest > 0 else 0.0


def _kept(
    x: FloatArray, weights: FloatArray, settings: Settings, doubt: float
) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """The tokens that top_k, top_p and min_p surely keep, and those that they may keep."""
    least, most = -math.inf, -math.inf
    top_k = int(settings.top_k)
    if 0 < top_k < len(x):
        border = float(np.partition(x, -top_k)[-top_k])
        least, most = border - doubt, border + doubt
    if settings.top_p < 1:
        factor, p = math.exp(min(doubt / settings.temperature, 700.0)), settings.top_p
        # The share of the likeliest tokens is lowest, so that most are kept, among all tokens that top_k may keep.
        least = max(least, _border(x, weights, x >= least, p * factor / (p * factor + (1 - p))) - doubt)
        most = max(most, _border(x, weights, x >= most, p / (p + (1 - p) * factor)) + doubt)
    if settings.min_p > 0:
        border = float(x.max()) + settings.temperature * math.log(settings.min_p)
        least, most = max(least, border - doubt), max(most, border + doubt)
    return x >= most, x >= least


def _border(x: FloatArray, weights: FloatArray, among: np.ndarray[Any, np.dtype[np.bool_]], share: float) -> float:
    """The logit of the last token that top_p keeps."""
    order = np.argsort(-x, kind="stable")
    order = order[among[order]]
    if len(order) == 0:
        return float(x.max())
    mass = np.cumsum(weights[order])
    return float(x[order[min(int(np.searchsorted(mass, share * mass[-1])), len(order) - 1)]])
