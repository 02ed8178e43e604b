"""The cases of attention as its kernels run it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attention_runs import BATCHES_OF_ANY_KIND, EPS, MAX_POSITIONS, Facts, alone_run, attention_run, plain_facts
from kernel_harness import Case

from nearfar.compiler.ir.heads import Heads, Preparation, Scores
from nearfar.compiler.kernels.attention import attention
from nearfar.compiler.kernels.attention_decode import attention_decode, attention_few_rows
from nearfar.compiler.kernels.attention_merge import attention_merge
from nearfar.compiler.kernels.attention_tile import TileOptions, attention_tile
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.decode_range import DecodeOptions
from nearfar.compiler.kernels.prepare_heads import rope_append

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


# Each of these runs with every kernel of attention. The windows are smaller than a tile and not a multiple of a
# page; one page; some pages; and several ranges. Contexts are longer than three windows of the first three sizes. One
# scale saturates the soft-cap's tanh.
SPECIAL = (
    (Facts(Heads(4, 2, 64, 16, "float32"), Preparation(0, 0, None), Scores(0.125, window=5)), DecodeOptions(2, 64, 64)),
    (
        Facts(
            Heads(7, 1, 24, 16, "float16"), Preparation(MAX_POSITIONS, 8, EPS, norm_after=True), Scores(0.2, window=16)
        ),
        DecodeOptions(7, 32, 32, each_tile=True),
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
    (
        Facts(Heads(4, 2, 24, 16, "float32"), Preparation(MAX_POSITIONS, 24, EPS), Scores(0.2, reach=True)),
        DecodeOptions(2, 32, 32, each_tile=True),
    ),
)
WIDE = Facts(Heads(4, 2, 128, 16, "float32"), Preparation(MAX_POSITIONS, 128, EPS), Scores(0.1))
# attention on its own, with q as an input of the step.
ALONE = (
    Facts(Heads(4, 2, 64, 16, "float32"), Preparation(0, 0, None), Scores(0.125, causal=False, sinks=True)),
    Facts(Heads(7, 1, 24, 16, "float16"), Preparation(0, 0, None), Scores(0.2, window=16, sinks=True)),
    Facts(
        Heads(2, 2, 80, 16, "float32", "q8"), Preparation(0, 0, None), Scores(0.1, window=20, softcap=2.0, causal=False)
    ),
    Facts(Heads(2, 1, 2, 8, "float32"), Preparation(0, 0, None), Scores(1.0, window=3, causal=False, sinks=True)),
    Facts(Heads(4, 2, 24, 16, "float32"), Preparation(0, 0, None), Scores(0.3, window=3, reach=True)),
)

# More heads in a row than a workgroup can hold, the last of which has a place too many; halves of the rotated elements
# that are not whole vectors; an odd number of vectors.
MANY_HEADS = (
    Facts(Heads(15, 3, 128, 16, "float32"), Preparation(MAX_POSITIONS, 128, EPS), Scores(0.1)),
    Facts(Heads(15, 3, 128, 16, "float16", "q4"), Preparation(MAX_POSITIONS, 64, EPS, norm_wide=True), Scores(0.1)),
    Facts(Heads(6, 2, 20, 16, "float32", "q8"), Preparation(MAX_POSITIONS, 12, EPS, norms_values=True), Scores(0.2)),
    Facts(Heads(6, 2, 20, 16, "float32"), Preparation(MAX_POSITIONS, 8, EPS, norms_values=True), Scores(0.2)),
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
        for case in in_turn(
            index,
            attention_case("plain", facts),
            attention_case("mixed", facts, decode=split, tile=tile),
            attention_case("decode", facts, decode=decode),
            attention_case("split", facts, decode=split),
        ):
            # With pages of integers, lavapipe takes 2 to 5 s to compile each of the others. They meet these formats
            # with other facts, and `test_webgpu_runner.py` has a model with them.
            slow = facts.heads.kv != "activation" and not case.name.startswith("attention_plain")
            yield replace(case, exhaustive=case.exhaustive or slow)
    # Ranges of several tiles, and two keys a thread: what heads of 128 float32 get on WebGPU.
    yield attention_case("split", WIDE, decode=DecodeOptions(2, 64, 128, split=256))
    for facts in MANY_HEADS:
        yield attention_case("plain", facts)
    for index, facts in enumerate(ALONE):
        yield replace(alone_case(facts, None), exhaustive=index >= 2 and not facts.scores.reach)
        mixed = alone_case(facts, TileOptions(16, 16), DecodeOptions(1, 32, 32, split=64))
        yield replace(mixed, exhaustive=index < 2)
    for index, (facts, decode) in enumerate(ROTATED):
        yield rotated_case("plain", facts)
        # They take seconds to compile with float16.
        yield replace(rotated_case("decode", facts, decode), exhaustive=index > 0)
        yield replace(rotated_case("split", facts, replace(decode, split=decode.tile)), exhaustive=index > 0)


def in_turn(turn: int, *cases: Case, every: int = 2) -> Iterator[Case]:
    """Some facts in every kernel. `make test` runs every second or nth kernel, from another one in each turn, so that
    each kernel meets a part of the facts.
    """
    for number, case in enumerate(cases):
        yield replace(case, exhaustive=(turn + number) % every > 0)


def usual_cases() -> Iterator[Case]:
    """Heads of all shapes, rotated whole, in every kernel of attention."""
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
                attention_case(
                    "tile",
                    facts,
                    tile=TileOptions(16 if head_dim < 256 else 8, 32, 256 if index in (1, 2) else 128),
                ),
                attention_case("split", facts, decode=replace(options, split=options.tile * (1 + index % 2))),
                attention_case("decode", facts, decode=options),
                every=2 if activation == "float32" else 4,
            )
    for turn, (activation, kv, num_heads, num_kv_heads, head_dim, norm) in enumerate(
        (
            ("float32", "q4", 5, 1, 24, True),
            ("float32", "q8", 4, 1, 64, False),
            ("float16", "q8", 3, 1, 128, True),
        )
    ):
        facts = plain_facts(num_heads, num_kv_heads, head_dim, activation, norm=norm, kv=kv)
        # A thread sums a part of a block of integers: of a word, or some of its words. In SPECIAL, the other kernels
        # meet these formats.
        small, uneven = (replace(each, heads=facts.heads.group, each_tile=True) for each in (small, uneven))
        yield from in_turn(
            turn + 1,
            attention_case("plain", facts),
            attention_case("tile", facts, tile=TileOptions(16)),
            attention_case("decode", facts, decode=small),
            attention_case("split", facts, decode=replace(uneven, tile=32, split=32)),
            every=4,
        )
    facts = plain_facts(16, 2, 64, "float32", norm=False)
    # Two workgroups for the query heads of a kv head, one of which writes; one and four keys per thread; the options of
    # real models.
    yield attention_case("decode", facts, decode=DecodeOptions(4, 64, 256))
    for options in (DecodeOptions(4, 64, 64, split=64), DecodeOptions(2, 32, 32, split=64)):
        yield replace(attention_case("split", facts, decode=options), exhaustive=True)
    yield replace(attention_case("decode", facts, decode=DecodeOptions(8, 128, 256)), exhaustive=True)
    yield attention_case("tile", facts, tile=TileOptions(32, 16))
    # More vectors, of two and of four elements, than the plain kernel has threads; other page sizes.
    for num_heads, head_dim, page_size in ((1, 134, 8), (2, 272, 32)):
        facts = plain_facts(num_heads, 1, head_dim, "float32", norm=False, page_size=page_size)
        yield attention_case("plain", facts)
        yield replace(attention_case("tile", facts, tile=TileOptions(8)), exhaustive=head_dim < 256)
        split = attention_case("split", facts, decode=DecodeOptions(1, 128, 128, split=128))
        yield replace(split, exhaustive=head_dim > 256)


def attention_case(
    kind: str, facts: Facts, decode: DecodeOptions | None = None, tile: TileOptions | None = None
) -> Case:
    """attention by the kernels of one of its variants. With ``decode`` and ``tile``, for mixed batches."""
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
        append = rope_append(f"{name}_append", heads=heads, preparation=preparation)
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

    runs = lambda: [alone_run(facts, sequences) for sequences in batches]  # noqa: E731
    return replace(plain, name=f"rotated_{plain.name}", runs=runs)


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
        reach=scores.reach and max_rows > 1,
        split=split,
        max_rows=max_rows,
    )
