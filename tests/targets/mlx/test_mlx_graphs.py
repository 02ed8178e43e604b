"""The MLX runner's forward on hand-made graphs against `ir/ops/`, and its errors for ops that it does not compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hand_made_graphs import CONTEXT, LAYERS, TOKENS, build, tensors_and_logits
from tolerances import F32, KV_Q8, relative_error

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.targets.mlx.forward import Forward, require_known
from nearfar.targets.mlx.pages import Pages, spans_of
from nearfar.targets.mlx.weights import read_weight


@pytest.mark.parametrize("name", LAYERS)
def test_logits_are_those_of_the_ops(name: str, mlx: Any) -> None:
    graph = build(LAYERS[name])
    require_known(graph)
    tensors, expected = tensors_and_logits(graph)
    arrays = {tensor: mlx.array(values) for tensor, values in tensors.items()}
    weights = {key: read_weight(parameter, arrays, mlx.float32) for key, parameter in graph.parameters.items()}
    forward = Forward(graph, weights, mlx.float32)
    for chunk in (1, 6, len(TOKENS)):
        pages = Pages(dict.fromkeys(state for state in graph.states if state.endswith(".kv")), 1)
        found = []
        for start in range(0, len(TOKENS), chunk):
            new = TOKENS[start : start + chunk]
            batch = make_batch([Chunk(new, start, [0], range(len(new)))], CONTEXT)
            inputs = {"token_ids": batch.token_ids, "positions": batch.positions, "sample_rows": batch.sample_rows}
            found.append(
                np.array(
                    forward.run({key: mlx.array(values) for key, values in inputs.items()}, spans_of(batch), pages)
                )
            )
        assert relative_error(np.concatenate(found), expected) < F32, chunk


def test_8_bit_keys_and_values_know_soft_caps_and_sinks(mlx: Any) -> None:
    from dataclasses import replace

    facts = replace(LAYERS["softcap"][0], head_dim=32, q_rotated=32, k_rotated=32, sinks=True, window=9)
    graph = build([facts])
    tensors, expected = tensors_and_logits(graph)
    arrays = {tensor: mlx.array(values) for tensor, values in tensors.items()}
    weights = {key: read_weight(parameter, arrays, mlx.float32) for key, parameter in graph.parameters.items()}
    forward, pages = Forward(graph, weights, mlx.float32), Pages({"layers.0.attn.kv": 32}, 1)
    batch = make_batch([Chunk(TOKENS, 0, [0], range(len(TOKENS)))], CONTEXT)
    inputs = {"token_ids": batch.token_ids, "positions": batch.positions, "sample_rows": batch.sample_rows}
    found = np.array(forward.run({key: mlx.array(values) for key, values in inputs.items()}, spans_of(batch), pages))
    assert 0 < relative_error(found, expected) < KV_Q8


def test_quantized_rows_are_read_with_offset_and_factor(mlx: Any) -> None:
    from nearfar.compiler.ir.graph import Parameter, Source

    rows = np.random.default_rng(2).normal(size=(10, 64)).astype(np.float32)
    codes, scales, biases = mlx.quantize(mlx.array(rows), group_size=32, bits=8)
    tensors = {"a.weight": codes, "a.scales": scales, "a.biases": biases}
    sources = Source("a.weight", 6, 9, offset=0.25, factor=-2.0), Source("a.weight", 0, 2)
    weight = read_weight(Parameter("p.weight", sources, 64), tensors, mlx.float32)
    expected = np.concatenate([0.25 - 2 * rows[6:9], rows[:2]])
    assert relative_error(np.array(weight.rows(mlx.arange(5))), expected) < 1e-2
    identity = mlx.array(np.eye(64, dtype=np.float32))
    assert relative_error(np.array(weight.times(identity)).T, expected) < 1e-2


@pytest.mark.parametrize(
    ("node", "found"),
    [
        (Node("rope_heads", {}, {}), "rope_heads"),
        (Node("linear", {"residual": "x"}, {"y": "y"}, {"dtype": "float32"}), "linear with residual"),
        (Node("embed", {}, {"y": "y"}, {"first_row": 8}), "embed with first_row"),
    ],
)
def test_ops_inputs_and_attributes_that_it_does_not_compute_are_refused_by_name(node: Node, found: str) -> None:
    graph = build(LAYERS["sinks"])
    graph.nodes.append(node)
    with pytest.raises(UnsupportedModel, match=f"the model has {found}, which the MLX runner does not compute"):
        require_known(graph)
