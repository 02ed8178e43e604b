"""Running graphs and plans with random weights in numpy, and random specs and batches to run them with.

A graph runs in SSA form: every value is a separate array, whose shape must follow the op's rule. A plan runs in its
buffers, which are allocated once. As soon as the graph no longer needs a buffer's content, it becomes NaN, so that a
step that reads it too late is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.ir.graph import Graph, Parameter, Source, Value
from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.plan import Buffer, Plan
from nearfar.compiler.ir.sampling import COUNTS, Settings
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec
from nearfar.compiler.pipeline.weights import tensor_shapes
from nearfar.compiler.runtime.batch import DERIVED_INPUTS, Batch, Chunk, make_batch

PAGE_SIZE = 4
CONTEXT = 32
NUM_PAGES = 24
NUM_SLOTS = 3
NUM_ADAPTERS = 2
NUM_STATES = 4


@dataclass(frozen=True)
class Result:
    """The outputs of every batch, and the states after the last."""

    outputs: tuple[Mapping[str, Array], ...]
    states: Mapping[str, Array]


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    """Decoders of one or two layers, every flag on or off."""
    num_kv_heads = draw(st.integers(1, 3))
    head_dim = draw(st.sampled_from([2, 6, 8]))
    return ModelSpec(
        model_type="llama",
        vocab_size=draw(st.integers(5, 40)),
        hidden_size=draw(st.integers(3, 20)),
        num_layers=draw(st.integers(1, 2)),
        num_heads=num_kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=draw(st.integers(1, 20)),
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope=RopeSpec(theta=100.0),
        tie_word_embeddings=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
    )


def random_tensors(graph: Graph, seed: int) -> dict[str, Array]:
    """A checkpoint's tensors for a graph before the passes."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=shape) / np.sqrt(shape[1] if len(shape) > 1 else 4) + (len(shape) == 1) * 0.5).astype(
            np.float32
        )
        for name, shape in tensor_shapes(graph.parameters).items()
    }


def random_batches(vocab_size: int, seed: int) -> list[Batch]:
    """Three sequences over three forward passes, in chunks of 1 to 9 tokens, on interleaved and unordered pages. Some
    pause.

    Some rows are greedy and some sampled. Some batches have penalties or return top log-probabilities.
    """
    rng = np.random.default_rng(seed)
    pages = rng.permutation(NUM_PAGES).reshape(3, -1)
    lengths = [0, 0, 0]
    batches = []
    for forward in range(3):
        chunks = []
        for sequence in range(3):
            count = int(rng.integers(1, 10)) if forward == 0 or rng.random() < 0.7 else 0
            if not count:
                continue
            start = lengths[sequence]
            lengths[sequence] += count
            used = pages[sequence][: -(-lengths[sequence] // PAGE_SIZE)]
            sampled = [row for row in range(count) if rng.random() < 0.6]
            tokens = [int(token) for token in rng.integers(0, vocab_size, count)]
            settings = Settings(temperature=float(rng.integers(0, 2)), draw=rng.random(), repetition_penalty=2.0)
            flags = COUNTS * int(forward > 0)
            chunks.append(
                Chunk(
                    tokens,
                    start,
                    [int(page) for page in used],
                    sampled,
                    settings,
                    slot=sequence,
                    flags=flags,
                    adapter=sequence - 1,
                )
            )
        if chunks:
            batches.append(make_batch(chunks, PAGE_SIZE, alternatives=forward == 2))
    return batches


def run_graph(
    graph: Graph, tensors: Mapping[str, Array], batches: Sequence[Batch], states: Mapping[str, Array] | None = None
) -> Result:
    """Run every batch in turn, with a separate array for each value. States start as in ``states``, or at zero if
    missing there.
    """
    fixed = {**fixed_arrays(graph, tensors), **new_states(graph), **(states or {})}
    outputs = []
    for batch in batches:
        dims = batch.dims(NUM_PAGES, NUM_SLOTS, NUM_ADAPTERS, num_states=NUM_STATES)
        values: dict[str, Array] = {**fixed, **batch.arrays(DERIVED_INPUTS)}
        for node in graph.nodes:
            op = OPS[node.op]
            # This is a copy, because an op may write into an earlier part of its result, which SSA preserves.
            inputs = {
                role: values[name].copy() if role == "into" else values[name] for role, name in node.inputs.items()
            }
            more = {
                role: poison(new_array(graph.values[name], dims))
                for role, name in node.outputs.items()
                if role != op.result
            }
            values |= {node.outputs[role]: array for role, array in more.items()}
            result = op.run({**inputs, **more}, node.attrs)
            if op.result is None:
                continue
            assert result is not None
            name = node.outputs[op.result]
            assert result.shape == tuple(evaluate(size, dims) for size in graph.values[name].shape), node
            assert (result.dtype == np.int32) == (graph.values[name].dtype == "int32"), node
            values[name] = result
        outputs.append({role: values[name] for role, name in graph.outputs.items()})
    return Result(tuple(outputs), {name: fixed[name] for name in graph.states})


def run_plan(
    plan: Plan,
    graph: Graph,
    tensors: Mapping[str, Array],
    batches: Sequence[Batch],
    states: Mapping[str, Array] | None = None,
) -> Result:
    """The plan of a graph, whose nodes are its steps one by one. ``states`` as in `run_graph`."""
    assert len(plan.steps) == len(graph.nodes)
    last_use = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs.values()}
    fixed = {**fixed_arrays(graph, tensors), **new_states(graph), **(states or {})}
    outputs = []
    for batch in batches:
        dims = batch.dims(NUM_PAGES, NUM_SLOTS, NUM_ADAPTERS, num_states=NUM_STATES)
        storage: dict[str, Array] = {name: poison(new_array(buffer, dims)) for name, buffer in plan.buffers.items()}
        values: dict[str, Array] = {**fixed, **batch.arrays(DERIVED_INPUTS), **storage}
        for index, (step, node) in enumerate(zip(plan.steps, graph.nodes, strict=True)):
            op = OPS[step.op]
            if "into" not in step.inputs:
                for name in step.outputs.values():
                    poison(storage[name])
            more = {role: storage[name] for role, name in step.outputs.items() if role != op.result}
            result = op.run({**{role: values[name] for role, name in step.inputs.items()}, **more}, step.attrs)
            if op.result is not None and result is not None:
                storage[step.outputs[op.result]][...] = result
            for role, name in node.inputs.items():
                if (
                    name in graph.values
                    and last_use[name] == index
                    and role != "into"
                    and name not in graph.outputs.values()
                ):
                    poison(storage[step.inputs[role]])
        outputs.append({role: storage[name].copy() for role, name in plan.outputs.items()})
    return Result(tuple(outputs), {name: fixed[name] for name in graph.states})


def fixed_arrays(graph: Graph, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Weights and constants."""
    weights = {name: stacked(parameter, tensors) for name, parameter in graph.parameters.items()}
    tables = {name: constant.table() for name, constant in graph.constants.items()}
    return {**weights, **tables}


def stacked(parameter: Parameter, tensors: Mapping[str, Array]) -> Array:
    """A parameter's rows, as `pipeline/weights.py` reads them."""
    parts = [
        source.offset + source.factor * tensors[source.tensor][stored_rows(source)] for source in parameter.sources
    ]
    return np.concatenate(parts).astype(np.float32)


def stored_rows(source: Source) -> slice | npt.NDArray[np.intp]:
    if source.pairs is None:
        return slice(source.start, source.stop)
    return source.pairs.stored_rows(source.start, source.stop)


def new_states(graph: Graph) -> dict[str, Array]:
    return {
        name: new_array(state, {"P": NUM_PAGES, "PW": NUM_PAGES, "N": NUM_SLOTS, "M": NUM_ADAPTERS, "Z": NUM_STATES})
        for name, state in graph.states.items()
    }


def new_array(value: Value | Buffer, dims: Mapping[str, int]) -> Array:
    return np.zeros(
        [evaluate(size, dims) for size in value.shape],
        value.dtype if value.dtype in ("int32", "uint32") else np.float32,
    )


def poison(array: Array) -> Array:
    array.fill(np.nan if array.dtype.kind == "f" else np.iinfo(np.int32).min)
    return array


def errors(found: Result, expected: Result) -> dict[str, Any]:
    """The relative error of the logits of all batches together, and of every float32 state."""
    from tolerances import relative_error

    def logits(result: Result) -> Array:
        return np.concatenate([outputs["logits"] for outputs in result.outputs])

    # Tokens are not compared: sampling may choose either of two close ones.
    states = {
        name: relative_error(found.states[name], array)
        for name, array in expected.states.items()
        if array.dtype == np.float32
    }
    return {"logits": relative_error(logits(found), logits(expected)), **states}
