"""Plans: buffers are reused, and no step reads data that another step has overwritten."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from run_plan import CONTEXT, PAGE_SIZE, random_batches, random_tensors, run_graph, run_plan, specs

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import forward
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.passes import run_passes

Q4 = quant.by_name("q4f16")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[ModelSpec, Graph, Graph]:
    """A spec, its plain graph, and that graph unchanged, fused, or fused and split."""
    spec = draw(specs())
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    limit = draw(st.sampled_from([0, 128 << 20, 256]))
    return spec, plain, run_passes(plain, Q4, limit) if limit else plain


@settings(max_examples=60, derandomize=True)
@given(drawn=graphs())
def test_no_step_writes_a_buffer_that_it_reads_except_into(drawn: tuple[ModelSpec, Graph, Graph]) -> None:
    plan = make_plan(drawn[2])
    for step in plan.steps:
        read = {name for role, name in step.inputs.items() if role != "into"}
        assert not read & set(step.outputs.values()), step
        if "into" in step.inputs:
            assert list(step.outputs.values()) == [step.inputs["into"]]


@settings(max_examples=60, derandomize=True)
@given(drawn=graphs(), seed=st.integers(0, 1000))
def test_reuse_never_overwrites_a_value_that_is_still_needed(drawn: tuple[ModelSpec, Graph, Graph], seed: int) -> None:
    spec, plain, graph = drawn
    tensors, batches = random_tensors(plain, seed), random_batches(spec.vocab_size, seed)
    found = run_plan(make_plan(graph), graph, tensors, batches)
    expected = run_graph(graph, tensors, batches)
    for mine, wanted in zip(found.outputs, expected.outputs, strict=True):
        for role in wanted:
            assert mine[role].tobytes() == wanted[role].astype(mine[role].dtype).tobytes(), role
    for name, state in expected.states.items():
        assert found.states[name].tobytes() == state.tobytes(), name


@settings(max_examples=30, derandomize=True)
@given(drawn=graphs())
def test_names_are_unique_over_inputs_states_constants_weights_and_buffers(
    drawn: tuple[ModelSpec, Graph, Graph],
) -> None:
    plan = make_plan(drawn[2])
    tables = (plan.inputs, plan.states, plan.constants, plan.weights, plan.buffers)
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
    used = {name for step in plan.steps for name in (*step.inputs.values(), *step.outputs.values())}
    assert used <= set(names)
    assert set(plan.outputs.values()) <= set(plan.buffers)


@settings(max_examples=30, derandomize=True)
@given(drawn=graphs())
def test_every_output_buffer_has_the_shape_and_dtype_of_its_value(drawn: tuple[ModelSpec, Graph, Graph]) -> None:
    graph = drawn[2]
    plan = make_plan(graph)
    for step, node in zip(plan.steps, graph.nodes, strict=True):
        assert step.outputs.keys() == node.outputs.keys()
        for role, name in node.outputs.items():
            buffer, value = plan.buffers[step.outputs[role]], graph.values[name]
            assert (buffer.shape, buffer.dtype) == (value.shape, value.dtype)


@settings(max_examples=20, derandomize=True)
@given(spec=specs())
def test_the_number_of_buffers_does_not_grow_with_layers(spec: ModelSpec) -> None:
    def count(layers: int) -> int:
        return len(
            make_plan(run_passes(forward(replace(spec, num_layers=layers), PAGE_SIZE, CONTEXT), Q4, 128 << 20)).buffers
        )

    assert count(2) == count(7)
