"""LoRA adapters for the tiny checkpoints, written as PEFT writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from plain_target import compile_plain

from nearfar.compiler.formats import load
from nearfar.compiler.formats.peft import read_adapter
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits

# The change of each module's weight.
Deltas = Mapping[str, npt.NDArray[np.float32]]
SELF_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def make_adapter(
    folder: Path, checkpoint: Path, targets: tuple[str, ...], *, rank: int, alpha: float, seed: int, **config: Any
) -> Deltas:
    """Write an adapter of the projections ``targets`` of every layer, and return what it adds to their weights."""
    import safetensors.numpy

    tensors_of_model = load(str(checkpoint)).tensors
    shapes = {name.removesuffix(".weight"): tensor.shape for name, tensor in tensors_of_model.items()}
    rng = np.random.default_rng(seed)
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    deltas: dict[str, npt.NDArray[np.float32]] = {}
    for module, shape in shapes.items():
        if not module.endswith(targets):
            continue
        a = (rng.normal(size=(rank, shape[1])) / shape[1] ** 0.5).astype(np.float32)
        b = (rng.normal(size=(shape[0], rank)) / rank**0.5 / scale).astype(np.float32)
        tensors |= {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}
        deltas[module] = b @ a * np.float32(scale)
    folder.mkdir(parents=True)
    safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors")
    known = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
        "use_dora": False,
    }
    (folder / "adapter_config.json").write_text(json.dumps({**known, **config}))
    return deltas


def adapted_logits(checkpoint: Path, deltas: Deltas, token_ids: list[int]) -> npt.NDArray[np.float32]:
    """The logits (S, V) of transformers with the changes added to its weights."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        for module, delta in deltas.items():
            model.get_submodule(module).weight.add_(torch.from_numpy(delta))
        logits: npt.NDArray[np.float32] = model(torch.tensor([token_ids])).logits[0].numpy()
    return logits


def logits_with_adapter(
    model: Path, adapter: Path, bundle: Path, token_ids: list[int], quantization: str | None = None
) -> npt.NDArray[np.float32]:
    """The logits (S, V) of the reference for a model with an adapter. ``bundle``: the folder to compile to."""
    compiled = compile_plain(model, bundle, quantization, 64, lora_rank=4)
    runner = ReferenceRunner(compiled, limits=Limits(tokens=64, rows=64, adapters=1))
    for name, values in read_adapter(adapter, compiled.manifest).items():
        runner.write_state(name, 0, values)
    pages = range(-(-len(token_ids) // compiled.manifest.page_size))
    # Models without states do not read the slots.
    chunk = Chunk(token_ids, 0, pages, range(len(token_ids)), adapter=0, state=(0, 0))
    logits: npt.NDArray[np.float32] = runner.forward(make_batch([chunk], compiled.manifest.page_size)).logits
    return logits
