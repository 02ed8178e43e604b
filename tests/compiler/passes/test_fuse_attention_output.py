"""Attention without pages takes in the projection of its result, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from run_plan import random_tensors, run_graph
from tiny_encoders import SIZES
from tolerances import F32

from nearfar.compiler import quant
from nearfar.compiler.arch import bert
from nearfar.compiler.formats.config import ConfigReader
from nearfar.compiler.ir.graph import Graph, Node
from nearfar.compiler.ir.tasks import EmbeddingSpec
from nearfar.compiler.passes import run_passes
from nearfar.compiler.passes.fuse_attention import fuse_attention_output
from nearfar.compiler.runtime.encoder_batch import make_text_batch

CONFIG = {**SIZES, "model_type": "bert", "num_hidden_layers": 2}
LAYER = ["linear", "ragged_attention", "linear", "linear"]


def encoder() -> Graph:
    return bert.encode(bert.read_config(ConfigReader(CONFIG)), 64, EmbeddingSpec("mean", True, SIZES["hidden_size"]))


def fused(graph: Graph) -> list[str]:
    return [node.op for node in run_passes(graph, quant.by_name("f32"), 1 << 20).nodes]


def test_a_layer_of_bert_becomes_four_steps_with_the_same_result() -> None:
    graph = encoder()
    assert fused(graph) == ["embed", "embed_positions", *LAYER * 2, "rms_norm", "pool_rows"]
    tensors = random_tensors(graph, 1)
    batches = [make_text_batch([[3, 4, 5], [6], list(range(20))])]
    expected = run_graph(graph, tensors, batches)
    found = run_graph(run_passes(graph, quant.by_name("f32"), 1 << 20), tensors, batches)
    ((role, vectors),) = expected.outputs[0].items()
    assert np.abs(found.outputs[0][role] - vectors).max() < F32 * np.abs(vectors).max()


def output_of(layer: int) -> str:
    return f"layers.{layer}.attended"


def with_second_reader(graph: Graph) -> Graph:
    graph.add("fake_quantize", {"x": output_of(0)}, name="again", dtype="float32", scale=1.0)
    graph.outputs["again"] = "again"
    return graph


def with_output(graph: Graph) -> Graph:
    graph.outputs["attended"] = output_of(0)
    return graph


def changed(**attrs: object) -> Callable[[Graph], Graph]:
    """The projection of the first attention's result has other attributes."""

    def change(graph: Graph) -> Graph:
        def of(node: Node) -> Node:
            return replace(node, attrs={**node.attrs, **attrs}) if node.inputs.get("x") == output_of(0) else node

        return graph.with_nodes(map(of, graph.nodes))

    return change


def test_what_a_projection_stores_is_stored_behind_attention_too() -> None:
    store = [{"op": "activate", "activation": "gelu"}]
    first, *_ = (n for n in fuse_attention_output(changed(store=store)(encoder())).nodes if "qkv" in n.inputs)
    assert (first.op, first.attr("store")) == ("ragged_attention", store)


@pytest.mark.parametrize(
    "change",
    [
        with_second_reader,
        with_output,
        changed(load=[{"op": "fake_quantize", "scale": 0.5}]),
    ],
    ids=["a second reader", "an output", "a rounded input"],
)
def test_a_projection_of_another_kind_stays_a_step_of_its_own(change: Callable[[Graph], Graph]) -> None:
    graph = fuse_attention_output(change(encoder()))
    assert ["weight" in node.inputs for node in graph.nodes if node.op == "ragged_attention"] == [False, True]
