"""The number of dispatches per decoded token or text, which determines the time on small models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checkpoints import LFM2_1_2B, MIXTURE, QWEN2_0_5B, QWEN3_0_6B, QWEN3_5_0_8B, Shapes

from nearfar.compiler import quant
from nearfar.compiler.arch import bert, by_model_type
from nearfar.compiler.formats.config import ConfigReader
from nearfar.compiler.formats.huggingface import read_spec
from nearfar.compiler.ir.expr import Expr, evaluate, holds
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.pages import STATE_SLOTS
from nearfar.compiler.ir.plan import Step, make_plan
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.ir.tasks import EmbeddingSpec
from nearfar.compiler.measure.model_table import published
from nearfar.compiler.passes import run_passes
from nearfar.targets.context import Context
from nearfar.targets.webgpu.lower import MAX_BINDING_BYTES
from nearfar.targets.webgpu.variants import variants_of

PAGE_SIZE, CONTEXT = 16, 4096
ONE_TOKEN = {"S": 1, "B": 1, "R": 1, "N": 1, "A": 0, "W": 0, "DR": 0, "G": 0, "P": 8, "L": 8}


@pytest.mark.parametrize(
    ("shapes", "short", "long"),
    [
        (QWEN2_0_5B, 124, 148),
        (QWEN3_0_6B, 144, 172),
        (LFM2_1_2B, 84, 90),
        (QWEN3_5_0_8B, 130, 136),
        (MIXTURE, 166, 186),
    ],
)
def test_a_token_takes_as_many_dispatches_as_ever(shapes: Shapes, short: int, long: int) -> None:
    spec = by_model_type(shapes.config["model_type"]).read_config(ConfigReader(shapes.config))
    # Many workgroups sample a row with a temperature; one workgroup then merges their results.
    assert dispatches(spec) == {"short": short, "long": long, "drawn": short + 1}


@pytest.mark.parametrize("name", ["lfm2-350m", "granite-4.0-h-350m", "qwen3.5-0.8b"])
def test_a_step_with_a_state_runs_and_reads_the_same_at_any_context(name: str) -> None:
    spec, context = read_spec(dict(published())[name]), 32_768
    fmt = quant.by_name("q4f16")
    graph = by_model_type(spec.model_type).forward(spec, PAGE_SIZE, context)
    plan = make_plan(run_passes(graph, fmt, MAX_BINDING_BYTES))
    lowering = Context(plan, fmt, ("float32",))

    def work(step: Step, keys: int) -> object:
        """The kernels of a token with their workgroups, and the sizes of the arrays that they may read."""
        dims = {**ONE_TOKEN, "T": keys, "P": keys // PAGE_SIZE, "L": keys // PAGE_SIZE, "Z": 1}
        row = next(row for row in variants_of(step, lowering) if holds(row.when, dims) and not row.needs)
        kernels = [(call.name, [evaluate(size, dims) for size in call.build().grid]) for call in row.kernels]
        return kernels, {
            role: [evaluate(size, dims) for size in plan.shape_of(array)] for role, array in step.inputs.items()
        }

    steps = [step for step in plan.steps if STATE_SLOTS in step.inputs]
    mixed = [mixer for mixer in spec.mixers if mixer != "attention"]
    # Mamba-2 has two steps.
    assert len(steps) == len(mixed) * (1 + ("mamba2" in mixed))
    different = {step.op: step for step in steps}
    assert [work(step, 128) for step in different.values()] == [work(step, context) for step in different.values()]
    attention = next(step for step in plan.steps if step.op == "attention")
    assert work(attention, 128) != work(attention, context)


# Norms behind the sub-layers and over all heads, norms behind the rotation, LayerNorms with and without a bias. The
# others are in the model table.
@pytest.mark.parametrize(
    "name", ["olmo-2-0425-1b-instruct", "hy-mt2-7b", "stablelm-2-1_6b", "c4ai-command-r7b-12-2024"]
)
def test_a_layer_takes_five_dispatches_whatever_its_norms(name: str) -> None:
    spec = read_spec(dict(published())[name])
    one, two = (
        dispatches(replace(spec, num_layers=layers, windows=spec.windows[:layers], unrotated=()))["short"]
        for layers in (1, 2)
    )
    assert two - one == 5


@pytest.mark.parametrize(("rows", "count"), [(1, 4), (4, 4), (24, 4), (256, 4), (257, 5)])
def test_a_layer_of_bert_takes_four_dispatches_and_with_many_rows_five(rows: int, count: int) -> None:
    config: dict[str, Any] = {
        "model_type": "bert", "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536,
        "vocab_size": 30522, "max_position_embeddings": 512,
    }  # fmt: skip
    specs = [bert.read_config(ConfigReader({**config, "num_hidden_layers": layers})) for layers in (1, 2)]
    one, two = (kernels_of(bert.encode(spec, 512, EmbeddingSpec("mean", True, 384)), rows) for spec in specs)
    assert two - one == count


def kernels_of(graph: Graph, rows: int) -> int:
    """The kernels that a forward pass on ``rows`` tokens runs."""
    fmt = quant.by_name("q8f16")
    plan = make_plan(run_passes(graph, fmt, MAX_BINDING_BYTES))
    context = Context(plan, fmt, ("float32",))
    dims = {**ONE_TOKEN, "S": rows, "T": rows}
    chosen = (
        next(row for row in variants_of(step, context) if holds(row.when, dims) and not row.needs)
        for step in plan.steps
    )
    return sum(len(row.kernels) for row in chosen)


def dispatches(spec: ModelSpec) -> dict[str, int]:
    """The dispatches of a token at the start of a sequence, in a long context, and with a temperature."""
    fmt = quant.by_name("q4f16")
    graph = by_model_type(spec.model_type).forward(spec, PAGE_SIZE, CONTEXT)
    plan = make_plan(run_passes(graph, fmt, MAX_BINDING_BYTES))
    context = Context(plan, fmt, fmt.activations)
    grids: dict[str, tuple[Expr, Expr]] = {}
    counts = {"short": 0, "long": 0, "drawn": 0}
    for step in plan.steps:
        rows = [row for row in variants_of(step, context) if row.activation in (None, "float16") and not row.needs]
        for name, keys, drawn in (("short", 1, 0), ("long", CONTEXT, 0), ("drawn", 1, 1)):
            dims = {**ONE_TOKEN, "T": keys, "DR": drawn}
            row = next(row for row in rows if holds(row.when, dims))
            for call in row.kernels:
                if call.name not in grids:
                    grids[call.name] = call.build().grid
                counts[name] += all(evaluate(extent, dims) for extent in grids[call.name])
    return counts
