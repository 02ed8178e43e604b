"""Pages of keys and values: their layout, as computed or as 8-bit integers, and append_kv, which fills them.

``kv`` is (P, 2, K, page, D): pages, keys and values, kv heads. With attrs kv "q8" it is (P, 2, K, page, D/4 + 1)
uint32; see `page_rows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .op import ACTIVATION, INTEGERS, KV, PAGES, Array, Attrs, Inputs, Op, Shapes, Type, require


def infer_append_kv(shapes: Shapes, attrs: Attrs) -> Type:
    width = shapes["kv"][2] * head_dim_of(shapes["kv"], attrs)
    require(shapes["k"] == shapes["v"] and shapes["k"][1] == width, "append_kv", shapes)
    return (), "activation"


def append_kv(inputs: Inputs, attrs: Attrs) -> None:
    """Store each new token's key and value at its slot: page ``slot // page``, row ``slot % page``. k, v (S, K * D),
    slots (S,).
    """
    kv, slots = inputs["kv"], inputs["slots"]
    page, row = np.divmod(slots, kv.shape[3])
    for plane, role in enumerate(("k", "v")):
        rows = inputs[role].reshape(len(slots), kv.shape[2], -1)
        if attrs["kv"] == "q8":
            codes, scales = page_rows(kv)
            words = quantize_rows(rows)
            codes[page, plane, :, row], scales[page, plane, :, row] = words[..., :-1], words[..., -1]
        else:
            kv[page, plane, :, row] = rows


def quantize_rows(rows: Array) -> Array:
    """(..., D) -> (..., D/4 + 1) uint32: int8 codes, four a word, the first lowest; then the bits of the float32 scale.

    An element is code * scale; scale = max |x| / 127, codes are rounded to nearest, ties to even.
    """
    rows = rows.astype(np.float32)
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    factor = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(rows * factor).astype("<i1").view("<u4")
    return np.concatenate([codes, (largest / np.float32(127)).view(np.uint32)], axis=-1)


def dequantize_rows(words: Array) -> Array:
    """The inverse of `quantize_rows`, as float32 (..., D)."""
    codes = np.ascontiguousarray(words[..., :-1]).view("<i1")
    rows: Array = codes * np.ascontiguousarray(words[..., -1:]).view(np.float32)
    return rows


def page_rows(kv: Array) -> tuple[Array, Array]:
    """The words of codes (P, 2, K, page, D/4) and of scales (P, 2, K, page) in pages of 8-bit integers, as views of
    them.

    For each page, plane and kv head, the codes of all rows precede all scales, so that rows begin at multiples of their
    size.
    """
    page_size, words = kv.shape[-2:]
    flat = kv.reshape(*kv.shape[:-2], page_size * words)
    codes, scales = flat[..., : page_size * (words - 1)], flat[..., page_size * (words - 1) :]
    return codes.reshape(*kv.shape[:-2], page_size, words - 1), scales


def read_pages(kv: Array, attrs: Attrs) -> Array:
    """Pages as float32 (P, 2, K, page, D), whatever their format."""
    return dequantize_pages(kv) if attrs["kv"] == "q8" else kv.astype(np.float32)


def dequantize_pages(kv: Array) -> Array:
    """Pages of 8-bit integers as float32 (P, 2, K, page, D)."""
    codes, scales = page_rows(kv)
    return dequantize_rows(np.concatenate([codes, scales[..., None]], axis=-1))


def head_dim_of(kv: tuple[Any, ...], attrs: Attrs) -> int:
    """D, from the shape of the pages."""
    last: int = kv[-1]
    return (last - 1) * 4 if attrs["kv"] == "q8" else last


OPS = {
    "append_kv": Op(
        infer_append_kv,
        append_kv,
        inputs={"k": ACTIVATION, "v": ACTIVATION, "kv": PAGES, "slots": INTEGERS},
        attrs={"kv": KV},
        result=None,
    )
}
