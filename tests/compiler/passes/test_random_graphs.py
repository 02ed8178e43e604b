"""Passes on random graphs: a graph computes the same results as before, or the pass did not fire. Also, graphs that a
pass must leave unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from random_graphs import VOCAB_SIZE, graphs
from run_plan import CONTEXT, PAGE_SIZE, Result, errors, random_batches, random_tensors, run_graph, run_plan
from tolerances import F32, relative_error

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import DecoderLayout, forward
from nearfar.compiler.ir.graph import Constant, Graph, Node, Value
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec
from nearfar.compiler.passes import FUSIONS, run_passes
from nearfar.compiler.passes.fuse import fuse

Pass = Callable[[Graph], Graph]
F32_FORMAT = quant.by_name("f32")
# Four rows of both halves of a gated weight, whose rows are padded to 32 columns: most weights are split.
SMALL_BINDING = 2 * 4 * 32 * 4
SPEC = ModelSpec(
    model_type="llama", vocab_size=VOCAB_SIZE, hidden_size=12, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=6,
    intermediate_size=7,
    max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, rope=RopeSpec(theta=100.0), tie_word_embeddings=True,
    qk_norm=True,
)  # fmt: skip


def distance(found: Result, expected: Result) -> float:
    """The largest relative error of an output of any batch, or of the pages after the last."""
    pairs = [
        (one[role], other[role]) for one, other in zip(found.outputs, expected.outputs, strict=True) for role in other
    ]
    pairs += [(found.states[name], array) for name, array in expected.states.items() if array.dtype == np.float32]
    return max(
        relative_error(one, other) if np.any(other) else float(np.abs(one).max(initial=0)) for one, other in pairs
    )


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "after those before it"])
@pytest.mark.parametrize("fuse", FUSIONS, ids=lambda fuse: fuse.__name__)
@settings(max_examples=40, derandomize=True)
@given(graph=graphs())
def test_a_pass_preserves_the_results_of_a_random_graph(fuse: Pass, alone: bool, graph: Graph) -> None:
    for earlier in () if alone else FUSIONS[: FUSIONS.index(fuse)]:
        graph = earlier(graph)
    tensors, batches = random_tensors(graph, 1), random_batches(VOCAB_SIZE, 1)
    fused = fuse(graph)
    event("fired" if fused.nodes != graph.nodes else "left alone")
    if fused.nodes != graph.nodes:
        assert distance(run_graph(fused, tensors, batches), run_graph(graph, tensors, batches)) < F32


@settings(max_examples=100, derandomize=True)
@given(graph=graphs())
def test_all_passes_and_the_plan_preserve_the_results_of_a_random_graph(graph: Graph) -> None:
    tensors, batches = random_tensors(graph, 2), random_batches(VOCAB_SIZE, 2)
    expected = run_graph(graph, tensors, batches)
    for max_binding_bytes in (128 << 20, SMALL_BINDING):
        fused = run_passes(graph, F32_FORMAT, max_binding_bytes)
        assert distance(run_plan(make_plan(fused), fused, tensors, batches), expected) < F32


def ops(graph: Graph) -> list[str]:
    return [node.op for node in run_passes(graph, F32_FORMAT, 128 << 20).nodes]


def changed(change: Callable[[Node], Node]) -> Graph:
    """The graph of a small decoder with q/k norm, each node changed."""
    graph = forward(SPEC, PAGE_SIZE, CONTEXT)
    other = Constant("other_table", "rope", (CONTEXT, 3, 2), {"inverse_frequencies": [0.9, 0.5, 0.1], "scale": 1.0})
    graph.constants["other_table"] = other
    return graph.with_nodes([change(node) for node in graph.nodes])


def with_attrs(op: str, **attrs: object) -> Callable[[Node], Node]:
    return lambda node: replace(node, attrs={**node.attrs, **attrs}) if node.op == op else node


@pytest.mark.parametrize(
    ("op", "attrs", "becomes"),
    [
        ("attention", {"window": 3}, "attention"),
        ("attention", {"scale": 0.5}, "attention"),
        ("attention", {"softcap": 2.0}, "attention"),
        ("attention", {"causal": False}, "attention"),
    ],
)
def test_attributes_survive_the_passes(op: str, attrs: dict[str, object], becomes: str) -> None:
    graph = changed(with_attrs(op, **attrs))
    fused = run_passes(graph, F32_FORMAT, 128 << 20)
    found = [node for node in fused.nodes if node.op == becomes]
    assert len(found) == SPEC.num_layers
    assert all(node.attr(name) == value for node in found for name, value in attrs.items())
    tensors, batches = random_tensors(graph, 3), random_batches(VOCAB_SIZE, 3)
    assert max(errors(run_graph(fused, tensors, batches), run_graph(graph, tensors, batches)).values()) < F32


@pytest.mark.parametrize("attrs", [{"activation": "gelu_tanh"}, {"limit": 0.5, "slope": 1.702, "shift": 1.0}])
def test_the_attributes_of_a_gate_survive_the_passes(attrs: dict[str, object]) -> None:
    graph = changed(with_attrs("gate", **attrs))
    fused = run_passes(graph, F32_FORMAT, 128 << 20)
    stored = [node.attr("store") for node in fused.nodes if node.op == "linear"]
    assert stored.count([{"op": "gate_halves", **attrs}]) == SPEC.num_layers
    tensors, batches = random_tensors(graph, 3), random_batches(VOCAB_SIZE, 3)
    assert max(errors(run_graph(fused, tensors, batches), run_graph(graph, tensors, batches)).values()) < F32


def test_factors_of_rows_are_a_part_of_the_projection_before_them() -> None:
    graph = forward(SPEC, PAGE_SIZE, CONTEXT)
    graph.inputs["factors"] = Value("factors", ("S",), "float32")
    parts = {"x": "model.layers.1.mlp.down_proj.out", "factors": "factors"}
    (down,) = (node for node in graph.nodes if parts["x"] in node.outputs.values())
    kept = graph.with_nodes(graph.nodes[: graph.nodes.index(down) + 1])
    kept.outputs = {"y": kept.add("scale_rows", parts, name="scaled")}
    (*_, last) = fuse(kept).nodes
    assert (last.op, last.attr("store"), last.inputs["store0_factors"]) == ("linear", [{"op": "scale_rows"}], "factors")


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("rms_norm", {"offset": 1.0}),
        ("rope", {"interleaved": True}),
        ("attention", {"alibi": True}),
        ("gate", {"activation": "swish2"}),
    ],
)
def test_a_graph_refuses_attributes_that_no_op_declares(op: str, attrs: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{op}: attribute '{next(iter(attrs))}'"):
        changed(with_attrs(op, **attrs))


def is_k(node: Node) -> bool:
    return any("k_norm" in name or "k_rotated" in name for name in node.outputs.values())


@pytest.mark.parametrize(
    "change",
    [
        lambda node: replace(node, attrs={**node.attrs, "eps": 0.1}) if node.op == "rms_norm" and is_k(node) else node,
        lambda node: (
            replace(node, inputs={**node.inputs, "table": "other_table"}) if node.op == "rope" and is_k(node) else node
        ),
    ],
    ids=["another eps", "another table"],
)
def test_k_that_differs_from_q_is_not_fused_with_it(change: Callable[[Node], Node]) -> None:
    assert ops(changed(change)).count("append_kv") == SPEC.num_layers


def test_q_normed_and_k_not_is_not_fused() -> None:
    graph = forward(SPEC, PAGE_SIZE, CONTEXT)
    renamed = {node.outputs["y"]: node.inputs["x"] for node in graph.nodes if node.op == "rms_norm" and is_k(node)}
    nodes = [
        replace(node, inputs={role: renamed.get(name, name) for role, name in node.inputs.items()})
        for node in graph.nodes
        if node.outputs.get("y") not in renamed
    ]
    assert ops(graph.with_nodes(nodes)).count("append_kv") == SPEC.num_layers


@pytest.mark.parametrize("layout", [DecoderLayout(wide_qk_norm=True), DecoderLayout(norm_after_rope=True)])
def test_norms_over_all_heads_and_behind_the_rotation_are_fused(layout: DecoderLayout) -> None:
    assert not {"append_kv", "rms_norm", "rope"} & {*ops(forward(SPEC, PAGE_SIZE, CONTEXT, layout=layout))[:-1]}


def test_a_norm_behind_a_rotation_that_changes_lengths_is_not_fused() -> None:
    """Its factor follows from the rotated elements."""
    graph = forward(SPEC, PAGE_SIZE, CONTEXT, layout=DecoderLayout(norm_after_rope=True))
    table = graph.constants["rope_table"]
    graph.constants["rope_table"] = replace(table, attrs={**table.attrs, "scale": 1.25})
    assert ops(graph).count("append_kv") == SPEC.num_layers


def test_an_addition_is_fused_in_either_order() -> None:
    swapped = changed(
        lambda node: replace(node, inputs={"a": node.inputs["b"], "b": node.inputs["a"]}) if node.op == "add" else node
    )
    assert ops(swapped) == ops(forward(SPEC, PAGE_SIZE, CONTEXT))
    assert "add" not in ops(swapped)
