"""The gate of a feed-forward on MLX: activation(gate) * up."""

from __future__ import annotations

from typing import Any

from .framework import load_mlx


def gated(activation: str, gate: Any, up: Any) -> Any:
    """Float32 arrays of the same shape; ``activation`` is one of `ops.op.ACTIVATIONS`."""
    return activated(activation, gate) * up


def activated(activation: str, x: Any) -> Any:
    mx = load_mlx()

    match activation:
        case "silu":
            return x * mx.sigmoid(x)
        case "gelu":
            return 0.5 * x * (1 + mx.erf(x / 2**0.5))
        case "gelu_tanh":
            return 0.5 * x * (1 + mx.tanh((2 / mx.pi) ** 0.5 * (x + 0.044715 * x * x * x)))
        case "relu2":
            return mx.square(mx.maximum(x, 0))
        case "relu":
            return mx.maximum(x, 0)
        case "tanh":
            return mx.tanh(x)
        case "sigmoid":
            return mx.sigmoid(x)
        case "none":
            return x
    raise AssertionError(f"activation {activation} is not declared")
