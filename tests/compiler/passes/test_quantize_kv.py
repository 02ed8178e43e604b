"""Pages of 8-bit integers: a graph with them computes nearly the same results, and only its pages have changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from run_plan import CONTEXT, PAGE_SIZE, random_batches, random_tensors, run_graph, run_plan, specs
from tolerances import KV_Q8, relative_error

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import forward
from nearfar.compiler.ir.ops.kv_pages import dequantize_pages
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.passes import run_passes


@settings(max_examples=15, deadline=None, derandomize=True)
@given(spec=specs(), seed=st.integers(0, 1000))
def test_quantized_pages_hold_nearly_the_same_keys_and_values(spec: ModelSpec, seed: int) -> None:
    spec = replace(spec, head_dim=8, num_layers=1)
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    tensors, batches = random_tensors(plain, seed), random_batches(spec.vocab_size, seed)
    fused, quantized = (run_passes(plain, quant.by_name("q4f16"), 128 << 20, kv) for kv in ("activation", "q8"))
    assert [node.op for node in quantized.nodes] == [node.op for node in fused.nodes]
    assert quantized.states["layers.0.kv"].shape == ("P", 2, spec.num_kv_heads, PAGE_SIZE, 3)
    expected, found = run_graph(fused, tensors, batches), run_plan(make_plan(quantized), quantized, tensors, batches)
    pages = [name for name, value in fused.states.items() if value.shape[0] == "P"]
    assert pages == ["layers.0.kv"]
    for name in pages:
        # With one layer, stored values do not depend on values that were read, so the error is at most half a step of 1
        # / 127.
        assert relative_error(dequantize_pages(found.states[name]), expected.states[name]) < 0.6 / 127
    logits = [np.concatenate([outputs["logits"] for outputs in result.outputs]) for result in (found, expected)]
    assert relative_error(*logits) < KV_Q8
