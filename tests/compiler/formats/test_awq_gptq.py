"""AWQ and GPTQ checkpoints: the weights that onnxruntime-genai unpacks, the logits that transformers computes with
these, and configurations that we refuse.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from decoder_families import TOKENS, make_family
from onnx_cases import relative_rms
from quantized_families import (
    MODELS,
    logits_of,
    logits_with,
    make_quantized,
    quantize_projections,
    transformers_logits,
    write_quantization,
)
from safetensors.torch import load_file, save_file
from tiny_adapters import MLP, SELF_ATTENTION, logits_with_adapter, make_adapter
from tolerances import F16, ONNX_INT8_MODEL, relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.formats.checkpoint import StoredMatrix
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.stored_forms import choose_quantization
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import CheckpointError, QuantizationError, RequestError, UnsupportedModel
from nearfar.compiler.runtime.runner import Limits

pytestmark = pytest.mark.skipif(find_spec("onnxruntime_genai") is None, reason="onnxruntime_genai is not installed")

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False, "damp_percent": 0.1}
# The configuration of each name, and whether its groups may be in any order.
CASES: Mapping[str, tuple[dict[str, Any], bool]] = {
    "awq": (AWQ, False),
    "gptq4": (GPTQ, False),
    "gptq8_row": ({**GPTQ, "bits": 8, "group_size": -1, "checkpoint_format": "gptq"}, False),
    "gptq2_ordered": ({**GPTQ, "bits": 2, "desc_act": True}, True),
}
FORMS = {"awq": {"q4g64z_f16"}, "gptq4": {"q4g32z_f16"}, "gptq8_row": {"q8cz_f16"}, "gptq2_ordered": {"q2 reordered"}}


def random_words(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32)


def quantized(rows: int, columns: int, config: dict[str, Any], ordered: bool) -> dict[str, torch.Tensor]:
    """Random tensors for one module."""
    bits = config["bits"]
    group = columns if config["group_size"] == -1 else config["group_size"]
    groups = columns // group
    scales = (torch.rand(groups, rows) + 0.5) / (2**bits * columns**0.5)
    awq = config["quant_method"] == "awq"
    tensors = {
        "qweight": random_words((columns, rows // 8) if awq else (columns * bits // 32, rows)),
        "qzeros": random_words((groups, rows * bits // 32)),
        "scales": scales.half(),
    }
    if not awq:
        index = torch.arange(columns) // group
        tensors["g_idx"] = (index[torch.randperm(columns)] if ordered else index).to(torch.int32)
    return tensors


def unpacked(tensors: dict[str, torch.Tensor], config: dict[str, Any], rows: int, columns: int) -> torch.Tensor:
    """The weight (rows, columns) as onnxruntime-genai reads it."""
    from onnxruntime_genai.models.loaders.awq import AWQModel
    from onnxruntime_genai.models.loaders.gptq import GPTQModel

    group = columns if config["group_size"] == -1 else config["group_size"]
    awq = config["quant_method"] == "awq"
    index = torch.arange(columns) // group if awq else tensors["g_idx"].long()
    module = SimpleNamespace(
        **{**tensors, "g_idx": index}, bits=config["bits"], group_size=group, in_features=columns, out_features=rows
    )
    module.qweight, module.qzeros = module.qweight.clone(), module.qzeros.clone()
    reader = object.__new__(AWQModel if awq else GPTQModel)
    if not awq:
        reader.prepare_quantized_tensor(module)
    reader.unpack_qweight(module)
    reader.unpack_qzeros(module)
    weight: torch.Tensor = (module.qweight.float() - module.qzeros.float()[index]) * module.scales.float()[index]
    return weight.T.contiguous()


def make(folder: Path, config: dict[str, Any], ordered: bool, model: str = "llama") -> Mapping[str, torch.Tensor]:
    """Write a checkpoint whose projections are quantized at random. Returns the weights that onnxruntime-genai
    unpacks.
    """
    weights: dict[str, torch.Tensor] = {}

    def quantize(module: str, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        rows, columns = weight.shape
        parts = quantized(rows, columns, config, ordered)
        weights[f"{module}.weight"] = unpacked(parts, config, rows, columns)
        return parts

    torch.manual_seed(len(json.dumps(config)))
    make_quantized(model, folder, quantize, config)
    return weights


@pytest.mark.parametrize(
    ("name", "model"),
    [
        *(("awq", model) for model in MODELS),
        ("gptq4", "qwen3"),
        ("gptq4", "phi3"),
        ("gptq8_row", "gemma3"),
        ("gptq2_ordered", "llama"),
    ],
)
def test_logits_are_those_of_the_weights_that_another_reader_unpacks(name: str, model: str, tmp_path: Path) -> None:
    weights = make(tmp_path, *CASES[name], model)
    checkpoint = load(str(tmp_path))
    assert set(checkpoint.stored_forms) == FORMS[name]
    assert any("not in the order of their groups" in note for note in checkpoint.notes) == CASES[name][1]
    assert relative_error(logits_of(tmp_path), logits_with(weights, tmp_path)) < 1e-4


@pytest.mark.parametrize("name", ["awq", "gptq4", "gptq2_ordered"])
def test_adapters_add_to_the_weights_that_another_reader_unpacks(name: str, tmp_path: Path) -> None:
    weights = make(tmp_path / "model", *CASES[name])
    deltas = make_adapter(tmp_path / "a", tmp_path / "model", SELF_ATTENTION + MLP, rank=2, alpha=4, seed=1)
    changed = {
        f"{module}.weight": weights[f"{module}.weight"] + torch.tensor(delta) for module, delta in deltas.items()
    }
    # The bundle has the embedding as float16.
    found = logits_with_adapter(tmp_path / "model", tmp_path / "a", tmp_path / "bundle", TOKENS)
    assert relative_error(found, logits_with(changed, tmp_path / "model")) < F16
    assert changed.keys() == weights.keys()


@pytest.mark.parametrize("name", ["awq", "gptq4"])
def test_every_expert_has_codes_of_its_own_beside_a_router_of_floats(name: str, tmp_path: Path) -> None:
    import transformers

    config, ordered = CASES[name]
    sizes = {"hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64, "head_dim": 32}
    make_family("qwen3_moe", tmp_path / "floats", num_attention_heads=4, num_key_value_heads=2, **sizes)
    shutil.copytree(tmp_path / "floats", tmp_path / "codes")
    weights = load_file(tmp_path / "floats" / "model.safetensors")

    def quantize(module: str, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        rows, columns = weight.shape
        parts = quantized(rows, columns, config, ordered)
        weights[f"{module}.weight"] = unpacked(parts, config, rows, columns)
        return parts

    quantize_projections(tmp_path / "codes", quantize)
    write_quantization(tmp_path / "codes", config)
    save_file(weights, tmp_path / "floats" / "model.safetensors", {"format": "pt"})
    assert set(load(str(tmp_path / "codes")).stored_forms) == FORMS[name]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "floats", dtype=torch.float32)
    model.set_experts_implementation("eager")
    assert relative_error(logits_of(tmp_path / "codes"), transformers_logits(model)) < 1e-4


@pytest.mark.parametrize("target", ["onnx", "mlx"])
def test_other_frameworks_compute_with_zero_points(target: str, tmp_path: Path) -> None:
    pytest.importorskip({"mlx": "mlx.core", "onnx": "onnxruntime"}[target])
    weights = make(tmp_path / "model", *CASES["awq"])
    options = CompileOptions(target=target, context=64, activations=("float32",))
    bundle = compile_any(str(tmp_path / "model"), tmp_path / "bundle", options)
    runner = open_runner(target, bundle, Limits(tokens=64, sequences=1, rows=64, pages=2))
    batch = make_batch([Chunk(TOKENS, 0, [0], range(len(TOKENS)))], 64)
    found = np.array(runner.forward(batch).logits)
    runner.close()
    # ONNX Runtime rounds the inputs of its products to 8 bits. The embedding and the head become float16.
    assert relative_rms(found, logits_with(weights, tmp_path / "model")) < (
        ONNX_INT8_MODEL if target == "onnx" else 2e-3
    )


def test_reordered_columns_are_not_rounded_again_unless_requested(tmp_path: Path) -> None:
    make(tmp_path, *CASES["gptq2_ordered"])
    checkpoint = load(str(tmp_path))
    notes: list[str] = []
    assert choose_quantization(None, checkpoint, notes.append)[0].name == "f16"
    assert re.search(r"matrices of q2 reordered become f16, which changes their weights by 0\.00\d+ of", notes.pop())
    assert choose_quantization("q4f16", checkpoint, notes.append, requantize=True)[0].name == "q4f16"
    assert re.search(r"matrices of q2 reordered become q4f16, which changes their weights by 0\.\d+ of", notes.pop())
    with pytest.raises(RequestError, match=r"--quantization q4f16: .* quantized \(q2 reordered\)"):
        choose_quantization("q4f16", checkpoint, notes.append)


@pytest.mark.parametrize("name", ["awq", "gptq4"])
def test_blocks_of_rows_are_parts_of_the_matrix(name: str, tmp_path: Path) -> None:
    make(tmp_path, *CASES[name])
    matrix = load(str(tmp_path)).tensors["model.layers.1.mlp.gate_proj.weight"]
    assert isinstance(matrix, StoredMatrix)
    whole = matrix.rows(0, 256)
    for start, stop in ((0, 1), (3, 77), (129, 131), (255, 256)):
        np.testing.assert_array_equal(matrix.rows(start, stop), whole[start:stop])


def symmetric(version_2: bool) -> Callable[[dict[str, torch.Tensor]], None]:
    word = 0x88888888 if version_2 else 0x77777777
    value = word - (1 << 32) if word >= 1 << 31 else word

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.endswith("qzeros"):
                tensor.fill_(value)

    return change


@pytest.mark.parametrize("version_2", [False, True])
def test_symmetric_codes_need_no_zero_points_and_the_version_is_checked(version_2: bool, tmp_path: Path) -> None:
    config = {**GPTQ, "sym": True, "checkpoint_format": "gptq_v2" if version_2 else "gptq"}
    make(tmp_path, config, False)
    tensors = load_file(tmp_path / "model.safetensors")
    symmetric(version_2)(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = load(str(tmp_path))
    assert set(checkpoint.stored_forms) == {"q4g32_f16"}
    checkpoint.tensors["model.layers.0.mlp.up_proj.weight"].rows(0, 9)
    write_quantization(tmp_path, {**config, "checkpoint_format": "gptq" if version_2 else "gptq_v2"})
    with pytest.raises(QuantizationError, match="zero points other than 8, though 'quantization_config' says"):
        load(str(tmp_path)).tensors["model.layers.0.mlp.up_proj.weight"].rows(0, 9)


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({**AWQ, "version": "gemv"}, UnsupportedModel, "'version' is 'gemv'"),
        ({**AWQ, "zero_point": False}, UnsupportedModel, "'zero_point' is false"),
        ({**AWQ, "bits": 8}, UnsupportedModel, "'bits' is 8"),
        ({**AWQ, "group_size": 128}, CheckpointError, r"down_proj.qzeros has dtype I32 and shape \[4, 16\]; expected"),
        ({**AWQ, "rotation": "hadamard"}, UnsupportedModel, "unknown key 'rotation'"),
        ({**AWQ, "quant_method": "vptq"}, UnsupportedModel, "method 'vptq'"),
    ],
)
def test_another_layout_is_refused_by_name(
    config: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    make(tmp_path, AWQ, False)
    write_quantization(tmp_path, config)
    with pytest.raises(error, match=words):
        load(str(tmp_path))


def test_a_group_that_does_not_exist_is_named(tmp_path: Path) -> None:
    make(tmp_path, GPTQ, False)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.g_idx"][5] = 4
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"up_proj\.g_idx has groups from 0 to 4, and there are 4"):
        load(str(tmp_path))


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    make(tmp_path, AWQ, False)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.0.self_attn.k_proj.qzeros"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"k_proj\.qzeros is missing"):
        load(str(tmp_path))


def test_columns_that_are_no_groups_are_named(tmp_path: Path) -> None:
    make(tmp_path, AWQ, False)
    tensors, name = load_file(tmp_path / "model.safetensors"), "model.layers.0.mlp.down_proj.qweight"
    save_file({**tensors, name: tensors[name][:96].clone()}, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"down_proj\.qweight has 96 columns, which are no groups of 64 \(.*'group_size'"
    ):
        load(str(tmp_path))
