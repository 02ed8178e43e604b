"""The cases of attention and append_kv: all pairs of layer options, on batches around the ends of pages,
blocks and windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from cpu_steps import Batch, StepCase

from nearfar.compiler.ir.kv_format import kv_format
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.ops.kv_pages import append_kv
from nearfar.compiler.ir.rope import rope_table
from nearfar.compiler.runtime.batch import Chunk, make_batch

EPS = 1e-6
POSITIONS = 1000
# For each sequence, the number of cached tokens and the number of new tokens.
Sequences = Sequence[tuple[int, int]]
# Around pages of 16: alone, three decoding, prefill and decode mixed, and more sequences than a tile of rows touches.
SMALL: tuple[Sequences, ...] = (((0, 1),), ((64, 1), (15, 1), (63, 1)), ((3, 2), (20, 11), (128, 1), (0, 30), (7, 1)))
# Around a block of 256 keys: decoding, and prompts that cross it within a tile.
LONG: tuple[Sequences, ...] = (((255, 1), (256, 1), (511, 1), (3, 1)), ((250, 12), (0, 5), (257, 3)))
# Beyond three windows of up to 300 keys.
FAR: tuple[Sequences, ...] = (((930, 1), (767, 1)), ((900, 21),))
# Prompts of more than two windows of 40 keys, whose first tokens do not see the last ones.
WHOLE: tuple[Sequences, ...] = (((0, 90), (0, 41)),)


@dataclass(frozen=True)
class Layer:
    """One layer's attention. ``rotary_dim`` 0 means that it rotates nothing. ``exhaustive``: its options are those of
    other layers in other combinations, so only `make test-all` runs it.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int = 16
    activation: str = "float32"
    kv: str = "activation"
    rotary_dim: int = 0
    norm: bool = False
    norm_wide: bool = False
    norm_after: bool = False
    position_scale: tuple[float, int] | None = None
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    causal: bool = True
    sinks: bool = False
    reach: bool = False
    exhaustive: bool = False
    # The rotation table has a row for each row.
    by_row: bool = field(default=False, repr=False)

    @property
    def name(self) -> str:
        """The sizes, and the values that differ from the defaults."""
        sizes = f"{self.num_heads}_{self.num_kv_heads}_{self.head_dim}_{self.page_size}_{self.activation}_{self.kv}"
        facts = {"rotary": self.rotary_dim, "window": self.window, "softcap": self.softcap, "scale": self.scale}
        flags = {"qk_norm": self.norm, "wide": self.norm_wide, "after": self.norm_after}
        flags |= {"scaled": self.position_scale is not None, "bidirectional": not self.causal, "sinks": self.sinks}
        flags["reach"] = self.reach
        flags |= {"by_row": self.by_row}
        found = [f"{key}{value:g}" for key, value in facts.items() if value] + [
            key for key, value in flags.items() if value
        ]
        return "_".join([sizes, *found])

    @property
    def pages(self) -> tuple[Any, ...]:
        form = kv_format(self.kv)
        if form is not None:
            return ("uint32", "P", 2, self.num_kv_heads, self.page_size, form.words(self.head_dim))
        return ("activation", "P", 2, self.num_kv_heads, self.page_size, self.head_dim)

    @property
    def scores(self) -> dict[str, object]:
        return {"scale": self.scale, "window": self.window, "softcap": self.softcap, "causal": self.causal}


# (layer, batches, levels beside the base). Kernels take long to compile, so levels take turns.
ROPE_ATTENTION: tuple[tuple[Layer, tuple[Sequences, ...], tuple[str, ...]], ...] = (
    (Layer(6, 3, 24, rotary_dim=24, norm=True), (*SMALL, *LONG), ("avx512", "neon")),
    (Layer(6, 3, 24, kv="q8", rotary_dim=24, norm=True, norm_wide=True), (*SMALL, *LONG), ("neon",)),
    (Layer(4, 2, 24, rotary_dim=18, by_row=True), SMALL, ()),
    (Layer(3, 1, 66, 32, "float16", rotary_dim=66, exhaustive=True), (*SMALL, *LONG), ("avx512",)),
    (Layer(7, 1, 80, 16, "float16", rotary_dim=32, window=5), (*SMALL, *LONG), ("avx512",)),
    (Layer(2, 2, 256, 32, kv="q4", rotary_dim=256, norm=True, window=300, exhaustive=True), FAR, ()),
    (Layer(4, 2, 2, scale=0.3, softcap=1.5, window=256), (*SMALL, *FAR), ("neon",)),
    (Layer(7, 1, 24, kv="q4", rotary_dim=10, norm=True, norm_after=True, window=17, softcap=3.0), (*SMALL, *LONG),
    ("avx512", "neon")),
    (Layer(2, 2, 80, rotary_dim=20, causal=False, position_scale=(0.5, 50)), (*SMALL, *LONG), ("avx512",)),
    (Layer(6, 3, 24, rotary_dim=24, window=40, reach=True), (*SMALL, *LONG, *WHOLE), ("avx512", "neon")),
)  # fmt: skip
ATTENTION: tuple[tuple[Layer, tuple[Sequences, ...], tuple[str, ...]], ...] = (
    (Layer(6, 3, 24), (*SMALL, *LONG), ("avx512",)),
    (Layer(3, 3, 80, 32, "float16", causal=False, sinks=True, exhaustive=True), (*SMALL, *LONG), ("avx512",)),
    (Layer(14, 2, 24, 16, "float16", sinks=True, window=100), (*SMALL, *LONG), ("avx512",)),
    (Layer(2, 1, 2, causal=False, window=40, softcap=2.0), (*SMALL, *LONG, *WHOLE), ("avx512",)),
    (Layer(6, 3, 24, kv="q8", causal=False, sinks=True, softcap=2.0, window=300), (*SMALL, *FAR), ("avx512",)),
    (Layer(1, 1, 256, 32, "float16", kv="q8", scale=0.02, sinks=True), (*SMALL, *LONG), ()),
    (Layer(6, 3, 24, rotary_dim=10, norm=True, window=90, softcap=3.0), (*SMALL, *LONG), ("avx512",)),
    (Layer(4, 2, 80, 16, "float16", kv="q4", rotary_dim=80, exhaustive=True), (*SMALL, *FAR), ()),
)  # fmt: skip
APPEND = (
    Layer(6, 3, 24, rotary_dim=24, norm=True, norm_wide=True, norm_after=True),
    Layer(2, 2, 2),
    Layer(7, 1, 80, 32, "float16", rotary_dim=20, position_scale=(0.5, 10)),
    Layer(3, 1, 24, kv="q8", rotary_dim=10),
    Layer(2, 2, 80, 16, "float16", kv="q4", norm=True),
    # Seconds to compile.
    Layer(2, 2, 256, 16, "float16", kv="q4", norm=True, exhaustive=True),
)


def attention_cases() -> Iterator[StepCase]:
    for layer, batches, levels in ROPE_ATTENTION:
        made = tuple(page_batch(layer, sequences) for sequences in batches)
        inputs = {**new_heads(layer), **READING} | ({"reach": ("int32", "S")} if layer.reach else {})
        yield case(
            "attention",
            layer,
            inputs,
            {**preparation(layer), "kv": layer.kv, **layer.scores},
            made,
            levels,
        )
    for layer, batches, levels in ATTENTION:
        made = tuple(page_batch(layer, sequences, stored=True) for sequences in batches)
        inputs = {
            "q": ("activation", "S", layer.num_heads * layer.head_dim),
            "kv": layer.pages,
            "positions": ("int32", "S"),
            **READING,
        }
        inputs |= {"sinks": ("vector", layer.num_heads)} if layer.sinks else {}
        inputs |= {role: shape for role, shape in new_heads(layer).items() if role == "table"}
        inputs |= {"qk_norm": ("vector", layer.head_dim)} if layer.norm else {}
        eps = {"eps": EPS} if layer.norm else {}
        yield case("attention", layer, inputs, {**eps, "kv": layer.kv, **layer.scores}, made, levels)
    for layer in APPEND:
        made = tuple(page_batch(layer, sequences) for sequences in SMALL)
        width = layer.num_kv_heads * layer.head_dim
        inputs = {
            "k": ("activation", "S", width),
            "v": ("activation", "S", width),
            "kv": layer.pages,
            "slots": ("int32", "S"),
        }
        yield case("append_kv", layer, inputs, {"kv": layer.kv}, made)


def preparation(layer: Layer) -> dict[str, object]:
    """Values are normalized in the layers with 16 tokens per page, unless norms are over all heads."""
    if not layer.norm:
        return {"position_scale": layer.position_scale}
    norms_values = layer.page_size == 16 and not layer.norm_wide
    return {"eps": EPS, "norms_values": norms_values, "norm_after": layer.norm_after}


READING: dict[str, tuple[object, ...]] = {
    "seq_starts": ("int32", ["add", "B", 1]),
    "page_indptr": ("int32", ["add", "B", 1]),
    "page_ids": ("int32", "L"),
}


def new_heads(layer: Layer) -> dict[str, tuple[object, ...]]:
    width = (layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim
    inputs: dict[str, tuple[object, ...]] = {
        "qkv": ("activation", "S", width),
        "positions": ("int32", "S"),
        "slots": ("int32", "S"),
    }
    if layer.rotary_dim:
        by_position, by_row = ("rope", POSITIONS, layer.rotary_dim // 2, 2), ("float32", "S", layer.rotary_dim)
        inputs["table"] = by_row if layer.by_row else by_position
    count = layer.num_heads + layer.num_kv_heads if layer.norm_wide else 2
    inputs |= {"qk_norm": ("vector", count * layer.head_dim)} if layer.norm else {}
    return {**inputs, "kv": layer.pages}


def case(
    op: str,
    layer: Layer,
    inputs: dict[str, tuple[object, ...]],
    attrs: dict[str, object],
    batches: Sequence[Batch],
    levels: tuple[str, ...] | None = None,
) -> StepCase:
    own = [
        Batch(each.dims, {role: array for role, array in each.arrays.items() if role in inputs}, each.poison)
        for each in batches
    ]
    return StepCase(
        f"{op}_{layer.name}", op, inputs, attrs, own, layer.activation, levels=levels, exhaustive=layer.exhaustive
    )


def page_batch(layer: Layer, sequences: Sequences, *, stored: bool = False) -> Batch:
    """A batch with the cached keys and values in its pages, in random order. ``stored``: the pages also contain those
    of the new tokens. Rows of pages without a token are NaN, as are pages that no row attends to when the kernels run.
    """
    rng = np.random.default_rng(crc32(str((layer, sequences)).encode()))
    page_size, width = layer.page_size, layer.num_kv_heads * layer.head_dim
    counts = [-(-(start + new) // page_size) for start, new in sequences]
    pages = rng.permutation(sum(counts) + 2)
    shape = (len(pages), *layer.pages[2:])
    # The scales of quantized pages are NaN.
    packed = layer.pages[0] == "uint32"
    unwritten = 0x7FC00000 if packed else np.nan
    kv: Array = np.full(shape, unwritten, np.uint32 if packed else layer.activation)
    chunks, unseen = [], []
    for index, (start, new) in enumerate(sequences):
        own = pages[sum(counts[:index]) : sum(counts[: index + 1])]
        positions = np.arange(start + new if stored else start)
        if len(positions):
            k, v = rng.normal(size=(2, len(positions), width))
            slots = own[positions // page_size] * page_size + positions % page_size
            append_kv({"k": k, "v": v, "kv": kv, "slots": slots}, {"kv": layer.kv})
        # A picture in the middle of the new tokens.
        features = ((new // 4, np.zeros((new // 2, 0), np.float32)),)
        chunks.append(Chunk([0] * new, start, [int(page) for page in own], features=features))
        if layer.window is not None:
            unseen += list(own[: max(0, start - layer.window + 1) // page_size])
    batch = make_batch(chunks, page_size)
    # Scores vary enough for the maximum to change from block to block.
    qkv = rng.normal(size=(len(batch.token_ids), layer.num_heads + 2 * layer.num_kv_heads, layer.head_dim))
    qkv[:, : layer.num_heads] *= 3
    arrays: dict[str, Array] = {
        "qkv": qkv.reshape(len(qkv), -1).astype(layer.activation),
        "q": qkv[:, : layer.num_heads].reshape(len(qkv), -1).astype(layer.activation),
        "kv": kv,
        "reach": batch.reach(),
        **{each: getattr(batch, each) for each in ("positions", "slots", "seq_starts", "page_indptr", "page_ids")},
    }
    poison = {}
    if unseen:
        poison["kv"] = kv.copy()
        poison["kv"][unseen] = unwritten
    if layer.rotary_dim and not layer.by_row:
        arrays["table"] = rope_table([0.5**pair for pair in range(layer.rotary_dim // 2)], POSITIONS)
    dims = batch.dims(len(pages))
    # A runtime may pass more than the longest context, here enough for the variants that split long ones.
    return Batch({**dims, "T": max(dims["T"] + 40, 600)}, arrays, poison)
