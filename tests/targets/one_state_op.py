"""Small graphs with one op each that has a state for each sequence."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from graph_builder import Build, Builder
from one_op import COLUMNS

from nearfar.compiler.ir.graph import Graph


def state_graphs() -> Iterator[tuple[str, str, Build]]:
    """As `graphs` of `one_op.py`."""
    yield "causal_conv", "plain", partial(causal_conv, 3)
    yield "causal_conv", "bias_silu", partial(causal_conv, 4, bias=True, activation="silu")
    yield "gated_delta", "plain", gated_delta
    yield "ssm_scan", "plain", ssm_scan


def causal_conv(taps: int, *, bias: bool = False, **attrs: Any) -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", COLUMNS)), "weight": graph.vector("weight", COLUMNS * taps)}
    if bias:
        inputs["bias"] = graph.vector("bias", COLUMNS)
    inputs |= state_of_sequences(graph, (taps - 1, COLUMNS))
    return graph.ends(graph.add("causal_conv", inputs, name="y", **attrs))


def gated_delta() -> Graph:
    """Six heads of 5 x 7, of which two share a key."""
    graph, heads = Builder(), 6
    inputs = {
        "qkv": graph.value("qkv", ("S", 2 * 3 * 5 + heads * 7)),
        **{role: graph.value(role, ("S", heads)) for role in ("a", "b")},
        **{role: graph.vector(role, heads) for role in ("a_log", "dt_bias")},
        **state_of_sequences(graph, (heads, 5, 7)),
    }
    return graph.ends(graph.add("gated_delta", inputs, name="y"))


def ssm_scan() -> Graph:
    """Six heads of 7 elements with 5 states each, in two groups."""
    graph, heads = Builder(), 6
    inputs = {
        "xbc": graph.value("xbc", ("S", heads * 7 + 2 * 2 * 5)),
        "dt": graph.value("dt", ("S", heads)),
        **{role: graph.vector(role, heads) for role in ("a_log", "d", "dt_bias")},
        **state_of_sequences(graph, (heads, 7, 5)),
    }
    return graph.ends(graph.add("ssm_scan", inputs, name="y"))


def state_of_sequences(graph: Builder, shape: tuple[int, ...]) -> dict[str, str]:
    return {
        "state": graph.state("state", ("Z", *shape), "float32"),
        "state_slots": graph.value("state_slots", ("B", 2), "int32"),
        "seq_starts": graph.value("seq_starts", (["add", "B", 1],), "int32"),
        "positions": graph.value("positions", ("S",), "int32"),
    }
