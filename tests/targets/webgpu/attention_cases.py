"""The cases of attention kernels. Places of pages that no token has written are NaN, so a kernel that reads them shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from case_arrays import EPS, nothing, random
from kernel_harness import Case, Run

from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.ops.kv_pages import append_kv
from nearfar.compiler.ir.rope import rope_table
from nearfar.compiler.kernels.attention import attention
from nearfar.compiler.kernels.attention_decode import DecodeOptions, attention_decode
from nearfar.compiler.kernels.attention_merge import attention_merge
from nearfar.compiler.kernels.attention_tile import TileOptions, attention_tile
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.pages import Heads
from nearfar.compiler.kernels.rope_append import rope_append
from nearfar.compiler.runtime.batch import Chunk, make_batch

# What sequences have cached, and their new tokens: the start and the end of a page, a page and one more, the first and the second tile
# of 64 keys; alone, three decoding, prefill and decode mixed, 33 rows, and more sequences than a tile of rows touches, some within one.
BATCHES_OF_ANY_KIND = (
    ((0, 1),),
    ((64, 1), (15, 1), (63, 1)),
    ((129, 1), (0, 17), (60, 9)),
    ((31, 33),),
    ((3, 2), (20, 11), (128, 1), (0, 30), (7, 1)),
)
# One new token each, around the ends of pages (16), tiles (16 or 32) and ranges (32 or 64).
DECODE_BATCHES = (
    ((0, 1),),
    ((15, 1), (130, 1), (16, 1), (0, 1)),
    tuple((cached, 1) for cached in (1, 17, 30, 31, 32, 33, 47, 48, 62, 63, 64, 65, 95, 96, 127, 128)),
)
# (query heads, kv heads, head_dim, norm)
HEADS = ((6, 3, 24, True), (2, 1, 22, False), (4, 2, 64, False), (5, 1, 64, True), (3, 1, 128, True), (2, 2, 256, False))
MAX_POSITIONS = 160


def attention_cases() -> Iterator[Case]:
    small, uneven = DecodeOptions(1, 64, 64), DecodeOptions(1, 32, 64)
    for activation in ("float32", "float16"):
        for index, (num_heads, num_kv_heads, head_dim, norm) in enumerate(HEADS if activation == "float32" else HEADS[::2]):
            facts = Heads(num_heads, num_kv_heads, head_dim, 16, MAX_POSITIONS, activation, EPS if norm else None)
            yield attention_case("plain", facts)
            yield attention_case("tile", facts, tile=TileOptions(16 if head_dim < 256 else 8, 32, 128))
            options = small if index % 2 == 0 or facts.vectors > uneven.threads else uneven
            options = replace(options, heads=facts.group)
            yield attention_case("decode", facts, decode=options)
            yield attention_case("split", facts, decode=replace(options, split=options.tile * (1 + index % 2)))
    for activation, num_heads, num_kv_heads, head_dim, norm in (
        ("float32", 6, 3, 24, True),
        ("float32", 4, 2, 64, False),
        ("float16", 3, 1, 128, True),
    ):
        facts = Heads(num_heads, num_kv_heads, head_dim, 16, MAX_POSITIONS, activation, EPS if norm else None, "q8")
        yield attention_case("plain", facts)
        yield attention_case("tile", facts, tile=TileOptions(16))
        yield attention_case("decode", facts, decode=replace(small, heads=facts.group))
        yield attention_case("split", facts, decode=replace(uneven, heads=facts.group, tile=32, split=32))
    facts = Heads(16, 2, 64, 16, MAX_POSITIONS, "float32", None)
    # A kv head's query heads in two workgroups, of which one writes; one key a thread and four; the options of real models.
    yield attention_case("decode", facts, decode=DecodeOptions(4, 64, 256))
    yield attention_case("split", facts, decode=DecodeOptions(4, 64, 64, split=64))
    yield attention_case("split", facts, decode=DecodeOptions(2, 32, 32, split=64))
    yield attention_case("decode", facts, decode=DecodeOptions(8, 128, 256))
    yield attention_case("tile", facts, tile=TileOptions(32, 16))
    # More vectors than threads of the plain kernel, in twos and in fours, and other page sizes.
    for num_heads, head_dim, page_size in ((1, 134, 8), (2, 272, 32)):
        facts = Heads(num_heads, 1, head_dim, page_size, MAX_POSITIONS, "float32", None)
        yield attention_case("plain", facts)
        yield attention_case("tile", facts, tile=TileOptions(8))
        yield attention_case("split", facts, decode=DecodeOptions(1, 128, 128, split=128))


def attention_case(kind: str, facts: Heads, decode: DecodeOptions | None = None, tile: TileOptions | None = None) -> Case:
    name = f"attention_{kind}_{facts.num_heads}_{facts.num_kv_heads}_{facts.head_dim}_{facts.page_size}_{facts.activation}_{facts.kv}"
    if decode is not None:
        name += f"_{decode.heads}_{decode.threads}x{decode.tile}"

    def build() -> list[Kernel]:
        if decode is not None:
            first = attention_decode(f"{name}_first", facts, decode)
            return [first] if decode.split is None else [first, attention_merge(f"{name}_merge", facts, decode.split)]
        second = attention(name, facts) if tile is None else attention_tile(name, facts, tile)
        return [rope_append(f"{name}_append", facts), second]

    batches = DECODE_BATCHES if decode is not None else BATCHES_OF_ANY_KIND
    # SwiftShader has no f16, and takes seconds to compile a kernel of wide heads.
    on_dawn = facts.activation == "float32" and facts.head_dim < 64
    return Case(name, build, lambda: [attention_run(facts, sequences) for sequences in batches], on_dawn=on_dawn)


def attention_run(facts: Heads, sequences: Sequence[tuple[int, int]]) -> Run:
    rng = random(str((facts, sequences)))
    page_size, num_kv_heads, head_dim = facts.page_size, facts.num_kv_heads, facts.head_dim
    counts = [-(-(start + new) // page_size) for start, new in sequences]
    pages = rng.permutation(sum(counts) + 2)
    shape = (len(pages), 2, num_kv_heads, page_size)
    # Of quantized pages the scales are NaN.
    kv = np.full((*shape, head_dim // 4 + 1), 0x7FC00000, np.uint32) if facts.kv == "q8" else nothing((*shape, head_dim), facts.activation)
    chunks = []
    for index, (start, new) in enumerate(sequences):
        own = pages[sum(counts[:index]) : sum(counts[: index + 1])]
        for position in range(start):
            k, v = rng.normal(size=(2, 1, num_kv_heads * head_dim))
            slots = np.array([own[position // page_size] * page_size + position % page_size])
            append_kv({"k": k, "v": v, "kv": kv, "slots": slots}, {"kv": facts.kv})
        chunks.append(Chunk([0] * new, start, [int(page) for page in own]))
    batch = make_batch(chunks, page_size)
    # Scores of some spread, so that the largest one changes from tile to tile.
    heads = rng.normal(size=(len(batch.token_ids), facts.num_heads + 2 * num_kv_heads, head_dim))
    heads[:, : facts.num_heads] *= 3
    arrays: dict[str, Array] = {
        "qkv": heads.reshape(len(heads), -1).astype(facts.activation),
        "table": rope_table([0.5**pair for pair in range(head_dim // 2)], facts.positions),
        **{each: getattr(batch, each) for each in ("positions", "slots", "seq_starts", "page_indptr", "page_ids")},
    }
    if facts.norm_eps is not None:
        arrays["qk_norm"] = rng.normal(1, 0.3, 2 * head_dim).astype(np.float32)
    after = kv.copy()
    y = OPS["rope_attention"].run({**arrays, "kv": after}, {"eps": facts.norm_eps, "kv": facts.kv})
    assert y is not None
    before = {"kv": kv, "y": nothing(y.shape, facts.activation)}
    dims = batch.dims(len(pages))
    # A runtime may hand in more than the longest context.
    dims["T"] += 40
    return Run(dims, {**arrays, **before}, {"kv": after, "y": y.astype(facts.activation)})
