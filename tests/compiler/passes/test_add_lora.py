"""Adapters change each row's projections as they would if they were added to the weights, whatever else is in the batch."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from run_plan import CONTEXT, NUM_ADAPTERS, PAGE_SIZE, random_batches, random_tensors, run_graph, run_plan, specs
from tolerances import F32, relative_error

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import forward
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.passes import run_passes
from nearfar.compiler.passes.add_lora import lora_entry

RANK = 3


@settings(max_examples=15, deadline=None, derandomize=True)
@given(spec=specs(), seed=st.integers(0, 1000))
def test_each_row_is_computed_with_its_own_adapter(spec: ModelSpec, seed: int) -> None:
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    tensors, batches = random_tensors(plain, seed), random_batches(spec.vocab_size, seed)
    adapted = run_passes(plain, quant.by_name("f32"), 128 << 20, lora_rank=RANK)
    plan = make_plan(adapted)
    entry = lora_entry(plan, RANK)
    assert set(entry.modules) == {
        name.removesuffix(".weight") for name, each in plain.parameters.items() if is_projection(name, each.columns)
    }
    rng = np.random.default_rng(seed)
    states = {name: np.zeros((NUM_ADAPTERS, *map(int, plan.states[name].shape[1:])), np.float32) for name in entry.states}  # type: ignore[arg-type]
    merged: list[dict[str, Array]] = [dict(tensors) for _ in range(NUM_ADAPTERS)]
    for name, (module,) in entry.modules.items():
        columns = states[module.a].shape[2]
        for place in range(NUM_ADAPTERS):
            a, b = rng.normal(size=(RANK, columns)) / columns**0.5, rng.normal(size=(module.stop - module.start, RANK))
            states[module.a][place, module.part * RANK : (module.part + 1) * RANK] = a
            states[module.b][place, module.start : module.stop] = b
            merged[place][f"{name}.weight"] = (tensors[f"{name}.weight"] + b @ a).astype(np.float32)
    found = run_plan(plan, adapted, tensors, batches, states)
    # The sequence in slot 0 has no adapter, the next ones those of places 0 and 1.
    alone = [run_graph(plain, each, batches) for each in (tensors, *merged)]
    for index, batch in enumerate(batches):
        slots = batch.sample_slots[:, 0]
        logits = [result.outputs[index]["logits"] for result in (found, *alone)]
        expected = np.array([logits[1 + slot][row] for row, slot in enumerate(slots)], np.float32).reshape(logits[0].shape)
        assert relative_error(logits[0], expected) < F32


def is_projection(name: str, columns: int | None) -> bool:
    return columns is not None and name.startswith("model.layers.")
