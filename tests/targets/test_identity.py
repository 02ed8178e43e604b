"""A kernel is identified by its template and its facts: different facts give different kernels, equal facts give one
kernel, and each step has its own list of variants.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

import pytest
from graph_builder import Builder
from test_every_op import context_of

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import forward
from nearfar.compiler.bundle.digest import digest
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.plan import Plan, Step, make_plan
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec
from nearfar.compiler.names import TARGETS
from nearfar.compiler.passes import run_passes
from nearfar.compiler.pipeline.target import LoweredPlan, load_target

SPEC = ModelSpec(
    model_type="qwen3", vocab_size=51, hidden_size=48, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=24,
    intermediate_size=48,
    max_position_embeddings=64, rms_norm_eps=1e-5, rope=RopeSpec(theta=100.0), tie_word_embeddings=True, qk_norm=True,
)  # fmt: skip


def kernels_of(target: str, plan: Plan, step: Step) -> set[str]:
    variants = importlib.import_module(f"nearfar.targets.{target}.variants")
    context = context_of(target, plan, ("float32",))
    return {call.name for row in variants.variants_of(step, context) for call in row.kernels}


def norms(*facts: tuple[int, float]) -> Plan:
    """One rms_norm step for each pair of width and eps."""
    graph = Builder()
    for index, (width, eps) in enumerate(facts):
        x = graph.value(f"x{index}", ("S", width))
        inputs = {"x": x, "weight": graph.vector(f"weight{index}", width)}
        graph.outputs[f"y{index}"] = graph.add("rms_norm", inputs, name=f"y{index}", eps=eps, dtype="float32")
    return make_plan(graph)


def qwen3_with_eps_of_layer_1(eps: float, window: int | None = None) -> Graph:
    """Two layers, the second with an eps of its own in its q and k norms, and a window."""
    graph = forward(SPEC, 16, 64)
    changed = []
    for node in graph.nodes:
        name = next(iter(node.outputs.values()), "")
        if node.op == "rms_norm" and "layers.1.self_attn" in name:
            node = replace(node, attrs={**node.attrs, "eps": eps})
        if node.op == "attention" and name.startswith("layers.1.") and window is not None:
            node = replace(node, attrs={**node.attrs, "window": window})
        changed.append(node)
    return graph.with_nodes(changed)


@pytest.mark.parametrize("target", TARGETS)
def test_norms_of_other_widths_or_eps_are_other_kernels(target: str) -> None:
    plan = norms((24, 1e-5), (48, 1e-5), (24, 1e-2), (24, 1e-5))
    first, wider, other_eps, again = (kernels_of(target, plan, step) for step in plan.steps)
    assert first == again
    assert not first & wider
    assert not first & other_eps
    assert not wider & other_eps


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("eps", "window"), [(0.5, None), (1e-5, 5)])
def test_layers_that_differ_share_no_attention_kernel_that_depends_on_it(
    target: str, eps: float, window: int | None
) -> None:
    plan = make_plan(run_passes(qwen3_with_eps_of_layer_1(eps, window), quant.by_name("q4f16"), 128 << 20))
    one, other = (step for step in plan.steps if step.op == "attention")
    variants = importlib.import_module(f"nearfar.targets.{target}.variants")
    context = context_of(target, plan, ("float32",))

    def lists(step: Step) -> list[tuple[str, ...]]:
        return [tuple(call.name for call in row.kernels) for row in variants.variants_of(step, context)]

    assert not set(lists(one)) & set(lists(other))


def lowered(target: str, graph: Graph) -> LoweredPlan:
    plan = make_plan(run_passes(graph, quant.by_name("f32"), 128 << 20))
    return load_target(target).lower_plan(plan, quant.by_name("f32"), ("float32",), None, lambda *_: None)


def test_names_are_made_from_facts_and_equal_layers_share_every_list() -> None:
    same, other = lowered("webgpu", forward(SPEC, 16, 64)), lowered("webgpu", qwen3_with_eps_of_layer_1(0.5))
    for kernels in (same.kernels, other.kernels):
        for name, kernel in kernels.items():
            assert name == kernel.name == f"{kernel.template}_{digest(kernel.facts)}"
            assert json.loads(json.dumps(kernel.facts)) == kernel.facts
    layers = [[name for name in each.step_variants if name.startswith("attention")] for each in (same, other)]
    assert len(set(layers[0])) == 1
    assert len(set(layers[1])) == 2
