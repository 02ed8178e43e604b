"""Rounded activations: the rounding steps change nothing else, and projections absorb them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_plan import CONTEXT, PAGE_SIZE, errors, random_batches, random_tensors, run_plan

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import forward
from nearfar.compiler.formats.checkpoint import ActivationScales, Checkpoint
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec
from nearfar.compiler.passes import run_passes
from nearfar.compiler.passes.fuse import fuse
from nearfar.compiler.pipeline.stored_forms import round_activations
from nearfar.compiler.runtime.errors import CheckpointError
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

SPEC = ModelSpec(
    model_type="llama", vocab_size=37, hidden_size=12, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=6,
    intermediate_size=10, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, rope=RopeSpec(theta=100.0),
    tie_word_embeddings=False, qkv_bias=True,
)  # fmt: skip
LAYER = "model.layers.0"
MODULES = (
    *(f"{LAYER}.self_attn.{name}_proj" for name in "qkvo"),
    *(f"{LAYER}.mlp.{name}_proj" for name in ("gate", "up", "down")),
    "lm_head",
)


def rounded_graph(scales: dict[str, ActivationScales]) -> Graph:
    checkpoint = Checkpoint(
        Path("model"), SPEC, {}, TokenizerFiles(Path("tokenizer.json"), b"{}"), activation_scales=scales
    )
    return round_activations(forward(SPEC, PAGE_SIZE, CONTEXT), checkpoint)


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_folding_leaves_every_bit_as_it_was() -> None:
    plain = rounded_graph({module: ActivationScales(0.05, 0.03) for module in MODULES})
    assert ops_of(plain).count("fake_quantize") == 5 + 8
    folded = fuse(plain, ["fake_quantize"], centered=False)
    assert "fake_quantize" not in ops_of(folded)
    tensors, batches = random_tensors(plain, 1), random_batches(SPEC.vocab_size, 1)
    found, expected = (run_plan(make_plan(graph), graph, tensors, batches) for graph in (folded, plain))
    for one, other in zip(found.outputs, expected.outputs, strict=True):
        assert all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
    assert max(errors(found, expected).values()) == 0


def test_equal_steps_of_an_input_still_share_one_projection() -> None:
    scales = {module: ActivationScales(0.05, None) for module in MODULES}
    scales[f"{LAYER}.self_attn.v_proj"] = ActivationScales(0.02, None)
    graph = run_passes(rounded_graph(scales), quant.by_name("f32"), 1 << 30)
    read = [[part["scale"] for part in node.attr("load")] for node in graph.nodes if node.op == "linear"]
    # q and k together, v, o with the residual, gate and up together, down with the residual, the head.
    assert read == [[0.05], [0.02], [0.05], [0.05], [0.05], [0.05]]
    assert "fake_quantize" not in ops_of(graph)


def test_scales_of_a_module_that_is_not_a_projection_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"model.embed_tokens has scales of activations"):
        rounded_graph({"model.embed_tokens": ActivationScales(0.1, None)})


def test_modules_that_the_model_does_not_read_do_not_count() -> None:
    assert "fake_quantize" not in ops_of(rounded_graph({"model.vision_tower.fc1": ActivationScales(0.1, 0.1)}))


def test_projections_of_different_formats_are_not_stacked() -> None:
    graph = forward(SPEC, PAGE_SIZE, CONTEXT)
    forms = {"q_proj": "q2c", "k_proj": "q2c", "v_proj": "q8c", "gate_proj": "q4c", "up_proj": "q2c"}
    graph = replace(
        graph,
        parameters={
            name: replace(each, form=next((form for part, form in forms.items() if f"{part}.weight" in name), None))
            for name, each in graph.parameters.items()
        },
    )
    fused = run_passes(graph, quant.by_name("f32"), 1 << 30)
    assert all(node.attr("store") != [{"op": "gate_halves"}] for node in fused.nodes if node.op == "linear")
    stacked = {name: each.form for name, each in fused.parameters.items() if "proj.weight" in name}
    assert stacked[f"{LAYER}.self_attn.qk_proj.weight"] == "q2c"
    assert stacked[f"{LAYER}.self_attn.v_proj.weight"] == "q8c"
    tensors, batches = random_tensors(graph, 2), random_batches(SPEC.vocab_size, 2)
    found = run_plan(make_plan(fused), fused, tensors, batches)
    assert max(errors(found, run_plan(make_plan(graph), graph, tensors, batches)).values()) < 1e-5
