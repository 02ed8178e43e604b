"""Folders that mlx-lm quantized: the logits of mlx-lm, the codes of MLX, and configurations that we refuse."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_families import TOKENS, make_family
from quantized_families import WIDE, logits_of, logits_with, make_model, make_quantized
from tiny_adapters import MLP, SELF_ATTENTION, logits_with_adapter, make_adapter
from tolerances import F16, relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.formats.mlx_quant import read_quantization
from nearfar.compiler.formats.packed_columns import unpack_stream
from nearfar.compiler.formats.safetensors_file import read_safetensors
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel

pytest.importorskip("mlx.core")

# From an embedding of small floats, mlx-lm computes in bfloat16.
AFFINE_TABLE = {"model.embed_tokens": {"bits": 4, "group_size": 32, "mode": "affine"}}
# For each name: the model of `quantized_families`, its bits, group size and mode, the modules with other ones, and the
# formats that we read.
FOLDERS: Mapping[str, tuple[str, int, int, str, Mapping[str, Any], set[str]]] = {
    "llama4": ("llama", 4, 64, "affine", {}, {"q4g64b"}),
    "qwen3": (
        "qwen3", 3, 32, "affine", {"model.layers.0.self_attn.v_proj": {"bits": 6, "group_size": 32}},
        {"q3g32b", "q6g32b"},
    ),
    "gemma5": ("gemma3", 5, 128, "affine", {"model.layers.1.mlp.down_proj": False}, {"q5g128b"}),
    "phi8": (
        "phi3", 8, 64, "affine", {"model.layers.1.self_attn.qkv_proj": {"bits": 2, "group_size": 64}},
        {"q8g64b", "q2g64b"},
    ),
    "llama_mxfp4": ("llama", 4, 32, "mxfp4", AFFINE_TABLE, {"q5g32", "q4g32b"}),
    "qwen_nvfp4": ("qwen3", 4, 16, "nvfp4", AFFINE_TABLE, {"q5g16_f16", "q4g32b"}),
    "phi_mxfp8": ("phi3", 8, 32, "mxfp8", AFFINE_TABLE, {"mxfp8", "q4g32b"}),
}  # fmt: skip
SCRIPT = """
import json, sys
import mlx.core as mx
import numpy as np
from mlx_lm import convert, load

for folder, (bits, group, mode, modules) in json.loads(sys.argv[1]).items():
    def choose(path, module, modules=modules):
        if not hasattr(module, "to_quantized"):
            return False
        return modules.get(path, True)
    how = {"q_bits": bits, "q_group_size": group, "q_mode": mode}
    convert(folder, folder + "/mlx", quantize=True, quant_predicate=choose, **how)
    model, _ = load(folder + "/mlx")
    np.save(folder + "/logits.npy", np.array(model(mx.array([json.loads(sys.argv[2])]))[0].astype(mx.float32)))
"""


def with_old_rotation(folder: Path) -> None:
    """mlx-lm reads the keys that transformers wrote before it had a section for RoPE."""
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] not in ("gemma4_text", "qwen3_5_text"):
        config |= old_rotation(config.pop("rope_parameters"))
    if config.pop("per_layer_config", None) is not None:
        config |= {"global_head_dim": config["head_dim"], "num_global_key_value_heads": 1}
    if config["model_type"] == "granitemoehybrid":
        kinds = {"linear_attention": "mamba", "full_attention": "attention"}
        config |= {"layer_types": [kinds.get(kind, kind) for kind in config["layer_types"]]}
        config |= {"position_embedding_type": "nope", "time_step_limit": [0.0, math.inf]}
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    if config["model_type"] == "qwen3_5_text":
        config = {
            "model_type": "qwen3_5",
            "text_config": {**config, "full_attention_interval": 2},
            "tie_word_embeddings": config["tie_word_embeddings"],
        }
    (folder / "config.json").write_text(json.dumps(config))


def old_rotation(section: Mapping[str, Any]) -> dict[str, Any]:
    if "full_attention" not in section:
        return {"rope_theta": section["rope_theta"]}
    whole, windows = section["full_attention"], section["sliding_attention"]
    scaling = {"rope_type": whole["rope_type"], "factor": whole["factor"]}
    return {
        "rope_theta": whole["rope_theta"], "rope_local_base_freq": windows["rope_theta"], "rope_scaling": scaling,
        "sliding_window_pattern": 2,
    }  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """mlx-lm's folders, each with its logits beside it."""
    found, jobs = {}, {}
    for name, (family, *how, _) in FOLDERS.items():
        found[name] = tmp_path_factory.mktemp(name)
        make_model(family, found[name])
        jobs[str(found[name])] = tuple(how)
    routers = {f"model.layers.{layer}.mlp.gate": ROUTER for layer in range(2)}
    for name, sizes in MIXTURES.items():
        found[name] = tmp_path_factory.mktemp(name)
        make_family(name, found[name], **{**WIDE, **sizes})
        jobs[str(found[name])] = (4, 32, "affine", routers)
    for folder in found.values():
        with_old_rotation(folder)
    # One process for all, because it takes seconds to import mlx-lm.
    convert(jobs)
    return found


def convert(jobs: Mapping[str, tuple[Any, ...]]) -> None:
    """Let mlx-lm convert folders with these bits, group size, mode and choice of modules."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(jobs), json.dumps(TOKENS)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


# mlx-lm's own choice for the routers of a folder of 4 bits.
ROUTER = {"bits": 8, "group_size": 64}
# Models whose tensors mlx-lm renames, stacks or shifts: sizes besides WIDE.
MIXTURES: Mapping[str, dict[str, Any]] = {
    # Experts beside the feed-forward.
    "gemma4_experts": {
        "head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "moe_intermediate_size": 64,
    },
    "granitemoehybrid": {
        "mamba_n_heads": 4,
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": WIDE["intermediate_size"],
    },
    "granitemoehybrid_experts": {
        "mamba_n_heads": 4,
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 64,
        "intermediate_size": 64,
    },
    "qwen3_moe": {"head_dim": 32, "moe_intermediate_size": 64, "mlp_only_layers": []},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "moe_intermediate_size": 64, "routed_scaling_factor": 1.0},
    # Its gates and what they gate are one stack.
    "granitemoe": {},
    "qwen3_5_text": {
        "head_dim": 32,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
}


@pytest.mark.parametrize("name", MIXTURES)
def test_logits_of_renamed_tensors_are_those_of_mlx_lm(name: str, folders: Mapping[str, Path]) -> None:
    checkpoint = load(str(folders[name] / "mlx"))
    assert set(checkpoint.stored_forms) == {"q4g32b"} | ({"q8g64b"} if name == "qwen3_moe" else set())
    assert relative_error(logits_of(folders[name] / "mlx"), np.load(folders[name] / "logits.npy")) < 1e-4


@pytest.mark.parametrize("name", FOLDERS)
def test_logits_are_those_of_mlx_lm(name: str, folders: Mapping[str, Path]) -> None:
    checkpoint = load(str(folders[name] / "mlx"))
    assert set(checkpoint.stored_forms) == FOLDERS[name][-1]
    found = logits_of(folders[name] / "mlx")
    assert relative_error(found, np.load(folders[name] / "logits.npy")) < 1e-4


def test_adapters_add_to_the_weights_of_mlx(tmp_path: Path) -> None:
    import mlx.core as mx

    weights: dict[str, torch.Tensor] = {}

    def quantize(module: str, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        parts = mx.quantize(mx.array(weight.numpy()), group_size=32, bits=3)
        read = mx.dequantize(*parts, group_size=32, bits=3)
        weights[f"{module}.weight"] = torch.from_numpy(np.array(read))
        return dict(
            zip(("weight", "scales", "biases"), (torch.from_numpy(np.array(each)) for each in parts), strict=True)
        )

    make_quantized("qwen3", tmp_path / "model", quantize, {})
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    del config["quantization_config"]
    config["quantization"] = {"group_size": 32, "bits": 3}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    deltas = make_adapter(tmp_path / "a", tmp_path / "model", SELF_ATTENTION + MLP, rank=2, alpha=4, seed=1)
    changed = {
        f"{module}.weight": weights[f"{module}.weight"] + torch.tensor(delta) for module, delta in deltas.items()
    }
    # The bundle has the embedding as float16.
    found = logits_with_adapter(tmp_path / "model", tmp_path / "a", tmp_path / "bundle", TOKENS)
    assert relative_error(found, logits_with(changed, tmp_path / "model")) < F16
    assert changed.keys() == weights.keys()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_are_those_of_mlx(bits: int) -> None:
    import mlx.core as mx

    weights = np.random.default_rng(bits).normal(size=(5, 96)).astype(np.float32)
    packed, scales, biases = mx.quantize(mx.array(weights), group_size=32, bits=bits)
    codes = unpack_stream(np.array(packed), bits).astype(np.float32).reshape(5, 3, 32)
    found = codes * np.array(scales)[..., None] + np.array(biases)[..., None]
    expected = np.array(mx.dequantize(packed, scales, biases, group_size=32, bits=bits))
    np.testing.assert_allclose(found.reshape(5, 96), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("mode", "group", "bits"), [("mxfp4", 32, 4), ("nvfp4", 16, 4), ("mxfp8", 32, 8)])
def test_small_floats_are_those_of_mlx(mode: str, group: int, bits: int, tmp_path: Path) -> None:
    import mlx.core as mx

    # Every code in every element, and scales of every size that a float holds.
    rng = np.random.default_rng(bits)
    words = rng.integers(0, 2**32, (6, 64 * bits // 32), dtype=np.uint32)
    if bits == 8:
        # Not a number.
        words[np.isin(words.view(np.uint8) & 127, 127).reshape(*words.shape, 4).any(axis=2)] = 0x38383838
    scales = rng.integers(90, 127 if mode == "nvfp4" else 150, (6, 64 // group), dtype=np.uint8)
    packed, factors = mx.array(words), mx.array(scales)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"x.weight": packed, "x.scales": factors})
    section = {"mode": mode, "group_size": group, "bits": bits}
    read = read_quantization(section, "config.json").read_tensors(
        read_safetensors(tmp_path / "model.safetensors"), tied=False
    )
    expected = mx.dequantize(packed, factors, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
    np.testing.assert_array_equal(read.tensors["x.weight"].rows(0, 6), np.array(expected))


def change(folder: Path, target: Path, **values: Any) -> Path:
    """A copy of a folder whose section "quantization" has other values."""
    target.mkdir()
    for file in (folder / "mlx").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    config["quantization"] |= values
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"mode": "nf4"}, UnsupportedModel, "'mode' is 'nf4'"),
        ({"mode": "mxfp4"}, UnsupportedModel, "'group_size' is 64"),
        ({"mode": "mxfp4", "group_size": 32}, CheckpointError, "scales has dtype"),
        ({"bits": 7}, UnsupportedModel, "'bits' is 7"),
        ({"group_size": 48}, UnsupportedModel, "'group_size' is 48"),
        ({"rotation": 3}, UnsupportedModel, "unknown key 'rotation'"),
        ({"bits": 8}, CheckpointError, r"scales has dtype .* for 8 bits in groups of 64"),
        ({"model.layers.0.mlp.up_proj": False}, CheckpointError, "up_proj is not quantized by 'quantization'"),
    ],
)
def test_a_configuration_that_does_not_match_is_refused(
    values: dict[str, Any], error: type[Exception], words: str, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        load(str(change(folders["llama4"], tmp_path / "changed", **values)))
