"""The complete folder: its files, its configuration, and errors that occur before a file is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import SIZES

from nearfar.compiler import quant
from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.formats import load
from nearfar.compiler.formats.huggingface import open_checkpoint
from nearfar.compiler.formats.safetensors_file import read_safetensors
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.runtime.errors import QuantizationError, RequestError, UnsupportedModel
from nearfar.targets.mlx.config import write_config
from nearfar.targets.mlx.models import require_known
from nearfar.targets.mlx.names import folder_tensors
from nearfar.targets.mlx.packing import Packing
from nearfar.targets.mlx.shards import write_shards

CompileTiny = Callable[..., Path]


def test_a_folder_holds_what_mlx_lm_loads_and_a_manifest(compile_tiny: CompileTiny) -> None:
    path = compile_tiny("qwen3_wide", "q4f16", target="mlx", group_size=64)
    assert sorted(file.name for file in path.iterdir()) == [
        "config.json", "manifest.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    config = json.loads((path / "config.json").read_text())
    assert config["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"}
    tokenizer = json.loads((path / "tokenizer_config.json").read_text())
    assert tokenizer["chat_template"].startswith("{{ bos_token }}")
    manifest = open_any(path).manifest
    assert (manifest.target, manifest.page_size, manifest.context) == ("mlx", 256, 256)


def test_the_configuration_is_read_back_as_the_models_spec(compile_tiny: CompileTiny, tmp_path: Path) -> None:
    # Dense folders are checkpoints as well: transformers' names, one dtype.
    for name in ("llama", "llama_plain", "qwen2", "qwen3"):
        path = compile_tiny(name, "f32", target="mlx")
        assert load(str(path)).spec == open_any(path).manifest.spec, name
    # mlx-lm's llama reads a top-level theta.
    config = json.loads((compile_tiny("llama", "f32", target="mlx") / "config.json").read_text())
    assert config["rope_theta"] == 10000.0
    assert config["rope_scaling"]["rope_type"] == "llama3"
    spec = replace(open_any(compile_tiny("llama", "f32", target="mlx")).manifest.spec, eos_token_ids=(5, 7))
    write_config(spec, Packing(quant.by_name("f16"), "float16"), 256, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == [5, 7]


def test_a_quantized_folder_is_a_checkpoint_with_the_same_weights(
    compile_tiny: CompileTiny, tiny_checkpoints: Mapping[str, Path]
) -> None:
    found = load(str(compile_tiny("qwen3_wide", "q4f16", target="mlx", group_size=64)))
    assert set(found.stored_forms) == {"q4g64b_f16"}
    name, quantization = "model.layers.1.mlp.down_proj.weight", quant.by_name("q4f16", 64)
    weights = open_checkpoint(tiny_checkpoints["qwen3_wide"]).tensors[name]
    rows, columns = weights.shape
    expected = quantization.unpack(quantization.pack(weights.rows(0, rows)), columns)
    np.testing.assert_array_equal(found.tensors[name].rows(0, rows), expected)


def test_shards_hold_the_same_tensors_as_one_file(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    from nearfar.compiler.arch import by_model_type

    checkpoint = open_checkpoint(tiny_checkpoints["qwen2_wide"])
    stored = folder_tensors(by_model_type("qwen2").forward(checkpoint.spec, 16, 16).parameters, checkpoint.spec)
    packing = Packing(quant.by_name("q8f16"), "float16")
    found = []
    for name, shard_bytes in (("whole", 1 << 30), ("cut", 100_000)):
        (tmp_path / name).mkdir()
        seen: list[tuple[int, int]] = []
        write_shards(
            checkpoint, stored, packing, tmp_path / name, lambda *done, seen=seen: seen.append(done), shard_bytes
        )
        assert seen[-1][0] == seen[-1][1]
        index = json.loads((tmp_path / name / "model.safetensors.index.json").read_text())
        files = sorted((tmp_path / name).glob("*.safetensors"))
        tensors = {tensor: (file.name, each) for file in files for tensor, each in read_safetensors(file).items()}
        assert index["weight_map"] == {tensor: file for tensor, (file, _) in tensors.items()}
        found.append({tensor: content(file, *each) for tensor, each in tensors.items() for file in [tmp_path / name]})
    assert len(files) > 3
    assert all(file.stat().st_size < 110_000 for file in files)
    assert found[0] == found[1]


def content(folder: Path, file: str, tensor: object) -> tuple[object, bytes]:
    """A tensor's kind and its bytes, from its offset to the next tensor's offset."""
    tensors = read_safetensors(folder / file)
    offsets = sorted([each.offset_bytes for each in tensors.values()] + [(folder / file).stat().st_size])
    start = tensor.offset_bytes  # type: ignore[attr-defined]
    stop = offsets[offsets.index(start) + 1]
    return (tensor.dtype, tensor.shape), (folder / file).read_bytes()[start:stop]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kv": "q8"}, RequestError, "--kv q8: the model's head size of 24 is not a multiple of 32"),
        ({"kv": "q4"}, RequestError, "--kv q4: mlx bundles do not support 4-bit keys and values; use --kv q8"),
        ({"kv": "fp8"}, RequestError, "--kv fp8: mlx bundles do not support 8-bit floats for them; use --kv q8"),
        ({"device": "gpu"}, RequestError, "--device gpu: unknown device; target mlx has no choice of device"),
        (
            {"quantization": "q4f32", "activations": ("bfloat16",)},
            RequestError,
            "--activations bfloat16: the quantization offers float32",
        ),
        ({"lora_rank": 4}, RequestError, "--lora-rank: target mlx does not support this option"),
        (
            {},
            QuantizationError,
            r"model.embed_tokens.weight has 72 columns, not a multiple of the group size 32, which MLX needs; use "
            r"--quantization f16",
        ),
    ],
)
def test_unsupported_options_of_mlx_are_refused_and_leave_nothing(
    options: dict[str, object],
    error: type[Exception],
    message: str,
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
) -> None:
    full_options = CompileOptions(target="mlx", context=64, **options)  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        compile_any(str(tiny_checkpoints["qwen3"]), tmp_path / "out", full_options)
    assert list(tmp_path.iterdir()) == []


def spec_of(tiny_checkpoints: Mapping[str, Path], name: str) -> ModelSpec:
    return open_checkpoint(tiny_checkpoints[name]).spec


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen3", {"qkv_bias": True, "output_bias": True}),
        ("qwen2", {"head_dim": SIZES["hidden_size"]}),
        ("llama", {"output_bias": False}),
    ],
)
def test_a_model_that_mlx_lm_would_compute_otherwise_is_refused(
    name: str, changes: dict[str, object], tiny_checkpoints: Mapping[str, Path]
) -> None:
    spec = spec_of(tiny_checkpoints, name)
    require_known(spec)
    with pytest.raises(UnsupportedModel, match=f"mlx-lm's {name} has no such model"):
        require_known(replace(spec, **changes))  # type: ignore[arg-type]


def test_a_damaged_weight_is_named(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_checkpoints["qwen2_wide"])
    name = "model.layers.1.mlp.up_proj.weight"
    tensor = checkpoint.tensors[name]
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_checkpoints["qwen2_wide"].iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    with (broken / "model.safetensors").open("r+b") as weights:
        weights.seek(tensor.offset_bytes)  # type: ignore[attr-defined]
        weights.write(b"\xff\xff\xff\x7f")
    with pytest.raises(QuantizationError, match=f"{name}: the tensor holds NaN"):
        compile_any(str(broken), tmp_path / "out", CompileOptions(target="mlx", context=64))
