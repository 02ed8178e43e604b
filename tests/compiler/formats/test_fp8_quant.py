"""Checkpoints of 8-bit floats: the values of torch, the logits of transformers, and tensors that we refuse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quantized_families import logits_of, make_quantized, transformers_logits
from safetensors.torch import save_file
from tolerances import relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.formats.config import ConfigReader
from nearfar.compiler.formats.fp8_quant import read_quantization
from nearfar.compiler.formats.safetensors_file import read_safetensors
from nearfar.compiler.formats.small_floats import powers_of_two
from nearfar.compiler.ir.e4m3 import VALUES as E4M3_VALUES
from nearfar.compiler.pipeline.stored_forms import choose_quantization
from nearfar.compiler.quant import by_name
from nearfar.compiler.runtime.errors import CheckpointError, QuantizationError, UnsupportedModel

FP8: Mapping[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
STATIC = {**FP8, "activation_scheme": "static", "weight_block_size": None}
# For each model: the section, the rows and columns that share a scale, and the scales' dtype.
CHECKPOINTS: Mapping[str, tuple[Mapping[str, Any], tuple[int, int] | None, torch.dtype]] = {
    "llama": (FP8, (128, 128), torch.float32),
    "qwen3": ({**STATIC, "modules_to_not_convert": ["lm_head"]}, None, torch.bfloat16),
    "gemma3": ({**FP8, "weight_block_size": [32, 64]}, (32, 64), torch.bfloat16),
    "phi3": ({**FP8, "scale_fmt": "ue8m0", "fmt": "e4m3"}, (128, 128), torch.uint8),
}


def rounded(weight: torch.Tensor, block: tuple[int, int] | None, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A weight (N, K) as 8-bit floats, and its scales."""
    rows, columns = weight.shape
    height, width = block or weight.shape
    grid = -(-rows // height), -(-columns // width)
    scale = (torch.rand(grid) + 0.5) * weight.abs().max() / 300
    if dtype == torch.uint8:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    scale = scale if dtype == torch.uint8 else scale.to(dtype).float()
    each = scale.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :columns]
    stored = scale if dtype != torch.uint8 else torch.log2(scale) + 127
    return {
        "weight": (weight / each).to(torch.float8_e4m3fn),
        "weight_scale_inv": (stored if block else stored[0, 0]).to(dtype),
    }


def expected_weight(parts: Mapping[str, torch.Tensor], height: int, width: int) -> torch.Tensor:
    rows, columns = parts["weight"].shape
    scale = parts["weight_scale_inv"].float()
    each = scale.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :columns]
    return parts["weight"].float() * each


def test_values_of_all_bytes_are_those_of_torch() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(E4M3_VALUES, every.view(torch.float8_e4m3fn).float().numpy())
    np.testing.assert_array_equal(powers_of_two(every.numpy()), every.view(torch.float8_e8m0fnu).float().numpy())


@pytest.mark.parametrize("model", CHECKPOINTS)
def test_logits_are_those_of_transformers(model: str, tmp_path: Path) -> None:
    import transformers

    config, block, dtype = CHECKPOINTS[model]

    def quantize(_: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = rounded(weight, block, dtype)
        return {**parts, "activation_scale": torch.tensor(0.1)} if config["activation_scheme"] == "static" else parts

    make_quantized(model, tmp_path, quantize, config)
    reader = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert relative_error(logits_of(tmp_path), transformers_logits(reader)) < 1e-4


def open_module(folder: Path, parts: Mapping[str, torch.Tensor], config: Mapping[str, Any] = FP8) -> Any:
    save_file({f"x.{kind}": part.contiguous() for kind, part in parts.items()}, folder / "x.safetensors")
    tensors = read_safetensors(folder / "x.safetensors")
    return read_quantization(ConfigReader(config)).read_tensors(tensors, tied=False)


@pytest.mark.parametrize(("height", "width"), [(16, 64), (1, 192), (37, 192), (128, 128)])
def test_blocks_may_end_at_any_row_and_column(height: int, width: int, tmp_path: Path) -> None:
    parts = rounded(torch.randn(37, 192), (height, width), torch.float32)
    matrix = open_module(tmp_path, parts, {**FP8, "weight_block_size": [height, width]}).tensors["x.weight"]
    np.testing.assert_array_equal(matrix.rows(0, 37), expected_weight(parts, height, width).numpy())
    for start, stop in ((0, 1), (5, 33), (36, 37)):
        np.testing.assert_array_equal(matrix.rows(start, stop), matrix.rows(0, 37)[start:stop])


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((37, 1), {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}),
        ((37,), {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}),
    ],
)
def test_scales_of_rows_have_another_name_in_other_checkpoints(
    shape: tuple[int, ...], config: Mapping[str, Any], tmp_path: Path
) -> None:
    parts = rounded(torch.randn(37, 192), (1, 192), torch.float32)
    renamed = {
        "weight": parts["weight"],
        "weight_scale": parts["weight_scale_inv"].reshape(shape),
        "input_scale": torch.tensor(0.5),
        "k_scale": torch.tensor(0.5),
    }
    read = open_module(tmp_path, renamed, config)
    assert list(read.tensors) == ["x.weight"]
    assert "keys and values are not rounded" in read.notes[-1]
    np.testing.assert_array_equal(read.tensors["x.weight"].rows(0, 37), expected_weight(parts, 1, 192).numpy())


def test_float16_holds_the_weights_and_8_bits_are_a_choice(tmp_path: Path) -> None:
    make_quantized("llama", tmp_path, lambda _, weight: rounded(weight, (128, 128), torch.float32), FP8)
    checkpoint = load(str(tmp_path))
    assert any("14 matrices of 8-bit floats become float16" in note for note in checkpoint.notes)
    notes: list[str] = []
    quantization, keeps = choose_quantization(None, checkpoint, notes.append)
    assert (quantization.name, keeps) == ("f16", True)
    assert "14 matrices of F8_E4M3 become f16, which changes their weights by 0.0" in notes[0]
    weights = checkpoint.tensors["model.layers.0.mlp.down_proj.weight"].rows(0, 128)
    for name, limit in (("f16", 2**-11), ("q8f16", 0.01)):
        form = by_name(name)
        error = form.unpack(form.pack(weights), weights.shape[1]) - weights
        assert np.linalg.norm(error) / np.linalg.norm(weights) < limit


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({**FP8, "fmt": "e5m2"}, UnsupportedModel, "'fmt' is 'e5m2'"),
        ({**FP8, "rotation": 3}, UnsupportedModel, "unknown key 'rotation'"),
        ({**FP8, "weight_block_size": [128]}, CheckpointError, r"'weight_block_size' is \[128\], expected two sizes"),
        ({**FP8, "weight_block_size": [16, 128]}, CheckpointError, r"x.weight_scale_inv has .* expected .* \[3, 2\]"),
    ],
)
def test_another_configuration_is_refused(
    config: Mapping[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        open_module(tmp_path, rounded(torch.randn(37, 192), (16, 64), torch.float32), config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_scale_inv": None}, "x.weight_scale_inv is missing"),
        ({"weight_scale_inv": torch.ones(1, 2, dtype=torch.int32)}, "weight_scale_inv has dtype I32"),
        ({"weight": torch.zeros(37, 192)}, "is a scale, but x.weight has no 8-bit floats"),
        ({"weight": torch.zeros(37, dtype=torch.float8_e4m3fn)}, r"has shape \[37\]; expected a matrix"),
    ],
)
def test_damaged_tensors_are_named(changes: Mapping[str, torch.Tensor | None], words: str, tmp_path: Path) -> None:
    parts = {**rounded(torch.randn(37, 192), (128, 128), torch.float32), **changes}
    with pytest.raises(CheckpointError, match=words):
        open_module(tmp_path, {kind: part for kind, part in parts.items() if part is not None})


def test_a_value_that_is_no_number_is_found(tmp_path: Path) -> None:
    parts = rounded(torch.randn(37, 192), (128, 128), torch.float32)
    parts["weight"].view(torch.uint8)[3, 4] = 0x7F
    matrix = open_module(tmp_path, parts).tensors["x.weight"]
    with pytest.raises(QuantizationError, match="NaN"):
        by_name("f16").pack(matrix.rows(0, 37))
