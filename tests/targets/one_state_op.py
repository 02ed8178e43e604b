"""Small graphs with one op each that has a state for each sequence, or rows that are kept for a model's heads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from graph_builder import Build, Builder

from nearfar.compiler.ir.graph import Graph

# Of x.
COLUMNS = 37


def state_graphs() -> Iterator[tuple[str, str, Build]]:
    """As `graphs` of `one_op.py`."""
    yield "causal_conv", "plain", partial(causal_conv, 3)
    yield "causal_conv", "bias_silu", partial(causal_conv, 4, bias=True, activation="silu")
    yield "causal_conv", "long", partial(causal_conv, 7, wide=5, start=3)
    yield "causal_conv", "gated", partial(causal_conv, 3, wide=2 * COLUMNS + 5, start=3, gated=True)
    yield "gated_delta", "plain", partial(gated_delta, 20, 33, wide=220, a_start=3, b_start=9, z_start=15)
    yield "gated_delta", "small", partial(gated_delta, 5, 7)
    yield "gated_delta", "large", partial(gated_delta, 128, 128, wide=780, z_start=12)
    yield "gated_delta", "deep", partial(gated_delta, 136, 9, wide=66)
    yield "convolved_delta", "plain", partial(convolved_delta, 20, 33, taps=4)
    yield "convolved_delta", "shared_keys", partial(convolved_delta, 20, 33, key_heads=3, taps=4)
    yield "convolved_delta", "large", partial(convolved_delta, 128, 128, taps=2)
    yield "ssm_scan", "plain", partial(ssm_scan, 33, 20, wide=210, dt_start=3, z_start=10)
    yield "ssm_scan", "small", partial(ssm_scan, 7, 5)
    yield "ssm_scan", "deep", partial(ssm_scan, 9, 136, wide=20, dt_start=11)
    yield "keep_rows", "of_tokens", partial(keep_rows, "S", ("PH", 4), slots=("S",))
    yield "keep_rows", "of_slots", partial(keep_rows, "R", ("N",), sample_slots=("R", 2))
    yield "keep_rows", "of_samples", partial(keep_rows, "R", ("PH", 4), slots=("S",), rows=("R",))
    yield "keep_rows", "plain", partial(keep_rows, "R", ("N",), normed=False, sample_slots=("R", 2))
    yield "join_kept", "plain", join_kept


def causal_conv(taps: int, *, bias: bool = False, wide: int = 0, **attrs: Any) -> Graph:
    """``wide``: the columns of x that are not read."""
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", COLUMNS + wide)), "weight": graph.vector("weight", COLUMNS * taps)}
    if bias:
        inputs["bias"] = graph.vector("bias", COLUMNS)
    inputs |= state_of_sequences(graph, (taps - 1, COLUMNS))
    return graph.ends(graph.add("causal_conv", inputs, name="y", **attrs))


def gated_delta(key_dim: int, value_dim: int, *, wide: int = 54, **starts: int) -> Graph:
    """Six heads, of which two share a key. a, b and z are in ``wide`` columns."""
    graph, heads = Builder(), 6
    inputs = {
        "qkv": graph.value("qkv", ("S", 2 * 3 * key_dim + heads * value_dim)),
        "abz": graph.value("abz", ("S", wide)),
        "vectors": graph.vector("vectors", 2 * heads + value_dim),
        **state_of_sequences(graph, (heads, key_dim, value_dim)),
    }
    attrs = {"a_start": 0, "b_start": 6, "z_start": 12, "eps": 1e-5, **starts}
    return graph.ends(graph.add("gated_delta", inputs, name="y", **attrs))


def convolved_delta(key_dim: int, value_dim: int, *, taps: int, heads: int = 6, key_heads: int = 6) -> Graph:
    """The columns of the convolution are between a and b."""
    graph, columns = Builder(), 2 * key_heads * key_dim + heads * value_dim
    inputs = {
        "x": graph.value("x", ("S", columns + heads * (2 + value_dim) + 5)),
        "weight": graph.vector("weight", columns * taps),
        "vectors": graph.vector("vectors", 2 * heads + value_dim),
        "conv": graph.state("conv", ("Z", taps - 1, columns), "float32"),
        **state_of_sequences(graph, (heads, key_dim, value_dim)),
    }
    starts = {"a_start": 2, "start": heads + 3, "b_start": columns + heads + 4, "z_start": columns + 2 * heads + 5}
    return graph.ends(graph.add("convolved_delta", inputs, name="y", eps=1e-5, **starts))


def ssm_scan(head_dim: int, state_dim: int, *, wide: int = 6, **attrs: Any) -> Graph:
    """Six heads in two groups. dt has ``wide`` columns."""
    graph, heads = Builder(), 6
    inputs = {
        "xbc": graph.value("xbc", ("S", heads * head_dim + 2 * 2 * state_dim)),
        "dt": graph.value("dt", ("S", wide)),
        "vectors": graph.vector("vectors", 3 * heads),
        **state_of_sequences(graph, (heads, head_dim, state_dim)),
    }
    return graph.ends(graph.add("ssm_scan", inputs, name="y", **attrs))


def state_of_sequences(graph: Builder, shape: tuple[int, ...]) -> dict[str, str]:
    return {
        "state": graph.state("state", ("Z", *shape), "float32"),
        "state_slots": graph.value("state_slots", ("B", 2), "int32"),
        "seq_starts": graph.value("seq_starts", (["add", "B", 1],), "int32"),
        "positions": graph.value("positions", ("S",), "int32"),
    }


def keep_rows(dim: str, memory: tuple[Any, ...], *, normed: bool = True, **slots: tuple[Any, ...]) -> Graph:
    graph = Builder()
    inputs = {
        "x": graph.value("x", (dim, COLUMNS)),
        **({"weight": graph.vector("weight", COLUMNS)} if normed else {}),
        "kept": graph.state("kept", (*memory, COLUMNS), "activation"),
        **{name: graph.value(name, shape, "int32") for name, shape in slots.items()},
    }
    graph.add("keep_rows", inputs, eps=1e-5 if normed else None)
    return graph


def join_kept() -> Graph:
    graph = Builder()
    inputs = {
        "x": graph.value("x", ("S", COLUMNS)),
        "kept": graph.state("kept", ("PH", 4, COLUMNS), "activation"),
        "own": graph.state("own", ("N", COLUMNS), "activation"),
        "kept_rows": graph.value("kept_rows", ("S",), "int32"),
    }
    return graph.ends(graph.add("join_kept", inputs, name="y"))
