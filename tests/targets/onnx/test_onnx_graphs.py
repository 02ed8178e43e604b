"""Hand-made graphs on ONNX Runtime compared with `ir/ops/`, unchanged and with stacked projections; and graphs that
ONNX cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hand_made_graphs import CONTEXT, LAYERS, PLAIN, TOKENS, Facts, build, tensors_and_logits
from onnx_cases import relative_rms
from onnx_session import Session
from tolerances import ONNX_F32

from nearfar.compiler import quant
from nearfar.compiler.formats.checkpoint import Checkpoint
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec
from nearfar.compiler.passes.stack import stack_gates, stack_siblings
from nearfar.compiler.runtime.errors import RequestError, UnsupportedModel
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.targets.onnx import devices
from nearfar.targets.onnx.cache_scales import largest_of
from nearfar.targets.onnx.decoder import build_decoder
from nearfar.targets.onnx.emitter import Emitter
from nearfar.targets.onnx.genai_config import one_shape
from nearfar.targets.onnx.weights import write_weights

# Only its vocabulary size is read; the other sizes come from the graph.
SPEC = ModelSpec("llama", 37, 1, 1, 1, 1, 2, 1, CONTEXT, 1e-5, RopeSpec(100.0), tie_word_embeddings=False)


@dataclass(frozen=True)
class ArrayTensor:
    """Fulfils `formats.checkpoint.Tensor`."""

    name: str
    values: Array
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def rows(self, start: int, stop: int) -> Array:
        return np.ascontiguousarray(self.values[start:stop])


def emit(graph: Graph, device: str = "cpu") -> Emitter:
    emitter = Emitter(graph, SPEC, devices.by_name(device), quant.by_name("f32"), "float32")
    build_decoder(emitter)
    return emitter


def write_graph(graph: Graph, tensors: Mapping[str, Array], folder: Path, device: str = "cpu") -> Session:
    """The graph as a session."""
    emitter = emit(graph, device)
    checkpoint = Checkpoint(
        folder,
        SPEC,
        {name: ArrayTensor(name, values) for name, values in tensors.items()},
        TokenizerFiles(folder / "none", b"{}"),
    )
    model = folder / "onnx/model.onnx"
    model.parent.mkdir(parents=True)
    stored = list(emitter.stored.values())
    weights = write_weights(checkpoint, graph.parameters, stored, quant.by_name("f32"), model, lambda *_: None)
    model.write_bytes(emitter.builder.model(weights).SerializeToString())
    return Session(folder)


def assert_logits(session: Session, expected: Array, chunk: int) -> None:
    session.cache = {}
    for start in range(0, len(TOKENS), chunk):
        stop = min(start + chunk, len(TOKENS))
        assert relative_rms(session.run([TOKENS[start:stop]])[0], expected[stop - 1]) < ONNX_F32, (chunk, start)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_logits_are_those_of_the_ops(name: str, stacked: bool, tmp_path: Path) -> None:
    graph = build(LAYERS[name])
    tensors, expected = tensors_and_logits(graph)
    session = write_graph(stack_siblings(stack_gates(graph)) if stacked else graph, tensors, tmp_path)
    for chunk in (1, 6):
        assert_logits(session, expected, chunk)


@pytest.mark.parametrize(
    "name", ["norms of two eps", "queries normed, keys not", "norms without rotation", "keys of another table"]
)
def test_a_device_whose_attention_norms_heads_is_given_no_norms_that_differ(name: str, tmp_path: Path) -> None:
    """The attention op for CPUs, which does not normalize heads, can then run the graph."""
    graph = build(LAYERS[name][:1])
    tensors, expected = tensors_and_logits(graph)
    assert_logits(write_graph(graph, tensors, tmp_path, "webgpu"), expected, 6)


def test_rotations_and_norms_are_fused_into_the_attention_if_it_supports_both() -> None:
    for name, device, rotations, inputs in (
        ("scale, window", "cpu", 0, 9),
        ("odd part of a head rotated", "cpu", 2, 7),
        ("part of a head rotated", "cpu", 0, 9),
        ("norms of one eps", "webgpu", 0, 16),
        ("norms of two eps", "webgpu", 0, 9),
        ("sinks", "webgpu", 0, 12),
    ):
        nodes = emit(build(LAYERS[name][:1]), device).builder.nodes
        assert sum(node.op_type == "RotaryEmbedding" for node in nodes) == rotations, name
        assert [len(node.input) for node in nodes if node.op_type == "GroupQueryAttention"] == [inputs], name


def test_attention_that_the_kernels_do_not_compute_is_refused() -> None:
    with pytest.raises(
        UnsupportedModel, match="attention with softcap, which ONNX Runtime's kernel for this device ignores"
    ):
        emit(build(LAYERS["softcap"]), "webgpu")
    with pytest.raises(RequestError, match="heads have 12 elements"):
        emit(build([Facts(head_dim=12, q_rotated=12, k_rotated=12)]))
    graph = build([PLAIN])
    alone = [node for node in graph.nodes if node.op != "append_kv"]
    with pytest.raises(UnsupportedModel, match="appends no keys and values of its own"):
        emit(graph.with_nodes(alone))
    unread = next(node for node in graph.nodes if node.op == "append_kv")
    twice = [*graph.nodes[:-4], unread, *graph.nodes[-4:]]
    with pytest.raises(
        UnsupportedModel, match=r"no attention follows the keys and values appended to layers\.0\.attn\.kv"
    ):
        emit(graph.with_nodes(twice))


def test_layers_of_other_sizes_are_refused_for_the_frameworks_that_allocate_all_layers_alike() -> None:
    assert one_shape(build([PLAIN, PLAIN])) == (2, 16)
    with pytest.raises(
        UnsupportedModel, match=r"layers differ in their keys and values \(1 kv heads of 16 elements, 3 kv heads of 8"
    ):
        one_shape(build(LAYERS["layers of other sizes"]))


def test_only_rotated_channels_share_the_magnitude_of_their_pair() -> None:
    cache = np.array([[[[3.0, -1.0, 4.0, 1.0, 5.0, -9.0]]]], np.float32)
    assert largest_of(cache, 0).ravel().tolist() == [3, 1, 4, 1, 5, 9]
    assert largest_of(cache, 4).ravel() == pytest.approx([5, 2**0.5, 5, 2**0.5, 5, 9])
