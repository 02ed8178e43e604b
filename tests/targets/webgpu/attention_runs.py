"""The inputs of attention's kernels, and the results that the ops define for them.

Rows of pages without a token are NaN, as are pages that lie completely before the window of a sequence's new tokens, so
a kernel that reads them produces NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt
from kernel_harness import Run

from nearfar.compiler.bundle.digest import digest, plain
from nearfar.compiler.ir.heads import Heads, Preparation, Scores
from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.ops.kv_pages import append_kv as append_rows
from nearfar.compiler.ir.rope import rope_table
from nearfar.compiler.runtime.batch import Batch, Chunk, make_batch

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


@dataclass(frozen=True)
class Facts:
    """The facts of one attention."""

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


def attention_run(facts: Facts, sequences: Sequence[tuple[int, int]]) -> Run:
    rng = random(str((facts, sequences)))
    heads, preparation = facts.heads, facts.preparation
    batch, kv = cached_pages(rng, heads, sequences, new_too=False)
    arrays = {**new_heads(rng, heads, preparation, batch), **row_arrays(batch, facts), "slots": batch.slots}
    after = kv.copy()
    y = OPS["attention"].run(
        {**arrays, "kv": after}, {**preparation_attrs(preparation), "kv": heads.kv, **score_attrs(facts.scores)}
    )
    assert y is not None
    return attention_result(facts, batch, sequences, arrays, kv, after, y)


def alone_run(facts: Facts, sequences: Sequence[tuple[int, int]]) -> Run:
    rng = random(str((facts, sequences)))
    heads = facts.heads
    batch, kv = cached_pages(rng, heads, sequences, new_too=True)
    arrays = row_arrays(batch, facts)
    arrays["q"] = (rng.normal(size=(len(batch.token_ids), heads.num_heads * heads.head_dim)) * 3).astype(
        heads.activation
    )
    if facts.scores.sinks:
        arrays["sinks"] = (rng.normal(size=heads.num_heads) * 3).astype(np.float32)
    preparation = facts.preparation
    if preparation.rotary_dim:
        arrays["table"] = rotations(preparation)
    if preparation.eps is not None:
        arrays["qk_norm"] = rng.normal(1, 0.2, heads.head_dim).astype(np.float32)
    attrs = {"eps": preparation.eps, "kv": heads.kv, **score_attrs(facts.scores)}
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
    return {name: getattr(preparation, name) for name in ("eps", "norm_after", "position_scale", "norms_values")}


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
        chunks.append(Chunk([0] * new, start, [int(page) for page in own], features=picture_in(new)))
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
    if preparation.eps is not None:
        count = heads.num_heads + heads.num_kv_heads if preparation.norm_wide else 2
        arrays["qk_norm"] = rng.normal(1, 0.3, count * heads.head_dim).astype(np.float32)
    return arrays


def rotations(preparation: Preparation) -> Array:
    assert isinstance(preparation.positions, int), preparation
    return rope_table([0.5**pair for pair in range(preparation.rotary_dim // 2)], preparation.positions)


def row_arrays(batch: Batch, facts: Facts) -> dict[str, Array]:
    arrays: dict[str, Array] = {
        each: getattr(batch, each) for each in ("positions", "seq_starts", "page_indptr", "page_ids")
    }
    return {**arrays, "reach": batch.reach()} if facts.scores.reach else arrays


def picture_in(new: int) -> tuple[tuple[int, npt.NDArray[np.float32]], ...]:
    """A picture in the middle of new tokens, as `Chunk` has it."""
    return ((new // 4, np.zeros((new // 2, 0), np.float32)),)


def random(name: str) -> np.random.Generator:
    return np.random.default_rng(crc32(name.encode()))
