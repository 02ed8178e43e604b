"""Converts pages between the layout of the ops and that of CPU kernels, in which keys are (D, page) instead of (page,
D), or (words, page) if codes have 4 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.ir.ops.kv_pages import page_rows

Array = npt.NDArray[Any]


def to_cpu(kv: Array, name: str) -> Array:
    """Pages (P, 2, K, page, D) or, of integers, (P, 2, K, page, words), of the same shape and dtype."""
    return with_keys(kv, name, lambda keys: np.swapaxes(keys, -1, -2).reshape(keys.shape))


def from_cpu(kv: Array, name: str) -> Array:
    return with_keys(
        kv, name, lambda keys: np.swapaxes(keys.reshape(*keys.shape[:-2], keys.shape[-1], keys.shape[-2]), -1, -2)
    )


def with_keys(kv: Array, name: str, change: Any) -> Array:
    """A copy of pages with their keys' elements, codes or words in another order. ``name`` is the pages' format."""
    changed = kv.copy()
    if name == "activation":
        changed[:, 0] = change(kv[:, 0])
        return changed
    codes, _ = page_rows(changed)
    keys = np.ascontiguousarray(page_rows(kv)[0][:, 0]).view({"q8": np.int8, "q4": np.uint32}[name])
    codes[:, 0] = np.ascontiguousarray(change(keys)).view(np.uint32)
    return changed
