"""Pages as the ops define them, in the order in which CPU kernels lay them out, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def to_cpu(kv: Array) -> Array:
    """Pages (P, 2, K, page, D) or, quantized, (P, 2, K, page, D/4 + 1), of the same shape and dtype."""
    keys, values = np.moveaxis(kv, 1, 0)
    if kv.dtype != np.uint32:
        return np.stack([np.swapaxes(keys, -1, -2).reshape(keys.shape), values], 1)
    return np.stack([join(np.swapaxes(codes_of(keys), -1, -2), keys), join(codes_of(values), values)], 1)


def from_cpu(kv: Array) -> Array:
    keys, values = np.moveaxis(kv, 1, 0)
    page, width = kv.shape[-2:]
    if kv.dtype != np.uint32:
        return np.stack([np.swapaxes(keys.reshape(*keys.shape[:-2], width, page), -1, -2), values], 1)
    return np.stack([rows_of(keys, page, width, transposed=True), rows_of(values, page, width, transposed=False)], 1)


def codes_of(words: Array) -> Array:
    return np.ascontiguousarray(words[..., :-1]).view(np.int8)


def join(codes: Array, words: Array) -> Array:
    """Codes in their order, then the scales of ``words``, in the shape of those."""
    flat = np.ascontiguousarray(codes.reshape(*words.shape[:-2], -1)).view(np.uint32)
    return np.concatenate([flat, words[..., -1]], -1).reshape(words.shape)


def rows_of(plane: Array, page: int, width: int, *, transposed: bool) -> Array:
    flat = plane.reshape(*plane.shape[:-2], page * width)
    codes = np.ascontiguousarray(flat[..., :-page]).view(np.int8)
    size = 4 * (width - 1)
    codes = (
        np.swapaxes(codes.reshape(*codes.shape[:-1], size, page), -1, -2) if transposed else codes.reshape(*codes.shape[:-1], page, size)
    )
    return np.concatenate([np.ascontiguousarray(codes).view(np.uint32), flat[..., -page:, None]], -1)
