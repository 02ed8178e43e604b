"""Bundles with several plans, and plans with additional inputs that the caller provides."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_target import compile_plain

from nearfar.compiler.arch import by_model_type
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import EMBED, GENERATE
from nearfar.compiler.formats.checkpoint import Checkpoint
from nearfar.compiler.ir.graph import Graph, Node, Value
from nearfar.compiler.measure.report import make_report
from nearfar.compiler.pipeline import compile as compiler
from nearfar.compiler.pipeline.graphs import graphs_of
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import BundleError, RequestError
from nearfar.compiler.runtime.inputs import require_known_inputs
from nearfar.compiler.runtime.reference import ReferenceRunner

CompileTiny = Callable[..., Path]
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def steered(graph: Graph) -> Graph:
    """The graph with input "steering" (S, E) added to the embedded tokens."""
    graph.inputs["steering"] = Value("steering", graph.shape_of("embedded"), "float32")
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(
            replace(
                node, inputs={role: "steered" if name == "embedded" else name for role, name in node.inputs.items()}
            )
        )
        if "embedded" in node.outputs.values():
            nodes.append(Node("add", {"a": "embedded", "b": "steering"}, {"y": "steered"}))
    return graph.with_nodes(nodes)


@pytest.fixture(scope="module")
def steered_bundle(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    def with_steering(checkpoint: Checkpoint, context: int) -> dict[str, Graph]:
        return {name: steered(graph) for name, graph in graphs_of(checkpoint, context).items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "graphs_of", with_steering)
        return compile_plain(tiny_checkpoints["qwen3"], tmp_path_factory.mktemp("steered") / "bundle", "f32", 64)


def test_an_input_that_a_plan_declares_comes_with_the_batch(
    steered_bundle: Bundle, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    hidden = steered_bundle.manifest.spec.hidden_size
    runner = ReferenceRunner(steered_bundle)
    plain = ReferenceRunner(compile_plain(tiny_checkpoints["qwen3"], tmp_path / "plain", "f32", 64))
    batch = make_batch([Chunk(TOKENS, 0, [0], range(8))], 16)
    unchanged = runner.forward(replace(batch, extra={"steering": np.zeros((8, hidden), np.float32)})).logits
    np.testing.assert_array_equal(unchanged, plain.forward(batch).logits)
    changed = runner.forward(replace(batch, extra={"steering": np.ones((8, hidden), np.float32)})).logits
    assert np.abs(changed - unchanged).max() > 0.01


def test_an_input_that_is_missing_or_of_another_shape_or_dtype_is_named(steered_bundle: Bundle) -> None:
    hidden = steered_bundle.manifest.spec.hidden_size
    runner = ReferenceRunner(steered_bundle)
    batch = make_batch([Chunk(TOKENS, 0, [0], [7])], 16)
    with pytest.raises(
        RequestError, match=rf"the batch lacks input 'steering', \[8, {hidden}\] of float32; pass it in Batch.extra"
    ):
        runner.forward(batch)
    with pytest.raises(
        RequestError,
        match=rf"input 'steering' of the batch is \[7, {hidden}\] of float32; the plan needs \[8, {hidden}\]",
    ):
        runner.forward(replace(batch, extra={"steering": np.zeros((7, hidden), np.float32)}))
    half: Any = np.zeros((8, hidden), np.float16)
    with pytest.raises(RequestError, match=r"of float16; the plan needs .* of float32"):
        runner.forward(replace(batch, extra={"steering": half}))


def test_the_engine_refuses_a_plan_with_an_input_that_it_does_not_provide(
    steered_bundle: Bundle, compile_tiny: CompileTiny
) -> None:
    with pytest.raises(
        BundleError, match="has input 'steering', which this engine does not provide; use a newer nearfar"
    ):
        require_known_inputs(steered_bundle.manifest)
    require_known_inputs(open_bundle(compile_tiny("qwen3", "q4f16")).manifest)


def test_plans_share_weights_states_and_variants(two_plans: Callable[..., Bundle], compile_tiny: CompileTiny) -> None:
    manifest, single = (
        two_plans("webgpu").manifest,
        open_bundle(compile_tiny("qwen3", "q4f16", self_test=False)).manifest,
    )
    assert manifest.plan_names == (GENERATE, EMBED)
    assert manifest.weights == single.weights
    assert manifest.states == single.states
    assert manifest.kernels.keys() == single.kernels.keys() | {
        name for step in manifest.plan(EMBED).steps for row in manifest.variants[step.variants] for name in row.kernels
    }
    generate, embed = ({step.variants for step in manifest.plan(name).steps} for name in (GENERATE, EMBED))
    assert len(generate & embed) >= 5
    assert make_report(manifest).plans == (GENERATE, EMBED)
    with pytest.raises(BundleError, match="qwen3: has no plan 'encode'; it has generate, embed"):
        manifest.plan("encode")


def test_a_name_that_means_two_arrays_is_refused(two_plans: Callable[..., Bundle], tmp_path: Path) -> None:
    folder = shutil.copytree(two_plans("webgpu").path, tmp_path / "bundle")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["plans"]["embed"]["states"]["sampled"]["dtype"] = "float32"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        BundleError,
        match=r"plans: .*'sampled' means different arrays in plans generate, embed; compile the bundle again",
    ):
        open_bundle(folder)


def test_a_plan_beside_another_computes_what_it_does_alone(
    two_plans: Callable[..., Bundle],
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = two_plans("webgpu")
    forward = by_model_type("qwen3").forward
    monkeypatch.setattr(
        compiler, "graphs_of", lambda checkpoint, context: {EMBED: forward(checkpoint.spec, 16, context, embeds=True)}
    )
    alone = compile_plain(tiny_checkpoints["qwen3"], tmp_path / "alone", "q4f16", 256)
    assert bundle.manifest.plan(EMBED).inputs == alone.manifest.plan(EMBED).inputs
    batch = make_batch([Chunk(TOKENS, 0, [0], [7])], 16)
    found, expected = (ReferenceRunner(each, activation="float32").embed(batch) for each in (bundle, alone))
    np.testing.assert_array_equal(found, expected)
