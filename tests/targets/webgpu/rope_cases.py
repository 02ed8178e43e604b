"""The cases of the kernels of rope and append_kv."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from attention_runs import (
    BATCHES_OF_ANY_KIND,
    EPS,
    MAX_POSITIONS,
    cached_pages,
    random,
    rotations,
)
from kernel_harness import Case, Run

from nearfar.compiler.ir.heads import Heads, Preparation
from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.prepare_heads import append_kv
from nearfar.compiler.kernels.rope import rope


def rope_cases() -> Iterator[Case]:
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
        attrs = {"head_dim": head_dim, "dtype": "float32", "eps": preparation.eps, "position_scale": scale}
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
