"""Page groups: layers with a window have page tables of their own, and compute the same results as before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_plan import CONTEXT, PAGE_SIZE, random_batches, random_tensors, run_graph

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import forward
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.passes import run_passes
from nearfar.compiler.passes.split_page_groups import split_page_groups
from nearfar.compiler.runtime.batch import Batch, PageTables
from nearfar.compiler.runtime.page_groups import PageGroup, dead_pages, pages_of_sequence, rings

WINDOW_INPUTS = {"window_slots", "window_page_indptr", "window_page_ids"}


def windowed(spec: ModelSpec, *windows: int | None) -> Graph:
    graph = forward(replace(spec, num_layers=len(windows), windows=windows), PAGE_SIZE, CONTEXT)
    return run_passes(graph, quant.by_name("f32"), 128 << 20)


@pytest.fixture
def spec(tiny_checkpoints: dict[str, Path]) -> ModelSpec:
    from nearfar.compiler.formats.huggingface import read_spec

    return read_spec(tiny_checkpoints["qwen3"] / "config.json")


@pytest.mark.parametrize("windows", [(None, None), (5, 5), (CONTEXT, None)])
def test_layers_that_all_see_the_context_or_all_have_a_window_share_their_pages(
    spec: ModelSpec, windows: tuple[int | None, ...]
) -> None:
    graph = windowed(spec, *windows)
    assert split_page_groups(graph) is graph


def test_layers_with_a_window_read_and_write_pages_of_their_own(spec: ModelSpec) -> None:
    graph = windowed(spec, 5, None, 7)
    split = split_page_groups(graph)
    dims = {name: state.shape[0] for name, state in split.states.items() if name.endswith(".kv")}
    assert dims == {"layers.0.kv": "PW", "layers.1.kv": "P", "layers.2.kv": "PW"}
    assert split.inputs.keys() - graph.inputs.keys() == WINDOW_INPUTS
    tensors, batches = random_tensors(graph, 3), random_batches(spec.vocab_size, 3)
    expected = run_graph(graph, tensors, batches)
    found = run_graph(split, tensors, [with_own_tables(batch) for batch in batches])
    for one, other in zip(expected.outputs, found.outputs, strict=True):
        np.testing.assert_array_equal(one["logits"], other["logits"])
    # The same keys and values, in other pages.
    for name, dim in dims.items():
        pages = found.states[name][::-1] if dim == "PW" else found.states[name]
        np.testing.assert_array_equal(expected.states[name], pages)


def with_own_tables(batch: Batch) -> Batch:
    """The pages of the second group are the first group's in reverse."""
    from run_plan import NUM_PAGES

    page, row = np.divmod(batch.slots, PAGE_SIZE)
    slots = ((NUM_PAGES - 1 - page) * PAGE_SIZE + row).astype(np.int32)
    return replace(batch, window=PageTables(slots, batch.page_indptr, NUM_PAGES - 1 - batch.page_ids))


def test_a_sequence_holds_the_pages_of_its_window_and_of_a_step() -> None:
    assert pages_of_sequence(None, 4096, 16, 64) == 256
    assert pages_of_sequence(512, 4096, 16, 64) == 32 + 4 + 2
    assert pages_of_sequence(512, 256, 16, 64) == 16
    # Position 520 attends to positions 9 and later, so no page lies behind the window of 512 before position 527.
    assert [dead_pages(512, position, 16) for position in (0, 520, 526, 527, 543)] == [0, 0, 0, 1, 2]
    assert dead_pages(None, 10**6, 16) == 0
    assert rings([PageGroup(8), PageGroup(3, 20)], 5) == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
