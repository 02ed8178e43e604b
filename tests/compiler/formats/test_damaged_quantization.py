"""Sections and tensors of quantized checkpoints, mutated at random: they are read, or the error is a typed one."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nearfar.compiler.formats.config import ConfigReader
from nearfar.compiler.formats.huggingface import METHODS
from nearfar.compiler.formats.safetensors_file import read_safetensors
from nearfar.compiler.runtime.errors import NearfarError

EXAMPLES = int(os.environ.get("NEARFAR_FUZZ_EXAMPLES", "100"))
ROWS, COLUMNS = 40, 192
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 3, 7, 32, 2**53, 10**400, 1.5, float("nan"), "", "x", "re:(", "\0", "\ud800", [], {},
    [1], [0, 0], [[1]], {"a": 1}, "block", "tensor", "channel", "float", "int",
]  # fmt: skip


def integers(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape).to(torch.int32)


def weights(**values: Any) -> dict[str, Any]:
    args = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False, "dynamic": False}
    return {"group_0": {"targets": ["Linear"], "weights": {**args, **values}}}


FLOAT8 = torch.zeros(ROWS, COLUMNS).to(torch.float8_e4m3fn)
MODULES: Mapping[str, tuple[dict[str, Any], dict[str, torch.Tensor]]] = {
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
        {
            "qweight": integers((COLUMNS, ROWS // 8)),
            "qzeros": integers((COLUMNS // 64, ROWS // 8)),
            "scales": torch.ones(COLUMNS // 64, ROWS).half(),
        },
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "dynamic": {"y": {"bits": 8}}},
        {
            "qweight": integers((COLUMNS // 8, ROWS)),
            "qzeros": integers((COLUMNS // 32, ROWS // 8)),
            "scales": torch.ones(COLUMNS // 32, ROWS).half(),
            "g_idx": torch.arange(COLUMNS, dtype=torch.int32) // 32,
        },
    ),
    "packed": (
        {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": weights(),
            "ignore": ["lm_head"], "kv_cache_scheme": None, "sparsity_config": {"format": "dense"},
        },
        {
            "weight_packed": integers((ROWS, COLUMNS // 8)),
            "weight_scale": torch.ones(ROWS, COLUMNS // 32),
            "weight_zero_point": integers((ROWS // 8, COLUMNS // 32)),
            "weight_shape": torch.tensor([ROWS, COLUMNS]),
            "weight_g_idx": torch.arange(COLUMNS, dtype=torch.int32) // 32,
        },
    ),
    "float_quantized": (
        {
            "quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": weights(
                num_bits=8, type="float", strategy="block", block_structure=[16, 64], group_size=None, symmetric=True
            ),
        },
        {"weight": FLOAT8, "weight_scale": torch.ones(3, 3), "input_scale": torch.ones(1)},
    ),
    "fp8": (
        {"quant_method": "fp8", "weight_block_size": [16, 64], "activation_scheme": "dynamic"},
        {"weight": FLOAT8, "weight_scale_inv": torch.ones(3, 3)},
    ),
}  # fmt: skip


def mutate_section(section: dict[str, Any], rng: np.random.Generator) -> None:
    """Replace or remove one value, at any depth."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    walk(section)
    place, key = places[rng.integers(len(places))]
    if rng.random() < 0.2:
        del place[key]
    else:
        place[key] = VALUES[rng.integers(len(VALUES))]


def mutate_tensors(tensors: dict[str, torch.Tensor], rng: np.random.Generator) -> None:
    """Remove a tensor, or change its shape, type or values."""
    kind = sorted(tensors)[rng.integers(len(tensors))]
    tensor = tensors[kind]
    match rng.integers(5):
        case 0:
            del tensors[kind]
        case 1:
            tensors[kind] = tensor[: int(rng.integers(len(tensor)))]
        case 2:
            tensors[kind] = tensor.reshape(-1)[: int(rng.integers(tensor.numel() + 1))]
        case 3:
            dtypes = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.float16, torch.bfloat16, torch.float32)
            tensors[kind] = tensor.float().to(dtypes[rng.integers(len(dtypes))])
        case _ if tensor.dtype == torch.float32:
            tensors[kind] = torch.full_like(tensor, [float("nan"), float("inf"), -1.0, 0.0][rng.integers(4)])
        case _:
            data = rng.integers(0, 256, tensor.numel() * tensor.element_size(), np.uint8)
            tensors[kind] = torch.from_numpy(data).view(tensor.dtype).reshape(tensor.shape)


@pytest.mark.parametrize("name", MODULES)
def test_mutations_are_read_or_refused(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(len(name))
    read = refused = 0
    for example in range(EXAMPLES):
        section, parts = copy.deepcopy(MODULES[name])
        if example:
            mutate_section(section, rng) if rng.random() < 0.6 else mutate_tensors(parts, rng)
        path = tmp_path / "x.safetensors"
        save_file({f"x.{kind}": part.contiguous() for kind, part in parts.items()}, path)
        try:
            reader = METHODS[MODULES[name][0]["quant_method"]](ConfigReader(section))
            for tensor in reader.read_tensors(read_safetensors(path), tied=False).tensors.values():
                tensor.rows(0, tensor.shape[0] if tensor.shape else 1)
            read += 1
        except NearfarError:
            # The first example is not mutated.
            refused += 1
        assert read
    assert refused
