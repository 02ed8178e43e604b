"""Stacks of experts: those of gpt-oss in MXFP4, whose codes stay as they are, and transposed ones of floats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from decoder_families import make_family
from light_bundle import few_kernels, one_compilation
from safetensors.numpy import load_file, save_file

from nearfar.compiler.arch import by_model_type
from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.formats import load
from nearfar.compiler.formats.checkpoint import Checkpoint, StoredMatrix
from nearfar.compiler.formats.gguf.architectures import ARCHITECTURES, relations_of
from nearfar.compiler.formats.gguf.container import read_container
from nearfar.compiler.formats.gguf.tensors import related_tensors
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.stored_forms import keep_stored_forms
from nearfar.compiler.pipeline.weights import check_tensors, read_planes, read_rows

# The values of FP4 (E2M1) by their codes.
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
EXPERTS, SIZE = 5, 64
GATES = "model.layers.1.experts.gate_up.weight"


def in_mxfp4(folder: Path) -> Array:
    """Replace the experts of a checkpoint of gpt-oss by random ones in MXFP4. Returns the gates and what they gate of
    layer 1, (experts, 2 * SIZE, SIZE), whose rows alternate.
    """
    rng, file = np.random.default_rng(0), folder / "model.safetensors"
    tensors = load_file(file)
    gates: Array | None = None
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        rows = 2 * SIZE if name.endswith("gate_up_proj") else SIZE
        codes = rng.integers(0, 16, (EXPERTS, rows, SIZE // 32, 32)).astype(np.uint8)
        scales = rng.integers(120, 128, (EXPERTS, rows, SIZE // 32)).astype(np.uint8)
        del tensors[name]
        tensors[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        tensors[f"{name}_scales"] = scales
        values = np.where(codes & 8, -1, 1) * FP4[codes & 7] * np.exp2(scales.astype(np.float32) - 127)[..., None]
        if name.startswith("model.layers.1.") and rows > SIZE:
            gates = values.reshape(EXPERTS, rows, SIZE).astype(np.float32)
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    section = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": section}))
    assert gates is not None
    return gates


def opened(folder: Path) -> tuple[Checkpoint, Graph]:
    checkpoint = load(str(folder))
    graph = by_model_type(checkpoint.spec.model_type).forward(checkpoint.spec, 16, 64)
    check_tensors(checkpoint, graph.parameters)
    return checkpoint, keep_stored_forms(graph, checkpoint)


def test_experts_in_mxfp4_keep_their_codes_with_gates_before_what_they_gate(tmp_path: Path) -> None:
    make_family("gpt_oss", tmp_path, hidden_size=SIZE, intermediate_size=SIZE)
    gates = in_mxfp4(tmp_path)
    checkpoint, graph = opened(tmp_path)
    parameter = graph.parameters[GATES]
    tensor = checkpoint.tensors["model.layers.1.mlp.experts.gate_up_proj"]
    assert isinstance(tensor, StoredMatrix)
    assert parameter.form == tensor.form.name
    # A part that begins and ends inside an expert.
    planes = read_planes(checkpoint, parameter, 100, 400)
    expected = np.concatenate([gates[:, ::2], gates[:, 1::2]], axis=1).reshape(-1, SIZE)
    assert np.array_equal(tensor.form.unpack(planes, SIZE), expected[100:400])


def test_experts_in_mxfp4_are_exported_with_their_codes(tmp_path: Path) -> None:
    make_family("gpt_oss", tmp_path / "checkpoint", hidden_size=SIZE, intermediate_size=SIZE, head_dim=32)
    in_mxfp4(tmp_path / "checkpoint")
    options = CompileOptions(target="webgpu", context=64, self_test=False)
    with few_kernels(), one_compilation():
        bundle = compile_model(str(tmp_path / "checkpoint"), tmp_path / "bundle", options)
    kinds = export_gguf(bundle, tmp_path / "x.gguf", GgufOptions(tokenizer=False))
    assert kinds["MXFP4"] == 3 * bundle.manifest.spec.num_layers
    container, expected = read_container(tmp_path / "x.gguf"), load(str(tmp_path / "checkpoint")).tensors
    relations = relations_of(ARCHITECTURES["gpt-oss"], bundle.manifest.spec)
    for relation in relations:
        if relation.files[0] in container.tensors and container.tensors[relation.files[0]].type.name == "MXFP4":
            for name, tensor in related_tensors(relation, container).items():
                rows = tensor.shape[0]
                assert np.array_equal(tensor.rows(0, rows), expected[name].rows(0, rows))


def test_transposed_stacks_are_read_by_rows_of_each_expert(tmp_path: Path) -> None:
    make_family("gpt_oss", tmp_path)
    checkpoint, graph = opened(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")["model.layers.1.mlp.experts.gate_up_proj"].transpose(0, 2, 1)
    expected = np.concatenate([stored[:, ::2], stored[:, 1::2]], axis=1).reshape(-1, stored.shape[2])
    assert np.array_equal(read_rows(checkpoint, graph.parameters[GATES], 100, 400), expected[100:400])
    # The router is not rounded.
    assert graph.parameters["model.layers.1.mlp.router.weight"].form == "f32"
