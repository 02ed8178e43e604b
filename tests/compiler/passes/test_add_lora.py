"""An adapter changes each row's projections as if it were added to the weights, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from run_plan import CONTEXT, NUM_ADAPTERS, PAGE_SIZE, random_batches, random_tensors, run_graph, run_plan, specs
from tolerances import F32, relative_error

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import PRE_NORM, DecoderLayout, forward
from nearfar.compiler.arch.phi3 import LAYOUT
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.passes import run_passes
from nearfar.compiler.passes.add_lora import lora_entry

RANK = 3
LAYER_NORMS = DecoderLayout(centered_norms=True, norm_bias=True)


@settings(max_examples=15, derandomize=True)
@given(
    spec=specs(),
    seed=st.integers(0, 1000),
    layout=st.sampled_from([PRE_NORM, LAYOUT, replace(LAYOUT, interleaved=True), LAYER_NORMS]),
    factor=st.sampled_from([1.0, 0.5]),
)
def test_each_row_is_computed_with_its_own_adapter(
    spec: ModelSpec, seed: int, layout: DecoderLayout, factor: float
) -> None:
    """A tensor of the checkpoint may hold several projections, also for interleaved RoPE. ``factor`` scales the weights
    as they are read.
    """
    spec = replace(spec, qk_norm=spec.qk_norm and not layout.interleaved)
    plain = scaled(forward(spec, PAGE_SIZE, CONTEXT, layout=layout), factor)
    tensors, batches = random_tensors(plain, seed), random_batches(spec.vocab_size, seed)
    adapted = run_passes(plain, quant.by_name("f32"), 128 << 20, lora_rank=RANK)
    plan = make_plan(adapted)
    entry = lora_entry(plan, RANK)
    projections = [each for name, each in plain.parameters.items() if is_projection(name, each.columns)]
    assert set(entry.modules) == {
        source.tensor.removesuffix(".weight") for each in projections for source in each.sources
    }
    rng = np.random.default_rng(seed)
    states = {
        name: np.zeros((NUM_ADAPTERS, *map(int, plan.states[name].shape[1:])), np.float32)  # type: ignore[arg-type]
        for name in entry.states
    }
    merged: list[dict[str, Array]] = [dict(tensors) for _ in range(NUM_ADAPTERS)]
    for name, parts in entry.modules.items():
        rows, columns = tensors[f"{name}.weight"].shape
        for adapter in range(NUM_ADAPTERS):
            a, b = rng.normal(size=(RANK, columns)) / columns**0.5, rng.normal(size=(rows, RANK))
            for part in parts:
                states[part.a][adapter, part.part * RANK : (part.part + 1) * RANK] = a
                first, last = part.first_row, part.first_row + part.stop - part.start
                mine = b[first:last] if part.pairs is None else b[part.pairs.stored_rows(first, last)]
                states[part.b][adapter, part.start : part.stop] = mine * part.factor
            merged[adapter][f"{name}.weight"] = (tensors[f"{name}.weight"] + b @ a).astype(np.float32)
    found = run_plan(plan, adapted, tensors, batches, states)
    # The sequence in slot 0 has no adapter, the next ones have the first and the second.
    alone = [run_graph(plain, each, batches) for each in (tensors, *merged)]
    for index, batch in enumerate(batches):
        slots = batch.sample_slots[:, 0]
        logits = [result.outputs[index]["logits"] for result in (found, *alone)]
        expected = np.array([logits[1 + slot][row] for row, slot in enumerate(slots)], np.float32).reshape(
            logits[0].shape
        )
        assert relative_error(logits[0], expected) < F32


def scaled(graph: Graph, factor: float) -> Graph:
    """The graph with the weights of its projections scaled as they are read."""
    for name, each in graph.parameters.items():
        if is_projection(name, each.columns):
            sources = tuple(replace(source, factor=factor) for source in each.sources)
            graph.parameters[name] = replace(each, sources=sources)
    return graph


def is_projection(name: str, columns: int | None) -> bool:
    return columns is not None and name.startswith("model.layers.")
