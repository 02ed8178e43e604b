"""Attention over texts with a projection behind it, as encoders and towers have it, for kernels of one level."""

from __future__ import annotations

import numpy as np
from cpu_steps import Batch, Inputs, StepCase

# Texts of one key, of less than a page, of exactly one, and of more than a block.
TEXTS = (1, 31, 32, 290)
# The quantization, query heads, kv heads, their elements, whether a row sees only the keys before it, and the window.
Attention = tuple[str, int, int, int, bool, int | None]


def attention_of(
    activation: str,
    quantization: str,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    causal: bool,
    window: int | None,
) -> StepCase:
    inputs: Inputs = {
        "qkv": ("activation", "S", (num_heads + 2 * num_kv_heads) * head_dim),
        "positions": ("int32", "S"),
        "seq_starts": ("int32", ["add", "B", 1]),
        "weight": ("matrix", 40, num_heads * head_dim),
        "store0_b": ("float32", "S", 40),
    }
    attrs = {
        "store": [{"op": "add"}],
        "head_dim": head_dim,
        "num_kv_heads": num_kv_heads,
        "causal": causal,
        "window": window,
        "scale": 0.2,
    }
    return StepCase(f"attention_{activation}", "ragged_attention", inputs, attrs, [], activation, quantization)


def texts(*lengths: int) -> Batch:
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    return Batch({"S": sum(lengths), "B": len(lengths)}, {"positions": positions, "seq_starts": starts})
