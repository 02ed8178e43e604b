"""Pages of integers: a graph with them computes nearly the same results, and only its pages have changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from run_plan import CONTEXT, PAGE_SIZE, random_batches, random_tensors, run_graph, run_plan, specs
from tolerances import KV_FP8, KV_Q4, KV_Q8, relative_error

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import forward
from nearfar.compiler.ir.kv_format import KV_FORMATS
from nearfar.compiler.ir.ops.kv_pages import read_pages
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.passes import run_passes


@settings(max_examples=15, derandomize=True)
@given(spec=specs(), seed=st.integers(0, 1000), kv=st.sampled_from(["q8", "q4", "fp8"]))
def test_quantized_pages_hold_nearly_the_same_keys_and_values(spec: ModelSpec, seed: int, kv: str) -> None:
    form, spec = KV_FORMATS[kv], replace(spec, head_dim=8, num_layers=1)
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    tensors, batches = random_tensors(plain, seed), random_batches(spec.vocab_size, seed)
    fused, quantized = (run_passes(plain, quant.by_name("q4f16"), 128 << 20, each) for each in ("activation", kv))
    assert [node.op for node in quantized.nodes] == [node.op for node in fused.nodes]
    assert quantized.states["layers.0.kv"].shape == ("P", 2, spec.num_kv_heads, PAGE_SIZE, form.words(8))
    expected, found = run_graph(fused, tensors, batches), run_plan(make_plan(quantized), quantized, tensors, batches)
    pages = [name for name, value in fused.states.items() if value.shape[0] == "P"]
    assert pages == ["layers.0.kv"]
    for name in pages:
        # With one layer, stored values do not depend on values that were read. An error is at most half a step, or a
        # whole step for the largest elements; a rotated row of 8 elements exceeds its largest one by at most sqrt(8).
        # The largest floats, up to 448, are 32 apart.
        away = {"q8": 0.6 / 127, "q4": np.sqrt(8) / 8, "fp8": 16.1 / 448}[kv]
        assert relative_error(read_pages(found.states[name], {"kv": kv}), expected.states[name]) < away
    logits = [np.concatenate([outputs["logits"] for outputs in result.outputs]) for result in (found, expected)]
    assert relative_error(*logits) < {"q8": KV_Q8, "q4": KV_Q4, "fp8": KV_FP8}[kv]
