"""Every op: its shape rule, and its meaning in numpy.

This is the definition. A kernel is right when it computes what stands here, and `reference.py` runs any plan with these functions.
All arithmetic is float32; where a value is stored as float16, the executor rounds it after the op.

A batch is ragged: S new tokens of B sequences, at least one of each. Rows ``seq_starts[b]`` to ``seq_starts[b + 1]`` belong to sequence b,
by ascending position. New keys and values go to pages first, then attention reads pages, causal by position. ``kv`` is
(P, 2, K, page, D): pages, keys and values, kv heads. With attrs kv "q8" it is (P, 2, K, page, D/4 + 1) uint32: see `page_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from .expr import Expr
from .sampling import ALTERNATIVES, COUNTS, Settings, choose_token
from .sampling import adjust_logits as adjusted_row

# "activation" is float16, float32 or, on some targets, bfloat16 or int8: a bundle may offer several and the device decides. What must not
# overflow is always float32.
# "uint32" are words of packed integers.
DType = Literal["float32", "int32", "uint32", "activation"]
Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = "tuple[Expr, ...]"
Shapes: TypeAlias = Mapping[str, Shape]
Attrs: TypeAlias = Mapping[str, Any]
Type: TypeAlias = "tuple[Shape, DType]"


@dataclass(frozen=True, slots=True)
class Op:
    """``infer`` gives the result's shape and dtype, ``run`` its value; ``result`` is its role, or None for an op that only writes a state.

    ``more`` gives the shapes and dtypes of further results by role: arrays that ``run`` is handed among its inputs, to fill.
    A role "into" is an earlier part of the result, whose storage is taken over. States ("kv", "sampled", "counts") are changed in place.
    """

    infer: Callable[[Shapes, Attrs], Type]
    run: Callable[[Mapping[str, Array], Attrs], Array | None]
    result: str | None = "y"
    more: Callable[[Shapes, Attrs], Mapping[str, Type]] = lambda shapes, attrs: {}  # noqa: ARG005

    def results(self, shapes: Shapes, attrs: Attrs) -> Mapping[str, Type]:
        """Shape and dtype of every result, by role. Raises ValueError where the inputs' shapes disagree."""
        first = {} if self.result is None else {self.result: self.infer(shapes, attrs)}
        return {**first, **self.more(shapes, attrs)}


def require(condition: bool, op: str, shapes: Shapes) -> None:
    if not condition:
        raise ValueError(f"{op}: shapes disagree: {dict(shapes)}")


# --- embedding and rows ------------------------------------------------------------------------------------------------------------


def infer_embed(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    return (shapes["token_ids"][0], shapes["table"][1]), "float32"


def embed(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """y[s] = table[token - first_row] where that row is in the table; other rows stay as in ``into``, or zero.

    The token is token_ids[s], or where that is negative the one last sampled in slot -1 - token_ids[s].
    table (rows, E), token_ids (S,), sampled (N,), into (S, E) -> (S, E). A table split by rows is looked up part after part.
    """
    table, token_ids = inputs["table"], inputs["token_ids"]
    rows = np.where(token_ids < 0, inputs["sampled"][np.maximum(-1 - token_ids, 0)], token_ids) - attrs.get("first_row", 0)
    y = inputs["into"] if "into" in inputs else np.zeros((len(rows), table.shape[1]), np.float32)
    here = (rows >= 0) & (rows < len(table))
    y[here] = table[rows[here]]
    return y


def infer_take_rows(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    return (shapes["rows"][0], shapes["x"][1]), "float32"


def take_rows(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """y[r] = x[rows[r]]. x (S, E), rows (R,) -> (R, E)."""
    taken: Array = inputs["x"][inputs["rows"]]
    return taken


def infer_slice_columns(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    return (shapes["x"][0], attrs["stop"] - attrs["start"]), "activation"


def slice_columns(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """Columns [start, stop) of x (S, N)."""
    return inputs["x"][:, attrs["start"] : attrs["stop"]]


# --- projections -------------------------------------------------------------------------------------------------------------------


def infer_linear(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    (rows, columns), (outputs, weight_columns) = shapes["x"], shapes["weight"]
    require(columns == weight_columns, "linear", shapes)
    width = attrs.get("columns", outputs)
    require(all(shapes[role][-1] == width for role in ("bias", "residual") if role in shapes), "linear", shapes)
    return (rows, width), attrs["dtype"]


def linear(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """y = norm(x) @ weight.T + bias + residual, each part where its input is given.

    x (S, K), weight (N, K), bias (N,), residual (S, N), norm (K,) with attrs eps -> (S, N). A weight split by rows writes its N of the
    ``columns`` outputs, from ``offset`` on, into the result of the part before it; bias and residual are then those of all columns.
    """
    x = rms_norm({"x": inputs["x"], "weight": inputs["norm"]}, attrs) if "norm" in inputs else inputs["x"]
    return place(x.astype(np.float32) @ inputs["weight"].T, inputs, attrs)


def place(part: Array, inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """Add bias and residual to a projection's columns and put them at their offset in the whole result."""
    offset, width = attrs.get("offset", 0), attrs.get("columns", part.shape[1])
    here = slice(offset, offset + part.shape[1])
    if "bias" in inputs:
        part = part + inputs["bias"][here]
    if "residual" in inputs:
        part = part + inputs["residual"][:, here]
    if width == part.shape[1]:
        return part
    y = inputs["into"] if "into" in inputs else np.zeros((len(part), width), np.float32)
    y[:, here] = part
    return y


def infer_add_lora(shapes: Shapes, attrs: Attrs) -> Type:
    parts, (_, ranks, columns), (_, outputs, rank) = attrs["widths"], shapes["a"], shapes["b"]
    fits = shapes["x"][-1] == columns and shapes["into"][-1] == outputs == sum(parts) and ranks == rank * len(parts)
    require(fits, "add_lora", shapes)
    return shapes["into"], attrs["dtype"]


def add_lora(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """into, and what each row's adapter changes: norm(x) @ a.T @ b.T, for each part of the columns with its own rows of a. Hu et al. 2021.

    x (S, K), norm (K,) with attrs eps, adapters (S,), a (M, parts * rank, K), b (M, N, rank), into (S, N) -> (S, N). ``adapters`` are
    places of a and b, -1 for a row without; attrs ``widths`` are the columns of each part, N in all. Where no row has one, G is 0 and
    nothing is to be done.
    """
    y, adapters, widths = inputs["into"], inputs["adapters"], attrs["widths"]
    x = rms_norm({"x": inputs["x"], "weight": inputs["norm"]}, attrs) if "norm" in inputs else inputs["x"].astype(np.float32)
    rank = inputs["b"].shape[2]
    for place in set(adapters[adapters >= 0].tolist()):
        rows = np.flatnonzero(adapters == place)
        lows = x[rows] @ inputs["a"][place].T
        for part, stop in enumerate(np.cumsum(widths)):
            columns = slice(stop - widths[part], stop)
            y[rows, columns] += lows[:, part * rank : (part + 1) * rank] @ inputs["b"][place, columns].T
    return y


def infer_gated_linear(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    (rows, columns), (outputs, weight_columns) = shapes["x"], shapes["weight"]
    require(columns == weight_columns and isinstance(outputs, int) and outputs % 2 == 0, "gated_linear", shapes)
    return (rows, attrs.get("columns", outputs // 2)), "float32"  # type: ignore[operator]


def gated_linear(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """y = silu(norm(x) @ gate.T) * (norm(x) @ up.T), the weight (2F, E) being gate (F, E) above up (F, E). Shazeer 2020.

    x (S, E), norm (E,), bias (2F,) -> (S, F), split by rows as in `linear`; a part's bias is its own, (2F of the part,).
    """
    both = linear({role: inputs[role] for role in ("x", "weight", "norm", "bias") if role in inputs}, {"eps": attrs.get("eps")})
    gate, up = np.split(both, 2, axis=1)
    return place(gated_silu({"gate": gate, "up": up}, {}), {role: inputs[role] for role in ("into",) if role in inputs}, attrs)


# --- element-wise ------------------------------------------------------------------------------------------------------------------


def infer_like_x(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    return shapes["x"], attrs.get("dtype", "float32")


def rms_norm(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """Scale groups of columns to unit root mean square, then by weight. x (S, n * E), weight (E,) -> like x. Zhang & Sennrich 2019."""
    x, weight = inputs["x"].astype(np.float32), inputs["weight"]
    groups = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    scale = 1 / np.sqrt(np.mean(groups * groups, axis=-1, keepdims=True) + np.float32(attrs["eps"]))
    y: Array = (groups * scale * weight).reshape(x.shape)
    return y


def infer_add(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    require(shapes["a"] == shapes["b"], "add", shapes)
    return shapes["a"], "float32"


def add(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """a + b, same shapes."""
    return inputs["a"] + inputs["b"]


def infer_gated_silu(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    require(shapes["gate"] == shapes["up"], "gated_silu", shapes)
    return shapes["gate"], "float32"


def gated_silu(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """silu(gate) * up, silu(g) = g / (1 + exp(-g))."""
    gate = inputs["gate"].astype(np.float32)
    # exp overflows to infinity below about -88, where silu is 0: the right limit.
    with np.errstate(over="ignore"):
        y: Array = gate / (1 + np.exp(-gate)) * inputs["up"]
    return y


def infer_gate_halves(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["x"]
    require(isinstance(columns, int) and columns % 2 == 0, "gate_halves", shapes)
    return (rows, columns // 2), "float32"  # type: ignore[operator]


def gate_halves(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """silu(gate) * up, x (S, 2F) being gate beside up -> (S, F)."""
    gate, up = np.split(inputs["x"], 2, axis=1)
    return gated_silu({"gate": gate, "up": up}, {})


# --- attention ---------------------------------------------------------------------------------------------------------------------


def rope(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """Rotate pairs (i, i + D/2) of each head by position. Su et al. 2021.

    x (S, n * D), positions (S,), table (positions, D/2, 2) -> like x.
    """
    x, table = inputs["x"].astype(np.float32), inputs["table"][inputs["positions"]]
    cosine, sine = table[:, None, :, 0], table[:, None, :, 1]
    half = table.shape[1]
    heads = x.reshape(len(x), x.shape[1] // (2 * half), 2 * half)
    low, high = heads[..., :half], heads[..., half:]
    return np.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1).reshape(x.shape)


def infer_nothing(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    return (), "activation"


def append_kv(inputs: Mapping[str, Array], attrs: Attrs) -> None:
    """Store each new token's key and value at its slot: page ``slot // page``, place ``slot % page``. k, v (S, K * D), slots (S,)."""
    kv, slots = inputs["kv"], inputs["slots"]
    page, place_in_page = np.divmod(slots, kv.shape[3])
    for plane, role in enumerate(("k", "v")):
        rows = inputs[role].reshape(len(slots), kv.shape[2], -1)
        if attrs.get("kv") == "q8":
            codes, scales = page_rows(kv)
            words = quantize_rows(rows)
            codes[page, plane, :, place_in_page], scales[page, plane, :, place_in_page] = words[..., :-1], words[..., -1]
        else:
            kv[page, plane, :, place_in_page] = rows


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
    """What `quantize_rows` has made, as float32 (..., D)."""
    codes = np.ascontiguousarray(words[..., :-1]).view("<i1")
    rows: Array = codes * np.ascontiguousarray(words[..., -1:]).view(np.float32)
    return rows


def page_rows(kv: Array) -> tuple[Array, Array]:
    """The words of codes (P, 2, K, page, D/4) and of scales (P, 2, K, page) in pages of 8-bit integers, as views of them.

    For each page, plane and kv head the codes of all rows come first, so that rows begin at multiples of their size, then all scales.
    """
    page_size, words = kv.shape[-2:]
    flat = kv.reshape(*kv.shape[:-2], page_size * words)
    codes, scales = flat[..., : page_size * (words - 1)], flat[..., page_size * (words - 1) :]
    return codes.reshape(*kv.shape[:-2], page_size, words - 1), scales


def dequantize_pages(kv: Array) -> Array:
    """Pages of 8-bit integers as float32 (P, 2, K, page, D)."""
    codes, scales = page_rows(kv)
    return dequantize_rows(np.concatenate([codes, scales[..., None]], axis=-1))


def head_dim_of(kv: tuple[Any, ...], attrs: Attrs) -> int:
    """D, from the shape of the pages."""
    last: int = kv[-1]
    return (last - 1) * 4 if attrs.get("kv") == "q8" else last


def infer_attention(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    return shapes["q"], "activation"


def attention(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """softmax(q k^T / sqrt(D)) v over the pages of each row's sequence, up to and with the row's own position.

    q (S, H * D), kv (P, 2, K, page, D), positions (S,), seq_starts (B+1,), page_indptr (B+1,), page_ids (L,) -> (S, H * D).
    Query head h reads kv head h // (H / K). Vaswani et al. 2017; paged: Kwon et al. 2023.
    """
    kv, positions = inputs["kv"], inputs["positions"]
    _, _, num_kv_heads, page_size, _ = kv.shape
    head_dim = head_dim_of(kv.shape, attrs)
    q = inputs["q"].astype(np.float32)
    num_rows, width = q.shape
    queries = q.reshape(num_rows, num_kv_heads, -1, head_dim) / np.float32(np.sqrt(head_dim))
    y = np.zeros_like(queries)
    for sequence in range(len(inputs["seq_starts"]) - 1):
        rows = slice(*inputs["seq_starts"][sequence : sequence + 2])
        if rows.start == rows.stop:
            continue
        length = int(positions[rows].max()) + 1
        first = inputs["page_indptr"][sequence]
        pages = kv[inputs["page_ids"][first : first - (-length // page_size)]]
        pages = dequantize_pages(pages) if attrs.get("kv") == "q8" else pages.astype(np.float32)
        keys, values = pages.transpose(1, 2, 0, 3, 4).reshape(2, num_kv_heads, -1, head_dim)[:, :, :length]
        scores = np.einsum("skgd,ktd->skgt", queries[rows], keys)
        hidden = np.arange(length)[None, :] > positions[rows][:, None]
        scores[np.broadcast_to(hidden[:, None, None], scores.shape)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y[rows] = np.einsum("skgt,ktd->skgd", weights / weights.sum(axis=-1, keepdims=True), values)
    return y.reshape(num_rows, width)


def infer_rope_append(shapes: Shapes, attrs: Attrs) -> tuple[Shape, DType]:
    rows, width = shapes["qkv"]
    return (rows, width - 2 * shapes["kv"][2] * head_dim_of(shapes["kv"], attrs)), "activation"  # type: ignore[operator]


def rope_append(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """Norm (where given) and rotate q and k of a joint projection, append k and v to the pages, return q.

    qkv (S, (H + 2K) * D), qk_norm (2D,), q's weights above k's, with attrs eps, positions, slots (S,), table, kv -> (S, H * D).
    """
    kv, qkv = inputs["kv"], inputs["qkv"].astype(np.float32)
    kv_width = kv.shape[2] * head_dim_of(kv.shape, attrs)
    q, k, v = np.split(qkv, [qkv.shape[1] - 2 * kv_width, qkv.shape[1] - kv_width], axis=1)
    if "qk_norm" in inputs:
        q, k = (rms_norm({"x": x, "weight": weight}, attrs) for x, weight in zip((q, k), np.split(inputs["qk_norm"], 2), strict=True))
    where = {"positions": inputs["positions"], "table": inputs["table"]}
    append_kv({"k": rope({"x": k, **where}, {}), "v": v, "kv": kv, "slots": inputs["slots"]}, attrs)
    return rope({"x": q, **where}, {})


def rope_attention(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """rope_append, then attention of what it returns; the inputs are those of both, q apart. -> (S, H * D)."""
    return attention({**inputs, "q": rope_append(inputs, attrs)}, attrs)


# --- sampling ----------------------------------------------------------------------------------------------------------------------


def infer_adjust_logits(shapes: Shapes, attrs: Attrs) -> Type:
    return ("A", shapes["logits"][1]), "float32"


def adjust_logits(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """Logits after penalties, bias and mask, each of which a row's flags ask for; see `sampling.adjust_logits`.

    A is R where any row has a flag, else 0: nothing is to be done then, and `sample` takes the logits as they are.
    logits (R, V), slots (R, 2): [slot, flags], settings (R, 8), and by slot counts (N, V), bias (N, V), mask (N, ceil(V/32)) -> (A, V).
    """
    logits, slots = inputs["logits"], inputs["slots"]
    if not slots[:, 1].any():
        return np.zeros((0, logits.shape[1]), np.float32)
    counts, bias, mask = inputs["counts"], inputs["bias"], inputs["mask"]
    rows = zip(logits, inputs["settings"], slots, strict=True)
    return np.stack([adjusted_row(x, Settings(*each), flags, counts[slot], bias[slot], mask[slot]) for x, each, (slot, flags) in rows])


def infer_sample(shapes: Shapes, attrs: Attrs) -> Type:
    return (shapes["logits"][0],), "int32"


def sample_results(shapes: Shapes, attrs: Attrs) -> Mapping[str, Type]:
    return {"logprobs": ((shapes["logits"][0],), "float32")}


def sample(inputs: Mapping[str, Array], attrs: Attrs) -> Array:
    """Each row's next token, chosen as `sampling.choose_token` says from the adjusted logits, and its log-probability.

    The log-probability is that under the softmax of the raw logits. A row of slot >= 0 leaves its token in sampled[slot], and with the flag
    COUNTS adds one to its count; no two rows of a batch have the same slot. Where a logit is not finite, the token is -1, its
    log-probability 0, and nothing is kept.
    logits (R, V), adjusted (A, V), settings (R, 8), slots (R, 2), sampled (N,), counts (N, V) -> (R,), logprobs (R,).
    """
    logits, adjusted = inputs["logits"], inputs["adjusted"]
    y = np.full(len(logits), -1, np.int32)
    inputs["logprobs"][...] = 0
    for row, (slot, flags) in enumerate(inputs["slots"]):
        if not np.isfinite(logits[row]).all():
            continue
        token = choose_token((adjusted if len(adjusted) else logits)[row], Settings(*inputs["settings"][row]))
        y[row] = token
        inputs["logprobs"][row] = log_softmax(logits[row])[token]
        if slot >= 0:
            inputs["sampled"][slot] = token
            inputs["counts"][slot, token] += flags & COUNTS
    return y


def log_softmax(logits: Array) -> Array:
    x = logits.astype(np.float64) - logits.max()
    y: Array = x - np.log(np.exp(x).sum())
    return y


def top_logprobs_results(shapes: Shapes, attrs: Attrs) -> Mapping[str, Type]:
    width = min(ALTERNATIVES, shapes["logits"][1])
    return {"ids": (("W", width), "int32"), "logprobs": (("W", width), "float32")}


def top_logprobs(inputs: Mapping[str, Array], attrs: Attrs) -> None:
    """The likeliest tokens of each row and their log-probabilities, best first, the first of equals before the others.

    W is R where the batch asks for them, else 0. logits (R, V) -> ids, logprobs (W, min(20, V)).
    """
    ids, logprobs = inputs["ids"], inputs["logprobs"]
    for row in range(len(ids)):
        ids[row] = np.argsort(-inputs["logits"][row], kind="stable")[: ids.shape[1]]
        logprobs[row] = log_softmax(inputs["logits"][row])[ids[row]]


OPS: dict[str, Op] = {
    "embed": Op(infer_embed, embed),
    "take_rows": Op(infer_take_rows, take_rows),
    "slice_columns": Op(infer_slice_columns, slice_columns),
    "linear": Op(infer_linear, linear),
    "add_lora": Op(infer_add_lora, add_lora),
    "gate_halves": Op(infer_gate_halves, gate_halves),
    "gated_linear": Op(infer_gated_linear, gated_linear),
    "rms_norm": Op(infer_like_x, rms_norm),
    "add": Op(infer_add, add),
    "gated_silu": Op(infer_gated_silu, gated_silu),
    "rope": Op(infer_like_x, rope),
    "append_kv": Op(infer_nothing, append_kv, result=None),
    "attention": Op(infer_attention, attention),
    "rope_append": Op(infer_rope_append, rope_append, result="q"),
    "rope_attention": Op(infer_rope_append, rope_attention),
    "adjust_logits": Op(infer_adjust_logits, adjust_logits),
    "sample": Op(infer_sample, sample, more=sample_results),
    "top_logprobs": Op(infer_nothing, top_logprobs, result=None, more=top_logprobs_results),
}
