"""min_tokens: the tokens that end an answer are masked until the answer is long enough."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from nearfar.compiler.runtime.batch import IntArray

from .request import TokenRequest


def end_ids(request: TokenRequest, model_end_ids: frozenset[int]) -> frozenset[int]:
    """The tokens that are excluded before ``min_tokens``: the model's own end tokens even if the request ignores them,
    as in vLLM.
    """
    return model_end_ids | request.stop_token_ids | request.last_token_ids


def mask_without(token_ids: Collection[int], vocab_size: int) -> IntArray:
    """(ceil(V / 32),): all tokens but these, in the form of `Constraint.mask`."""
    allowed = np.ones(-(-vocab_size // 32) * 32, bool)
    allowed[list(token_ids)] = False
    return np.packbits(allowed, bitorder="little").view(np.int32)


def both_masks(mask: IntArray, no_end: IntArray) -> IntArray:
    """The tokens of a constraint's mask without those that end the answer; the mask itself if it allows only an end."""
    left = mask & no_end
    return left if left.any() else mask
