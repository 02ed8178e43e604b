"""Converts pages between the layout of the ops and that of CPU kernels, in which keys are (D, page) instead of (page,
D), and a byte with several codes holds those of elements that are far apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.ir.kv_format import KvFormat, kv_format
from nearfar.compiler.ir.ops.kv_pages import page_rows

Array = npt.NDArray[Any]


def to_cpu(kv: Array, name: str) -> Array:
    """Pages (P, 2, K, page, D) or, of integers, (P, 2, K, page, words), of the same shape and dtype."""
    return changed(kv, name, spread, lambda rows: np.swapaxes(rows, -1, -2))


def from_cpu(kv: Array, name: str) -> Array:
    def from_columns(rows: Array) -> Array:
        return np.swapaxes(rows.reshape(*rows.shape[:-2], rows.shape[-1], rows.shape[-2]), -1, -2)

    return changed(kv, name, gathered, from_columns, keys_last=False)


def changed(kv: Array, name: str, row: Any, keys: Any, *, keys_last: bool = True) -> Array:
    """A copy of pages with each row's bytes, and then the order of all keys' bytes, changed; or in the other order."""
    form, result = kv_format(name), kv.copy()
    if form is None:
        result[:, 0] = keys(kv[:, 0]).reshape(kv[:, 0].shape)
        return result
    codes, _ = page_rows(result)
    bytes_of = np.ascontiguousarray(codes).view(np.uint8)
    bytes_of = row(bytes_of, form) if keys_last else bytes_of
    bytes_of[:, 0] = keys(bytes_of[:, 0]).reshape(bytes_of[:, 0].shape).copy()
    bytes_of = bytes_of if keys_last else row(bytes_of, form)
    codes[...] = np.ascontiguousarray(bytes_of).view(np.uint32)
    return result


def spread(row: Array, form: KvFormat) -> Array:
    """Bytes of elements b, b + 4 .. of each word -> bytes of elements e, e + D / 2 .. of the row."""
    words = row.reshape(*row.shape[:-1], -1, 4)
    codes = np.stack([words >> np.uint8(v * form.bits) for v in range(form.vectors)], axis=-2) & mask(form)
    return joined(codes.reshape(*row.shape[:-1], form.vectors, -1), form)


def gathered(row: Array, form: KvFormat) -> Array:
    """The inverse of `spread`."""
    codes = np.stack([row >> np.uint8(v * form.bits) for v in range(form.vectors)], axis=-2) & mask(form)
    words = codes.reshape(*row.shape[:-1], -1, form.vectors, 4)
    return joined(words, form).reshape(row.shape)


def joined(codes: Array, form: KvFormat) -> Array:
    """(.., parts of a byte, n) -> (.., n)."""
    result = codes[..., 0, :].copy()
    for part in range(1, form.vectors):
        result |= codes[..., part, :] << np.uint8(part * form.bits)
    return result


def mask(form: KvFormat) -> np.uint8:
    return np.uint8((1 << form.bits) - 1)
