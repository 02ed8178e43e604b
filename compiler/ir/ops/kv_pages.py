"""Pages of keys and values: their layout, as computed or as codes, and append_kv, which fills them.

``kv`` is (P, 2, K, page, D): pages, keys and values, kv heads. With attrs kv "q8", "q4" or "fp8", its last dim counts
the uint32 words of a row (`kv_format.KvFormat.words`); see `page_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import e4m3, pages
from ..kv_format import KvFormat, hadamard_size, kv_format
from .op import (
    ACTIVATION,
    INTEGERS,
    KV,
    PAGES,
    Array,
    Attrs,
    Bound,
    Inputs,
    Op,
    Shape,
    Shapes,
    Sizes,
    Type,
    Use,
    require,
    require_use,
)


def infer_append_kv(shapes: Shapes, attrs: Attrs) -> Type:
    width = shapes["kv"][2] * head_dim_of(shapes["kv"], attrs)
    require(shapes["k"] == shapes["v"] and shapes["k"][1] == width, "append_kv", shapes)
    return (), "activation"


def append_kv(inputs: Inputs, attrs: Attrs) -> None:
    """Store each new token's key and value at its slot: page ``slot // page``, row ``slot % page``. k, v (S, K * D),
    slots (S,). Some formats store keys rotated.
    """
    kv, slots, form = inputs["kv"], inputs["slots"], kv_format(attrs["kv"])
    page, row = np.divmod(slots, kv.shape[3])
    for plane, role in enumerate(("k", "v")):
        rows = inputs[role].reshape(len(slots), kv.shape[2], -1)
        if form is None:
            kv[page, plane, :, row] = rows
            continue
        codes, scales = page_rows(kv)
        words = quantize_rows(rotated(rows) if form.rotates_keys and plane == 0 else rows, form)
        codes[page, plane, :, row], scales[page, plane, :, row] = words[..., :-1], words[..., -1]


def rotated(rows: Array) -> Array:
    """Rows (..., D) times the orthonormal Hadamard matrix, in blocks of the largest power of two that divides D, as
    float32. It is its own inverse and preserves dot products. Sylvester 1867; for keys: QuaRot, Ashkboos et al. 2024.
    """
    size, step = hadamard_size(rows.shape[-1]), 1
    blocks = rows.astype(np.float32).reshape(-1, size)
    while step < size:
        low, high = np.moveaxis(blocks.reshape(-1, size // (2 * step), 2, step), 2, 0)
        blocks = np.stack([low + high, low - high], axis=2).reshape(-1, size)
        step *= 2
    return (blocks * np.float32(size**-0.5)).reshape(rows.shape)


def quantize_rows(rows: Array, form: KvFormat) -> Array:
    """(..., D) -> (..., words) uint32: the codes, then the bits of the float32 scale.

    An element is code * scale. The scale gives the element of largest magnitude the code -steps, the positive one of
    two; codes are rounded to nearest, ties to even, and limited to the largest code or float.
    """
    rows = rows.astype(np.float32)
    highest, lowest = rows.max(axis=-1, keepdims=True), rows.min(axis=-1, keepdims=True)
    extreme = np.where(highest >= -lowest, highest, lowest)
    factor = np.divide(np.float32(-form.steps), extreme, out=np.zeros_like(extreme), where=extreme != 0)
    if form.floats:
        codes = e4m3.encode(rows * factor)
    else:
        codes = np.minimum(np.rint(rows * factor), form.largest_code).astype(np.int8).view(np.uint8)
        codes = codes + np.uint8(form.zero)
    # Element v * 4 + b of a word is in byte b.
    bytes_of = codes.reshape(*rows.shape[:-1], -1, form.vectors, 4)
    packed = bytes_of[..., 0, :]
    for vector in range(1, form.vectors):
        packed = packed | bytes_of[..., vector, :] << np.uint8(vector * form.bits)
    words = np.ascontiguousarray(packed).view("<u4")[..., 0]
    return np.concatenate([words, (extreme / np.float32(-form.steps)).view(np.uint32)], axis=-1)


def dequantize_rows(words: Array, form: KvFormat) -> Array:
    """The inverse of `quantize_rows`, as float32 (..., D)."""
    packed = np.ascontiguousarray(words[..., :-1, None]).view(np.uint8)
    vectors = [packed >> np.uint8(vector * form.bits) for vector in range(form.vectors)]
    codes = np.stack(vectors, axis=-2) & np.uint8((1 << form.bits) - 1)
    numbers = e4m3.VALUES[codes] if form.floats else (codes - np.uint8(form.zero)).view(np.int8)
    numbers = numbers.reshape(*words.shape[:-1], -1)
    rows: Array = numbers * np.ascontiguousarray(words[..., -1:]).view(np.float32)
    return rows


def page_rows(kv: Array) -> tuple[Array, Array]:
    """The words of codes (P, 2, K, page, words - 1) and of scales (P, 2, K, page) in pages of integers, as views of
    them.

    For each page, plane and kv head, the codes of all rows precede all scales, so that rows begin at multiples of their
    size.
    """
    page_size, words = kv.shape[-2:]
    flat = kv.reshape(*kv.shape[:-2], page_size * words)
    codes, scales = flat[..., : page_size * (words - 1)], flat[..., page_size * (words - 1) :]
    return codes.reshape(*kv.shape[:-2], page_size, words - 1), scales


def read_pages(kv: Array, attrs: Attrs) -> Array:
    """Pages as float32 (P, 2, K, page, D), whatever their format; keys are not rotated."""
    form = kv_format(attrs["kv"])
    if form is None:
        return kv.astype(np.float32)
    pages = dequantize_pages(kv, form)
    if form.rotates_keys:
        pages[:, 0] = rotated(pages[:, 0])
    return pages


def dequantize_pages(kv: Array, form: KvFormat) -> Array:
    """Pages of integers as float32 (P, 2, K, page, D), with keys as they are stored."""
    codes, scales = page_rows(kv)
    return dequantize_rows(np.concatenate([codes, scales[..., None]], axis=-1), form)


def head_dim_of(kv: tuple[Any, ...], attrs: Attrs) -> int:
    """D, from the shape of the pages."""
    last: int = kv[-1]
    form = kv_format(attrs["kv"])
    return last if form is None else form.head_dim(last)


def check_pages(use: Use, sizes: Sizes) -> None:
    """Pages have the format of the bundle and the heads of one of the model's layers, and those of a window hold all
    tokens that the step sees.
    """
    kv, spec, form = use.shapes["kv"], sizes.spec, kv_format(sizes.kv)
    in_window = kv[0] == pages.WINDOW_PAGES
    head_dim = head_dim_of(kv, {"kv": sizes.kv})
    width = head_dim if form is None else form.words(head_dim)
    kinds = {spec.heads_of(layer) for layer in range(spec.num_layers)}
    allowed = [(2, heads, sizes.page_size, width) for heads, size in kinds if size == head_dim]
    layers = ", ".join(f"{heads} kv heads of {size}" for heads, size in sorted(kinds))
    fits = (
        kv[0] in (*pages.PAGE_DIMS, pages.DRAFT_PAGES, pages.SOURCE_PAGES)
        and kv[1:] in allowed
        and (use.kinds["kv"] == "uint32") == (form is not None)
    )
    require_use(fits, f"pages are {list(kv)}, but layers have {layers}")
    require_use(use.attrs["kv"] == sizes.kv, f"pages are {sizes.kv}")
    if in_window and "page_ids" in use.shapes:
        window = use.attrs["window"] or math.inf
        most = max((each for each in spec.windows if each is not None and each < sizes.context), default=0)
        seen = "all" if window == math.inf else window
        require_use(window <= most, f"sees {seen} tokens, but pages behind {most} are given back")


def page_facts(use: Use, bound: Bound, q: Shape | None = None) -> Mapping[str, Any]:
    """``q``: the queries; a step without them counts one query head for each kv head."""
    _, _, num_kv_heads, page_size, _ = use.shapes["kv"]
    head_dim = head_dim_of(use.shapes["kv"], use.attrs)
    return {
        "num_heads": num_kv_heads if q is None else q[1] // head_dim,  # type: ignore[operator]
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "page_size": page_size,
        "rows": use.shapes["positions" if "positions" in use.shapes else "slots"][0],
        # A kernel that merges results of others in scratch buffers does not read pages, whatever their format.
        **({"kv": use.attrs["kv"]} if "kv" in bound.binds else {}),
    }


OPS = {
    "append_kv": Op(
        infer_append_kv,
        append_kv,
        inputs={"k": ACTIVATION, "v": ACTIVATION, "kv": PAGES, "slots": INTEGERS},
        attrs={"kv": KV},
        result=None,
        facts=page_facts,
        checks=(check_pages,),
        states=("kv",),
    )
}
