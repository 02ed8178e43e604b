"""Checkpoints of AutoRound, torchao, Model Optimizer and MXFP4: weights as the formats' own equations give them in
torch, the logits that transformers computes with these, and tensors that we refuse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quantized_families import logits_of, logits_with, make_quantized
from safetensors.torch import load_file, save_file
from tolerances import relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.formats.checkpoint import StoredMatrix
from nearfar.compiler.formats.small_floats import FP4_CODES
from nearfar.compiler.runtime.errors import CheckpointError, QuantizationError, UnsupportedModel

Parts = dict[str, torch.Tensor]
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def random(shape: tuple[int, ...], high: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=torch.int64)


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack((packed & 15, packed >> 4), dim=-1).reshape(*packed.shape[:-1], -1).long()


def words(codes: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """(R, C) codes of 4 bits as int32 (R, C / 8), of which nibble i is the code ``order[i]``."""
    eights = codes.reshape(len(codes), -1, 8)[..., list(order)]
    joined = (eights << (4 * torch.arange(8))).sum(dim=-1)
    return torch.where(joined >= 2**31, joined - 2**32, joined).to(torch.int32)


def auto_round(packing: str) -> Callable[[int, int], tuple[Parts, torch.Tensor]]:
    def make(rows: int, columns: int) -> tuple[Parts, torch.Tensor]:
        """auto_round_extension/torch/qlinear_torch.py and qlinear_torch_zp.py; awq/utils/packing_utils.py."""
        group = 32
        codes, zeros = random((columns, rows), 16), random((columns // group, rows), 16)
        scales = ((torch.rand(columns // group, rows) + 0.5) / (16 * columns**0.5)).half()
        weight = (codes - zeros.repeat_interleave(group, 0)) * scales.float().repeat_interleave(group, 0)
        if packing == "auto_round:auto_awq":
            order = (0, 2, 4, 6, 1, 3, 5, 7)
            parts = {"qweight": words(codes, order), "qzeros": words(zeros, order)}
        else:
            stored = (zeros - 1) & 15 if packing == "auto_round:auto_gptq" else zeros
            parts = {"qweight": words(codes.T).T, "qzeros": words(stored)}
        return {**parts, "scales": scales}, weight.T

    return make


def torchao_int4(rows: int, columns: int) -> tuple[Parts, torch.Tensor]:
    """torchao's Int4Tensor; scales and zero points are in the model's dtype."""
    group = 64
    qdata = random((rows, columns // 2), 256).to(torch.uint8)
    scale = ((torch.rand(columns // group, rows) + 0.5) / (16 * columns**0.5)).bfloat16()
    zero = (torch.randn(columns // group, rows) / (8 * columns**0.5)).bfloat16()
    signed = nibbles(qdata)
    signed = torch.where(signed > 7, signed - 16, signed)
    each = [part.float().T.repeat_interleave(group, 1) for part in (scale, zero)]
    return {"_weight_qdata": qdata, "_weight_scale": scale, "_weight_zero_point": zero}, signed * each[0] + each[1]


def torchao_intx(rows: int, columns: int) -> tuple[Parts, torch.Tensor]:
    """torchao's IntxUnpackedToInt8Tensor of torch.int3."""
    group = 32
    qdata = random((rows, columns), 4, -4).to(torch.int8)
    scale = (torch.rand(rows, columns // group) + 0.5) / (8 * columns**0.5)
    zero = random((rows, columns // group), 3, -3).to(torch.int8)
    each = [part.repeat_interleave(group, 1) for part in (scale, zero)]
    parts = {"_weight_qdata": qdata, "_weight_scale": scale, "_weight_zero_point": zero}
    return parts, (qdata.float() - each[1].float()) * each[0]


def nvfp4(rows: int, columns: int) -> tuple[Parts, torch.Tensor]:
    """modelopt/torch/quantization/qtensor/nvfp4_tensor.py."""
    packed = random((rows, columns // 2), 256).to(torch.uint8)
    scale = (torch.rand(rows, columns // 16) * 400 + 1).to(torch.float8_e4m3fn)
    whole = torch.tensor(1 / (1200 * columns**0.5))
    weight = FP4[nibbles(packed)] * (scale.float() * whole).repeat_interleave(16, 1)
    parts = {"weight": packed, "weight_scale": scale, "weight_scale_2": whole, "input_scale": torch.tensor(0.01)}
    return parts, weight


def modelopt_fp8(rows: int, columns: int) -> tuple[Parts, torch.Tensor]:
    weight = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scale = torch.tensor(1 / columns**0.5)
    return {"weight": weight, "weight_scale": scale, "input_scale": torch.tensor(0.01)}, weight.float() * scale


def mxfp4(rows: int, columns: int) -> tuple[Parts, torch.Tensor]:
    """As transformers unpacks the experts of gpt-oss."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = random((rows, columns // 32, 16), 256).to(torch.uint8)
    scales = random((rows, columns // 32), 124, 120).to(torch.uint8)
    weight = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0].T
    return {"weight_blocks": blocks, "weight_scales": scales}, weight.contiguous()


def intx_metadata(name: str) -> str:
    data = {"target_dtype": {"_type": "torch.dtype", "_data": "int3"}, "block_size": [1, 32]}
    return json.dumps({"_type": "IntxUnpackedToInt8Tensor", "_data": data, "_tensor_data_names": [name]})


def int4_metadata(name: str) -> str:
    return json.dumps({"_type": "Int4Tensor", "_data": {"block_size": [1, 64]}, "_tensor_data_names": [name]})


GPTQ = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "data_type": "int", "iters": 200}
# The section, the tensors of a module with the weight that they mean, the metadata of a weight, and its form.
CASES: Mapping[str, tuple[dict[str, Any], Callable[[int, int], tuple[Parts, torch.Tensor]], Any, str]] = {
    **{
        packing: ({**GPTQ, "packing_format": packing}, auto_round(packing), None, "q4g32z_f16")
        for packing in ("auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:auto_awq")
    },
    "torchao int4": ({"quant_method": "torchao", "quant_type": {"default": {}}}, torchao_int4, int4_metadata, "q4g64b"),
    "torchao intx": ({"quant_method": "torchao", "quant_type": {"default": {}}}, torchao_intx, intx_metadata, "q3g32z"),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, nvfp4, None, "q5g16"),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, modelopt_fp8, None, "F8_E4M3"),
    "mxfp4": ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, mxfp4, None, "q5g32"),
}  # fmt: skip


def write(folder: Path, name: str, model: str = "llama") -> Mapping[str, torch.Tensor]:
    """Write a checkpoint whose projections are random integers. Returns the weights that these mean."""
    config, make, metadata, _ = CASES[name]
    weights: Parts = {}

    def quantize(module: str, weight: torch.Tensor) -> Parts:
        parts, weights[f"{module}.weight"] = make(*weight.shape)
        return parts

    torch.manual_seed(len(name))
    make_quantized(model, folder, quantize, config)
    if metadata is not None:
        described = {module: metadata(module) for module in weights}
        save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors", {"format": "pt", **described})
    return weights


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("model", ["llama", "phi3"])
def test_weights_and_logits_are_those_of_the_formats_equations(name: str, model: str, tmp_path: Path) -> None:
    weights = write(tmp_path, name, model)
    checkpoint = load(str(tmp_path))
    assert set(checkpoint.stored_forms) == {CASES[name][3]}
    for module, expected in weights.items():
        found = checkpoint.tensors[module]
        # Given codes pass through unchanged; 8-bit floats fit no kernel's format.
        assert isinstance(found, StoredMatrix) == (name != "modelopt fp8")
        np.testing.assert_allclose(found.rows(0, len(expected)), expected.numpy(), rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(found.rows(3, 9), found.rows(0, len(expected))[3:9])
    assert relative_error(logits_of(tmp_path), logits_with(weights, tmp_path)) < 1e-4
    assert any("8-bit floats become float16" in note for note in checkpoint.notes) == (name == "modelopt fp8")


def test_the_values_of_fp4_are_those_of_the_standard() -> None:
    np.testing.assert_array_equal((FP4_CODES.astype(np.float32) - 16) / 2, FP4.numpy())


def test_modules_of_auto_round_have_their_own_bits(tmp_path: Path) -> None:
    extra = {"model.layers.0.mlp.down_proj": {"bits": 8, "group_size": -1}, ".*v_proj": {"bits": 16}}
    config = {**GPTQ, "packing_format": "auto_round:auto_gptq", "extra_config": extra}
    expected: Parts = {}

    def quantize(module: str, weight: torch.Tensor) -> Parts:
        rows, columns = weight.shape
        if module.endswith("v_proj"):
            return {"weight": weight}
        if module != "model.layers.0.mlp.down_proj":
            parts, _ = auto_round("auto_round:auto_gptq")(rows, columns)
            return parts
        codes, scales = random((columns, rows), 256).to(torch.uint8), (torch.rand(1, rows) + 0.5).half()
        expected[module] = (codes.float() - 128).T * scales.float().T
        zeros = torch.full((1, rows), 127, dtype=torch.uint8)
        packed = codes.T.contiguous().view(torch.int32).T
        return {"qweight": packed, "qzeros": zeros.view(torch.int32), "scales": scales}

    make_quantized("llama", tmp_path, quantize, config)
    tensors = load(str(tmp_path)).tensors
    for module, weight in expected.items():
        np.testing.assert_array_equal(tensors[f"{module}.weight"].rows(0, len(weight)), weight.numpy())
    assert {tensor.form.name for tensor in tensors.values() if isinstance(tensor, StoredMatrix)} == {
        "q4g32z_f16",
        "q8cz_f16",
    }


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        (
            "auto_round:auto_gptq",
            {"packing_format": "auto_round:llm_compressor"},
            "'packing_format' is 'auto_round:llm",
        ),
        ("auto_round:auto_gptq", {"data_type": "mx_fp"}, "'data_type' is 'mx_fp'"),
        ("auto_round:auto_gptq", {"act_bits": 8}, "'act_bits' is 8"),
        ("auto_round:auto_awq", {"bits": 8}, "'bits' is 8"),
        ("auto_round:auto_awq", {"extra_config": {"a": {"bits": 8}}}, "another bits or group"),
        ("nvfp4", {"quant_algo": "W4A16_AWQ"}, "'quant_algo' is 'W4A16_AWQ'"),
        ("mxfp4", {"odd": 1}, "unknown key 'odd'"),
        ("torchao int4", {"odd": 1}, "unknown key 'odd'"),
    ],
)
def test_configurations_of_other_layouts_are_refused(
    name: str, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, name)
    values = json.loads((tmp_path / "config.json").read_text())
    values["quantization_config"].update(config)
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UnsupportedModel, match=message):
        load(str(tmp_path))


PROJECTION = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("nvfp4", {"weight_scale": torch.ones(3, 2).to(torch.float8_e4m3fn)}, CheckpointError, "expected F8_E4M3"),
        ("nvfp4", {"weight_scale": None}, CheckpointError, "weight_scale is missing"),
        ("nvfp4", {"pre_quant_scale": torch.ones(128)}, UnsupportedModel, "multiplies the module's input"),
        ("mxfp4", {"weight_scales": None}, CheckpointError, "weight_scales is missing"),
        (
            "mxfp4",
            {"weight_blocks": torch.zeros(2, 3, 4, 16, dtype=torch.uint8)},
            CheckpointError,
            r"expected U8 of \[2, 3, 4\]",
        ),
        ("torchao int4", {"_weight_scale": None}, CheckpointError, "_weight_scale is missing"),
        ("torchao int4", {"_weight_act_pre_scale": torch.ones(1)}, UnsupportedModel, "Int4Tensor with act_pre_scale"),
        ("torchao int4", {"_weight_scale": torch.ones(3, 128)}, CheckpointError, "expected F32"),
    ],
)
def test_damaged_tensors_are_named(
    name: str, change: dict[str, torch.Tensor | None], error: type[Exception], message: str, tmp_path: Path
) -> None:
    write(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors")
    metadata = CASES[name][2]
    described = {} if metadata is None else {f"{PROJECTION}.weight": metadata("x")}
    for kind, tensor in change.items():
        if tensor is None:
            del tensors[f"{PROJECTION}.{kind}"]
        else:
            tensors[f"{PROJECTION}.{kind}"] = tensor
    for other in [module for module in tensors if "_proj" in module and not module.startswith(PROJECTION)]:
        del tensors[other]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt", **described})
    with pytest.raises(error, match=message):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "metadata do not describe"),
        ({f"{PROJECTION}.weight": "[]"}, "metadata do not describe"),
        (
            {"model.layers.0.mlp.down_proj.weight": '{"_type": "Int4Tile", "_data": {}}'},
            "torchao's class Int4Tile",
        ),
    ],
)
def test_classes_of_torchao_that_are_not_known_are_named(
    metadata: dict[str, str], message: str, tmp_path: Path
) -> None:
    write(tmp_path, "torchao int4")
    save_file(load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors", {"format": "pt", **metadata})
    with pytest.raises(CheckpointError, match=message):
        load(str(tmp_path))


def test_integers_of_more_bits_than_stated_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "torchao intx")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{PROJECTION}._weight_qdata"][0, 0] = 4
    described = {
        f"{name.removesuffix('._weight_qdata')}.weight": intx_metadata("x") for name in tensors if "qdata" in name
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt", **described})
    with pytest.raises(QuantizationError, match="integers of more than 3 bits"):
        load(str(tmp_path)).tensors[f"{PROJECTION}.weight"].rows(0, 1)


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: name.replace("model.layers.0.", "model.layers.0._orig_mod."),
        lambda name: f"base_model.model.{name}",
        lambda name: f"module._orig_mod.base_model.model.{name}",
    ],
    ids=["compiled", "compiled layer", "peft", "all"],
)
def test_names_with_the_wrappers_of_a_training_are_those_of_the_model(
    rename: Callable[[str], str], tmp_path: Path
) -> None:
    weights = write(tmp_path, "nvfp4")
    expected = logits_with(weights, tmp_path)
    tensors = {rename(name): tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert relative_error(logits_of(tmp_path), expected) < 1e-4


def test_adapters_that_are_not_merged_and_names_that_collide_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "nvfp4")
    tensors = load_file(tmp_path / "model.safetensors")
    layer = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"
    save_file({**tensors, layer: torch.ones(2, 2)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"adapters are not merged; merge them \(model.merge_and_unload"):
        load(str(tmp_path))
    twice = {**tensors, "_orig_mod.model.norm.weight": torch.ones(128)}
    save_file(twice, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"are both model\.norm\.weight without wrappers"):
        load(str(tmp_path))
