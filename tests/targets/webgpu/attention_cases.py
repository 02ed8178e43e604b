"""The cases of the attention family: rope, append_kv, rope_append, attention, and rope_attention as its kernels run it.

Rows of pages without a token are NaN, as are pages that lie completely before the window of a sequence's new tokens, so
a kernel that reads them produces NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
from kernel_harness import Case, Run

from nearfar.compiler.bundle.digest import digest
from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.ops.kv_pages import append_kv as append_rows
from nearfar.compiler.ir.rope import rope_table
from nearfar.compiler.kernels.append_kv import append_kv
from nearfar.compiler.kernels.attention import attention
from nearfar.compiler.kernels.attention_decode import attention_decode
from nearfar.compiler.kernels.attention_few_rows import attention_few_rows
from nearfar.compiler.kernels.attention_merge import attention_merge
from nearfar.compiler.kernels.attention_tile import TileOptions, attention_tile
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.decode_range import DecodeOptions
from nearfar.compiler.kernels.heads import Heads, Preparation, Scores
from nearfar.compiler.kernels.rope import rope
from nearfar.compiler.kernels.rope_append import rope_append
from nearfar.compiler.runtime.batch import Batch, Chunk, make_batch
from nearfar.targets.variant import plain

EPS = 1e-6
MAX_POSITIONS = 160

# For each sequence, the number of cached tokens and of new tokens: the start and the end of a page, a page and one more
# token, the first and the second tile of 64 keys; one sequence alone, three that decode, prefill mixed with decode, 33
# rows, and more sequences than a tile of rows has rows.
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
# Sequences up to this number of new tokens are split into ranges, beside tiles for longer ones.
FEW = 2
# (query heads, kv heads, head_dim, norm), rotated whole.
HEADS = (
    (6, 3, 24, True),
    (2, 1, 22, False),
    (4, 2, 64, False),
    (5, 1, 64, True),
    (3, 1, 128, True),
    (2, 2, 256, False),
)


@dataclass(frozen=True)
class Facts:
    """The facts of one rope_attention or attention."""

    heads: Heads
    preparation: Preparation
    scores: Scores

    @property
    def name(self) -> str:
        heads = self.heads
        name = (
            f"{heads.num_heads}_{heads.num_kv_heads}_{heads.head_dim}_{heads.page_size}_{heads.activation}_{heads.kv}"
        )
        return f"{name}_{digest([plain(self.preparation), plain(self.scores)])[:4]}"


def plain_facts(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    activation: str,
    *,
    norm: bool,
    page_size: int = 16,
    kv: str = "activation",
    positions: int = MAX_POSITIONS,
) -> Facts:
    """Complete heads are rotated, and a row attends to all keys."""
    heads = Heads(num_heads, num_kv_heads, head_dim, page_size, activation, kv)
    return Facts(heads, Preparation(positions, head_dim, EPS if norm else None), Scores(head_dim**-0.5))


# Each of these runs with every kernel of rope_attention. The windows are smaller than a tile and not a multiple of a
# page; one page; some pages; and several ranges. Contexts are longer than three windows of the first three sizes. One
# scale saturates the soft-cap's tanh.
SPECIAL = (
    (Facts(Heads(4, 2, 64, 16, "float32"), Preparation(0, 0, None), Scores(0.125, window=5)), DecodeOptions(2, 64, 64)),
    (
        Facts(
            Heads(7, 1, 24, 16, "float16"), Preparation(MAX_POSITIONS, 8, EPS, norm_after=True), Scores(0.2, window=16)
        ),
        DecodeOptions(7, 32, 32),
    ),
    (
        Facts(
            Heads(2, 2, 80, 16, "float32", "q4"),
            Preparation(MAX_POSITIONS, 80, None, position_scale=(0.5, 40)),
            Scores(0.3, window=70, softcap=2.0),
        ),
        DecodeOptions(1, 32, 32),
    ),
    (
        Facts(Heads(2, 1, 2, 16, "float32"), Preparation(MAX_POSITIONS, 2, None), Scores(40, window=40, softcap=3.0)),
        DecodeOptions(2, 32, 32),
    ),
    (Facts(Heads(7, 1, 256, 16, "float32"), Preparation(0, 0, EPS), Scores(0.1, window=33)), DecodeOptions(1, 64, 64)),
    (
        Facts(
            Heads(4, 2, 64, 16, "float16", "q8"),
            Preparation(MAX_POSITIONS, 32, EPS, norm_wide=True),
            Scores(0.05, window=1),
        ),
        DecodeOptions(2, 32, 32),
    ),
    (
        Facts(Heads(2, 2, 6, 8, "float32"), Preparation(MAX_POSITIONS, 4, EPS), Scores(1.5, softcap=5.0)),
        DecodeOptions(1, 32, 32),
    ),
)
# attention on its own, with q as an input of the step.
ALONE = (
    Facts(Heads(4, 2, 64, 16, "float32"), Preparation(0, 0, None), Scores(0.125, causal=False, sinks=True)),
    Facts(Heads(7, 1, 24, 16, "float16"), Preparation(0, 0, None), Scores(0.2, window=16, sinks=True)),
    Facts(
        Heads(2, 2, 80, 16, "float32", "q8"), Preparation(0, 0, None), Scores(0.1, window=20, softcap=2.0, causal=False)
    ),
    Facts(Heads(2, 1, 2, 8, "float32"), Preparation(0, 0, None), Scores(1.0, window=3, causal=False, sinks=True)),
)

# attention that rotates its queries, and appends nothing.
ROTATED = (
    (
        Facts(
            Heads(4, 2, 24, 16, "float32"),
            Preparation(MAX_POSITIONS, 24, EPS, appends=False),
            Scores(0.2, window=40, softcap=3.0),
        ),
        DecodeOptions(2, 32, 32),
    ),
    (
        Facts(Heads(6, 2, 64, 16, "float16", "q4"), Preparation(MAX_POSITIONS, 32, None, appends=False), Scores(0.1)),
        DecodeOptions(3, 64, 64),
    ),
)


def attention_cases() -> Iterator[Case]:
    yield from usual_cases()
    for index, (facts, decode) in enumerate(SPECIAL):
        tile = TileOptions(16 if facts.heads.head_dim < 256 else 8, 32 if facts.heads.head_dim < 80 else 16)
        split = replace(decode, split=decode.tile)
        yield from in_turn(
            index,
            attention_case("plain", facts),
            attention_case("mixed", facts, decode=split, tile=tile),
            attention_case("decode", facts, decode=decode),
            attention_case("split", facts, decode=split),
        )
    for index, facts in enumerate(ALONE):
        yield replace(alone_case(facts, None), exhaustive=index >= 2)
        mixed = alone_case(facts, TileOptions(16, 16), DecodeOptions(1, 32, 32, split=64))
        yield replace(mixed, exhaustive=index < 2)
    for index, (facts, decode) in enumerate(ROTATED):
        yield rotated_case("plain", facts)
        # They take seconds to compile with float16.
        yield replace(rotated_case("decode", facts, decode), exhaustive=index > 0)
        yield replace(rotated_case("split", facts, replace(decode, split=decode.tile)), exhaustive=index > 0)
    yield from part_cases()


def in_turn(turn: int, *cases: Case) -> Iterator[Case]:
    """Some facts in every kernel. `make test` runs every second kernel, the first or the second one in turn, so that
    each kernel meets half of the facts.
    """
    for number, case in enumerate(cases):
        yield replace(case, exhaustive=(turn + number) % 2 == 1)


def usual_cases() -> Iterator[Case]:
    """Heads of all shapes, rotated whole, in every kernel of rope_attention."""
    small, uneven = DecodeOptions(1, 64, 64), DecodeOptions(1, 32, 64)
    for activation in ("float32", "float16"):
        for index, (num_heads, num_kv_heads, head_dim, norm) in enumerate(
            HEADS if activation == "float32" else HEADS[::2]
        ):
            facts = plain_facts(num_heads, num_kv_heads, head_dim, activation, norm=norm)
            options = small if index % 2 == 0 or facts.heads.vectors > uneven.threads else uneven
            options = replace(options, heads=facts.heads.group)
            # Each kind of options meets both norms.
            yield from in_turn(
                index + index // 2,
                attention_case("plain", facts),
                attention_case("tile", facts, tile=TileOptions(16 if head_dim < 256 else 8, 32, 128)),
                attention_case("split", facts, decode=replace(options, split=options.tile * (1 + index % 2))),
                attention_case("decode", facts, decode=options),
            )
    for turn, (activation, kv, num_heads, num_kv_heads, head_dim, norm) in enumerate(
        (
            ("float32", "q4", 6, 3, 24, True),
            ("float32", "q8", 4, 2, 64, False),
            ("float16", "q8", 3, 1, 128, True),
        )
    ):
        facts = plain_facts(num_heads, num_kv_heads, head_dim, activation, norm=norm, kv=kv)
        # In SPECIAL, the other kernels meet these formats.
        yield from in_turn(
            turn + 1,
            attention_case("plain", facts),
            attention_case("tile", facts, tile=TileOptions(16)),
            attention_case("decode", facts, decode=replace(small, heads=facts.heads.group)),
            attention_case("split", facts, decode=replace(uneven, heads=facts.heads.group, tile=32, split=32)),
        )
    facts = plain_facts(16, 2, 64, "float32", norm=False)
    # Two workgroups for the query heads of a kv head, one of which writes; one and four keys per thread; the options of
    # real models.
    yield attention_case("decode", facts, decode=DecodeOptions(4, 64, 256))
    for options in (DecodeOptions(4, 64, 64, split=64), DecodeOptions(2, 32, 32, split=64)):
        yield replace(attention_case("split", facts, decode=options), exhaustive=True)
    yield attention_case("decode", facts, decode=DecodeOptions(8, 128, 256))
    yield attention_case("tile", facts, tile=TileOptions(32, 16))
    # More vectors, of two and of four elements, than the plain kernel has threads; other page sizes.
    for num_heads, head_dim, page_size in ((1, 134, 8), (2, 272, 32)):
        facts = plain_facts(num_heads, 1, head_dim, "float32", norm=False, page_size=page_size)
        yield attention_case("plain", facts)
        yield replace(attention_case("tile", facts, tile=TileOptions(8)), exhaustive=head_dim < 256)
        split = attention_case("split", facts, decode=DecodeOptions(1, 128, 128, split=128))
        yield replace(split, exhaustive=head_dim > 256)


def part_cases() -> Iterator[Case]:
    """The plain kernels of rope, append_kv and rope_append."""
    for head_dim, rotary_dim, x_dtype, y_dtype in (
        (24, 24, "float32", "float32"),
        (80, 32, "float16", "float16"),
        (5, 4, "float32", "float16"),
        (2, 2, "float16", "float32"),
    ):
        yield rope_case(head_dim, rotary_dim, x_dtype, y_dtype)
    # A norm of each head, and of all heads together.
    yield rope_case(24, 20, "float16", "float16", norm_width=24)
    yield rope_case(200, 200, "float32", "float16", norm_width=600)
    for heads in (
        Heads(2, 2, 24, 16, "float32"),
        Heads(3, 3, 2, 8, "float16"),
        Heads(1, 1, 260, 16, "float32", "q8"),
        Heads(2, 2, 80, 16, "float16", "q4"),
    ):
        yield append_case(heads)
    for heads, preparation in (
        (Heads(4, 2, 22, 16, "float32"), Preparation(0, 0, None)),
        (Heads(2, 1, 80, 16, "float16"), Preparation(MAX_POSITIONS, 20, EPS)),
        (Heads(3, 3, 64, 16, "float32", "q8"), Preparation(0, 0, EPS)),
        (Heads(6, 3, 22, 16, "float32"), Preparation(MAX_POSITIONS, 22, EPS, norm_wide=True, norm_after=True)),
        (Heads(2, 1, 24, 16, "float32", "q4"), Preparation(MAX_POSITIONS, 20, None)),
    ):
        yield rope_append_case(heads, preparation)


# --- rope_attention and attention ---


def attention_case(
    kind: str, facts: Facts, decode: DecodeOptions | None = None, tile: TileOptions | None = None
) -> Case:
    """rope_attention by the kernels of one of its variants. With ``decode`` and ``tile``, for mixed batches."""
    name = f"attention_{kind}_{facts.name}"
    if decode is not None:
        name += f"_{decode.heads}_{decode.threads}x{decode.tile}"
    heads, preparation, scores = facts.heads, facts.preparation, facts.scores
    decodes = decode is not None and tile is None

    def build() -> list[Kernel]:
        if decode is not None and tile is None:
            first = attention_decode(
                f"{name}_first", heads=heads, preparation=preparation, scores=scores, options=decode
            )
            if decode.split is None:
                return [first]
            return [first, merge_kernel(name, facts, decode.split, 1)]
        append = rope_append(f"{name}_append", heads=heads, preparation=preparation, q_in_scratch=True)
        return [append, *stored_kernels(name, facts, tile, decode, q_in_scratch=True)]

    batches = DECODE_BATCHES if decodes else BATCHES_OF_ANY_KIND
    # SwiftShader has no f16, and takes seconds to compile a kernel of wide heads.
    on_dawn = heads.activation == "float32" and heads.head_dim < 64
    return Case(name, build, lambda: [attention_run(facts, sequences) for sequences in batches], on_dawn=on_dawn)


def alone_case(facts: Facts, tile: TileOptions | None, decode: DecodeOptions | None = None) -> Case:
    """attention by the kernels of one of its variants."""
    name = f"attention_{'plain' if tile is None else 'mixed'}_alone_{facts.name}"
    runs = lambda: [alone_run(facts, sequences) for sequences in BATCHES_OF_ANY_KIND]  # noqa: E731
    on_dawn = facts.heads.activation == "float32" and facts.heads.head_dim < 64
    return Case(name, lambda: stored_kernels(name, facts, tile, decode, q_in_scratch=False), runs, on_dawn=on_dawn)


def rotated_case(kind: str, facts: Facts, decode: DecodeOptions | None = None) -> Case:
    """attention with a table, by the kernels of one of its variants."""
    plain = attention_case(kind, facts, decode)
    batches = DECODE_BATCHES if decode is not None else BATCHES_OF_ANY_KIND

    def run(sequences: Sequence[tuple[int, int]]) -> Run:
        result = alone_run(facts, sequences)
        # The kernels are those of a joint projection, whose names they keep.
        names = {"q": "qkv", "norm": "qk_norm"}
        return replace(result, arrays={names.get(role, role): array for role, array in result.arrays.items()})

    return replace(plain, name=f"rotated_{plain.name}", runs=lambda: [run(sequences) for sequences in batches])


def stored_kernels(
    name: str, facts: Facts, tile: TileOptions | None, decode: DecodeOptions | None, *, q_in_scratch: bool
) -> list[Kernel]:
    """The kernels that run after keys and values are stored in their pages."""
    of_all: dict[str, Any] = {"heads": facts.heads, "scores": facts.scores, "q_in_scratch": q_in_scratch}
    if tile is None:
        return [attention(name, **of_all)]
    if decode is None:
        return [attention_tile(name, options=tile, few=0, **of_all)]
    return [attention_tile(name, options=tile, few=FEW, **of_all), *few_kernels(name, facts, decode, q_in_scratch)]


def few_kernels(name: str, facts: Facts, decode: DecodeOptions, q_in_scratch: bool) -> list[Kernel]:
    """The kernels for the sequences of up to FEW new tokens."""
    assert decode.split is not None
    few = attention_few_rows(
        f"{name}_few", heads=facts.heads, scores=facts.scores, options=decode, max_rows=FEW, q_in_scratch=q_in_scratch
    )
    return [few, merge_kernel(name, facts, decode.split, FEW)]


def merge_kernel(name: str, facts: Facts, split: int, max_rows: int) -> Kernel:
    scores = facts.scores
    return attention_merge(
        f"{name}_merge",
        heads=facts.heads,
        window=scores.window,
        causal=scores.causal,
        sinks=scores.sinks,
        split=split,
        max_rows=max_rows,
    )


def attention_run(facts: Facts, sequences: Sequence[tuple[int, int]]) -> Run:
    rng = random(str((facts, sequences)))
    heads, preparation = facts.heads, facts.preparation
    batch, kv = cached_pages(rng, heads, sequences, new_too=False)
    arrays = {**new_heads(rng, heads, preparation, batch), **row_arrays(batch), "slots": batch.slots}
    after = kv.copy()
    y = OPS["rope_attention"].run(
        {**arrays, "kv": after}, {**preparation_attrs(preparation), "kv": heads.kv, **score_attrs(facts.scores)}
    )
    assert y is not None
    return attention_result(facts, batch, sequences, arrays, kv, after, y)


def alone_run(facts: Facts, sequences: Sequence[tuple[int, int]]) -> Run:
    rng = random(str((facts, sequences)))
    heads = facts.heads
    batch, kv = cached_pages(rng, heads, sequences, new_too=True)
    arrays = row_arrays(batch)
    arrays["q"] = (rng.normal(size=(len(batch.token_ids), heads.num_heads * heads.head_dim)) * 3).astype(
        heads.activation
    )
    if facts.scores.sinks:
        arrays["sinks"] = (rng.normal(size=heads.num_heads) * 3).astype(np.float32)
    preparation = facts.preparation
    if preparation.rotary_dim:
        arrays["table"] = rotations(preparation)
    if preparation.norm_eps is not None:
        arrays["norm"] = rng.normal(1, 0.2, heads.head_dim).astype(np.float32)
    attrs = {"eps": preparation.norm_eps, "kv": heads.kv, **score_attrs(facts.scores)}
    y = OPS["attention"].run({**arrays, "kv": kv}, attrs)
    assert y is not None
    return attention_result(facts, batch, sequences, arrays, kv, kv.copy(), y)


def attention_result(
    facts: Facts,
    batch: Batch,
    sequences: Sequence[tuple[int, int]],
    arrays: dict[str, Array],
    before: Array,
    after: Array,
    y: Array,
) -> Run:
    """The run, with NaN before and after it in pages that no new token attends to."""
    window, page_size = facts.scores.window, facts.heads.page_size
    if window is not None:
        for index, (start, _) in enumerate(sequences):
            first = batch.page_indptr[index]
            unseen = batch.page_ids[first : first + max(0, start - window + 1) // page_size]
            before[unseen] = after[unseen] = unwritten(facts.heads)
    dims = batch.dims(len(before))
    # A runtime may declare more than the longest context.
    dims["T"] += 40
    expected = {"y": y.astype(facts.heads.activation)}
    if "qkv" in arrays:
        expected["kv"] = after
    return Run(
        dims, {**arrays, "kv": before, "y": np.full(y.shape, np.nan, facts.heads.activation)}, expected, facts.heads.kv
    )


def preparation_attrs(preparation: Preparation) -> dict[str, object]:
    names = {"norm_eps": "eps", "norm_after": "norm_after", "position_scale": "position_scale"}
    return {attr: getattr(preparation, name) for name, attr in names.items()}


def score_attrs(scores: Scores) -> dict[str, object]:
    return {"scale": scores.scale, "window": scores.window, "softcap": scores.softcap, "causal": scores.causal}


def cached_pages(
    rng: np.random.Generator, heads: Heads, sequences: Sequence[tuple[int, int]], *, new_too: bool
) -> tuple[Batch, Array]:
    """A batch on pages in random order, and the pages with the cached tokens. ``new_too``: also with the new tokens."""
    page_size = heads.page_size
    counts = [-(-(start + new) // page_size) for start, new in sequences]
    pages = rng.permutation(sum(counts) + 2)
    shape = (len(pages), 2, heads.num_kv_heads, page_size)
    kv = (
        np.zeros((*shape, heads.head_dim), heads.activation)
        if heads.form is None
        else np.zeros((*shape, heads.form.words(heads.head_dim)), np.uint32)
    )
    kv[...] = unwritten(heads)
    chunks = []
    for index, (start, new) in enumerate(sequences):
        own = pages[sum(counts[:index]) : sum(counts[: index + 1])]
        positions = np.arange(start + new if new_too else start)
        k, v = rng.normal(size=(2, len(positions), heads.num_kv_heads * heads.head_dim))
        slots = own[positions // page_size] * page_size + positions % page_size
        if len(slots):
            append_rows({"k": k, "v": v, "kv": kv, "slots": slots}, {"kv": heads.kv})
        chunks.append(Chunk([0] * new, start, [int(page) for page in own]))
    return make_batch(chunks, page_size), kv


def unwritten(heads: Heads) -> float:
    """The content of pages behind the last token: NaN, for quantized pages in the scales."""
    return np.nan if heads.form is None else 0x7FC00000


def new_heads(rng: np.random.Generator, heads: Heads, preparation: Preparation, batch: Batch) -> dict[str, Array]:
    # Scores vary enough for the maximum to change from tile to tile.
    qkv = rng.normal(size=(len(batch.token_ids), heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim))
    qkv[:, : heads.num_heads] *= 3
    arrays: dict[str, Array] = {"qkv": qkv.reshape(len(qkv), -1).astype(heads.activation)}
    if preparation.rotary_dim:
        arrays["table"] = rotations(preparation)
    if preparation.norm_eps is not None:
        count = heads.num_heads + heads.num_kv_heads if preparation.norm_wide else 2
        arrays["qk_norm"] = rng.normal(1, 0.3, count * heads.head_dim).astype(np.float32)
    return arrays


def rotations(preparation: Preparation) -> Array:
    return rope_table([0.5**pair for pair in range(preparation.rotary_dim // 2)], preparation.positions)


def row_arrays(batch: Batch) -> dict[str, Array]:
    return {each: getattr(batch, each) for each in ("positions", "seq_starts", "page_indptr", "page_ids")}


def random(name: str) -> np.random.Generator:
    return np.random.default_rng(crc32(name.encode()))


# --- rope, append_kv, rope_append ---


def rope_case(head_dim: int, rotary_dim: int, x_dtype: str, y_dtype: str, norm_width: int = 0) -> Case:
    name = f"rope_{head_dim}_{rotary_dim}_{x_dtype}_{y_dtype}_{norm_width}"
    scale = (0.3, 20) if rotary_dim < head_dim else None
    preparation = Preparation(MAX_POSITIONS, rotary_dim, EPS if norm_width else None, position_scale=scale)
    columns = 3 * head_dim

    def run(rows: int) -> Run:
        rng = random(f"{name}_{rows}")
        x = rng.normal(size=(rows, columns)).astype(x_dtype)
        positions = rng.integers(0, MAX_POSITIONS, rows).astype(np.int32)
        inputs = {"x": x, "positions": positions, "table": rotations(preparation)}
        if norm_width:
            inputs["norm"] = rng.normal(1, 0.3, norm_width).astype(np.float32)
        attrs = {"head_dim": head_dim, "dtype": "float32", "eps": preparation.norm_eps, "position_scale": scale}
        y = OPS["rope"].run(inputs, attrs)
        assert y is not None
        return Run({"S": rows}, {**inputs, "y": np.full(x.shape, np.nan, y_dtype)}, {"y": y.astype(y_dtype)})

    def build() -> Kernel:
        return rope(
            name,
            rows="S",
            columns=columns,
            head_dim=head_dim,
            preparation=preparation,
            norm_width=norm_width,
            x_dtype=x_dtype,
            y_dtype=y_dtype,
        )

    return Case(name, build, lambda: [run(rows) for rows in (1, 33)], on_dawn="float16" not in (x_dtype, y_dtype))


def append_case(heads: Heads) -> Case:
    name = f"append_kv_{heads.num_kv_heads}_{heads.head_dim}_{heads.activation}_{heads.kv}"

    def run(sequences: Sequence[tuple[int, int]]) -> Run:
        rng = random(f"{name}_{sequences}")
        batch, kv = cached_pages(rng, heads, sequences, new_too=False)
        k, v = rng.normal(size=(2, len(batch.slots), heads.num_kv_heads * heads.head_dim)).astype(heads.activation)
        # A row of zeros has no scale.
        k[0] = 0
        after = kv.copy()
        OPS["append_kv"].run({"k": k, "v": v, "kv": after, "slots": batch.slots}, {"kv": heads.kv})
        return Run(batch.dims(len(kv)), {"k": k, "v": v, "kv": kv, "slots": batch.slots}, {"kv": after}, heads.kv)

    on_dawn = heads.activation == "float32"
    return Case(
        name,
        lambda: append_kv(name, heads=heads),
        lambda: [run(batch) for batch in BATCHES_OF_ANY_KIND[2:4]],
        on_dawn=on_dawn,
    )


def rope_append_case(heads: Heads, preparation: Preparation) -> Case:
    name = f"rope_append_{heads.num_heads}_{heads.num_kv_heads}_{heads.head_dim}_{heads.activation}_{heads.kv}"
    name += f"_{preparation.rotary_dim}"

    def run(sequences: Sequence[tuple[int, int]]) -> Run:
        rng = random(f"{name}_{sequences}")
        batch, kv = cached_pages(rng, heads, sequences, new_too=False)
        arrays = {**new_heads(rng, heads, preparation, batch), "positions": batch.positions, "slots": batch.slots}
        after = kv.copy()
        q = OPS["rope_append"].run({**arrays, "kv": after}, {**preparation_attrs(preparation), "kv": heads.kv})
        assert q is not None
        before = {"kv": kv, "q": np.full(q.shape, np.nan, heads.activation)}
        expected = {"kv": after, "q": q.astype(heads.activation)}
        return Run(batch.dims(len(kv)), {**arrays, **before}, expected, heads.kv)

    def build() -> Kernel:
        return rope_append(name, heads=heads, preparation=preparation, q_in_scratch=False)

    runs = lambda: [run(batch) for batch in BATCHES_OF_ANY_KIND[1:3]]  # noqa: E731
    return Case(name, build, runs, on_dawn=heads.activation == "float32")
