"""Attention of one sequence on MLX: scale, window, soft-cap and sinks as `ir/ops/attention.py` defines them.

MLX's fused kernel supports all of these except the soft-cap. A soft-cap, and keys and values of 8-bit integers, use
separate products and a softmax.
"""

from __future__ import annotations

from typing import Any

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.ir.ops.attention import scale_of

from .framework import load_mlx
from .pages import Arrays, Pages, Span


def attend(node: Node, queries: Any, sinks: Any | None, span: Span, pages: Pages) -> Any:
    """Queries (1, H, n, D) of a span on the keys and values of its sequence -> like queries. ``sinks`` (H,)."""
    mx = load_mlx()

    window, causal = node.attr("window"), node.attr("causal")
    # The first row sees the oldest key that any row sees.
    first = 0 if window is None else max(span.start - window + 1, 0)
    keys, values = pages.read(node.inputs["kv"], span, first)
    scale = float(scale_of(queries.shape[-1], {"scale": node.attr("scale")}))
    mask = visible(span, first, window, causal=causal)
    group = pages.groups[node.inputs["kv"]]
    if group is None and node.attr("softcap") is None:
        # The kernel accepts the plain causal mask by name.
        known = "causal" if mask is not None and causal and window is None else mask
        sinks = None if sinks is None else sinks.astype(queries.dtype)
        return mx.fast.scaled_dot_product_attention(queries, *keys, *values, scale=scale, mask=known, sinks=sinks)
    return attend_in_steps(queries * scale, keys, values, mask, node.attr("softcap"), sinks, group)


def visible(span: Span, first: int, window: int | None, *, causal: bool) -> Any | None:
    """(n, keys from ``first`` on) bool: which keys each row sees; None if all rows see all keys."""
    mx = load_mlx()

    distance = mx.arange(span.start, span.length)[:, None] - mx.arange(first, span.length)[None, :]
    alone = span.length - span.start == 1
    if (not causal and window is None) or alone:
        # A single row is the last one: all keys are at or before its position, and keys outside the window are not
        # read.
        return None
    seen = distance >= 0 if causal else distance == distance
    return seen if window is None else seen & (mx.abs(distance) < window)


def attend_in_steps(
    queries: Any,
    keys: Arrays,
    values: Arrays,
    mask: Any | None,
    softcap: float | None,
    sinks: Any | None,
    group: int | None,
) -> Any:
    """Scaled queries (1, H, n, D) on keys and values (1, K, t, D), or their codes, scales and biases. Scores are
    float32.
    """
    mx = load_mlx()

    _, heads, count, head_dim = queries.shape
    kv_heads = keys[0].shape[1]
    grouped = queries.reshape(1, kv_heads, heads // kv_heads, count, head_dim)
    keys, values = (tuple(array[:, :, None] for array in arrays) for arrays in (keys, values))
    quantized = {} if group is None else {"group_size": group, "bits": 8}
    scores = mx.quantized_matmul(grouped, *keys, **quantized) if quantized else grouped @ keys[0].swapaxes(-1, -2)
    scores = scores.astype(mx.float32)
    if softcap is not None:
        scores = softcap * mx.tanh(scores / softcap)
    if mask is not None:
        scores = mx.where(mask, scores, -mx.inf)
    if sinks is not None:
        sink = mx.broadcast_to(sinks.astype(mx.float32).reshape(1, kv_heads, -1, 1, 1), (*scores.shape[:-1], 1))
        scores = mx.concatenate([scores, sink], axis=-1)
    weights = mx.softmax(scores, axis=-1).astype(queries.dtype)
    weights = weights if sinks is None else weights[..., :-1]
    y = mx.quantized_matmul(weights, *values, transpose=False, **quantized) if quantized else weights @ values[0]
    return y.reshape(queries.shape)
