"""Passes do not change the results of a graph: each alone, in sequence, and with split weights, on random decoders and
batches.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_plan import CONTEXT, PAGE_SIZE, errors, random_batches, random_tensors, run_graph, run_plan, specs
from tolerances import F32

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import forward
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec
from nearfar.compiler.passes import FUSIONS, run_passes

Pass = Callable[[Graph], Graph]
MAX_BINDING_BYTES = 128 << 20
Q4 = quant.by_name("q4f16")
SAMPLING = ("adjust_logits", "sample", "top_logprobs")

QWEN2_0_5B = ModelSpec(
    model_type="qwen2", vocab_size=151936, hidden_size=896, num_layers=24, num_heads=14, num_kv_heads=2, head_dim=64,
    intermediate_size=4864, max_position_embeddings=32768, rms_norm_eps=1e-6, rope=RopeSpec(theta=1e6),
    tie_word_embeddings=True,
    qkv_bias=True,
)  # fmt: skip


@settings(max_examples=40, derandomize=True)
@given(spec=specs(), seed=st.integers(0, 1000))
def test_all_passes_together_leave_logits_and_pages_as_they_were(spec: ModelSpec, seed: int) -> None:
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    tensors, batches = random_tensors(plain, seed), random_batches(spec.vocab_size, seed)
    fused = run_passes(plain, Q4, MAX_BINDING_BYTES)
    found = run_plan(make_plan(fused), fused, tensors, batches)
    expected = run_plan(make_plan(plain), plain, tensors, batches)
    assert max(errors(found, expected).values()) < F32


@pytest.mark.parametrize("fuse", FUSIONS, ids=lambda fuse: fuse.__name__)
@settings(max_examples=12, derandomize=True)
@given(spec=specs(), seed=st.integers(0, 1000))
def test_each_pass_alone_leaves_logits_and_pages_as_they_were(fuse: Pass, spec: ModelSpec, seed: int) -> None:
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    tensors, batches = random_tensors(plain, seed), random_batches(spec.vocab_size, seed)
    expected = run_graph(plain, tensors, batches)
    assert max(errors(run_graph(fuse(plain), tensors, batches), expected).values()) < F32


@settings(max_examples=12, derandomize=True)
@given(spec=specs(), seed=st.integers(0, 1000))
def test_passes_in_the_reverse_order_leave_logits_and_pages_as_they_were(spec: ModelSpec, seed: int) -> None:
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    tensors, batches = random_tensors(plain, seed), random_batches(spec.vocab_size, seed)
    graph = plain
    for fuse in reversed(FUSIONS):
        graph = fuse(graph)
    assert max(errors(run_graph(graph, tensors, batches), run_graph(plain, tensors, batches)).values()) < F32


@settings(max_examples=20, derandomize=True)
@given(spec=specs())
def test_a_pass_run_twice_changes_nothing_more(spec: ModelSpec) -> None:
    once = run_passes(forward(spec, PAGE_SIZE, CONTEXT), Q4, MAX_BINDING_BYTES)
    twice = run_passes(once, Q4, MAX_BINDING_BYTES)
    assert twice.nodes == once.nodes
    assert twice.parameters == once.parameters


@settings(max_examples=20, derandomize=True)
@given(spec=specs())
def test_a_layer_becomes_five_steps(spec: ModelSpec) -> None:
    graph = run_passes(forward(spec, PAGE_SIZE, CONTEXT), Q4, MAX_BINDING_BYTES)
    layer = ["linear", "attention", "linear", "linear", "linear"]
    assert [node.op for node in graph.nodes] == ["embed", *layer * spec.num_layers, "take_rows", "linear", *SAMPLING]


@settings(max_examples=20, derandomize=True)
@given(spec=specs())
def test_passes_use_every_row_of_every_tensor_as_before(spec: ModelSpec) -> None:
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    fused = run_passes(plain, Q4, MAX_BINDING_BYTES)

    def rows(graph: Graph) -> list[tuple[str, int, int]]:
        return sorted(
            (source.tensor, source.start, source.stop) for each in graph.parameters.values() for source in each.sources
        )

    assert rows(fused) == rows(plain)


def test_a_token_of_qwen2_0_5b_takes_at_most_126_steps() -> None:
    graph = run_passes(forward(QWEN2_0_5B, 16, 4096), Q4, MAX_BINDING_BYTES)
    assert len(make_plan(graph).steps) <= 126


def test_a_projection_whose_result_is_read_twice_keeps_its_addition() -> None:
    spec = ModelSpec(
        model_type="llama", vocab_size=9, hidden_size=4, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=4,
        intermediate_size=4,
        max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, rope=RopeSpec(theta=100.0), tie_word_embeddings=True,
    )  # fmt: skip
    graph = forward(spec, PAGE_SIZE, CONTEXT)
    graph.add("add", {"a": "model.layers.0.mlp.down_proj.out", "b": "embedded"}, name="second_reader")
    graph.outputs["second_reader"] = "second_reader"
    tensors, batches = random_tensors(graph, 1), random_batches(9, 1)
    fused = run_passes(graph, Q4, MAX_BINDING_BYTES)
    assert max(errors(run_graph(fused, tensors, batches), run_graph(graph, tensors, batches)).values()) < F32
    assert [node.op for node in fused.nodes].count("add") == 2
