"""Adapters that PEFT wrote, against the logits that PEFT computes with them; and of layers with states."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_families import make_family
from safetensors.numpy import load_file, save_file
from tiny_adapters import MLP, SELF_ATTENTION, adapted_logits, logits_with_adapter, make_adapter
from tolerances import F32, relative_error

# PEFT still reads names that transformers will remove.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")
TOKENS = list(range(3, 509, 23))
PATTERNS: dict[str, Any] = {
    # The first pattern that fits a module counts.
    "rank_pattern": {"^model.layers.0.self_attn.q_proj": 4, "self_attn.q_proj": 1, r"mlp\.down_proj": 2},
    "alpha_pattern": {"v_proj": 5, "layers.1.mlp.up_proj": 7},
}


@pytest.mark.parametrize("config", [PATTERNS, {"use_rslora": True}], ids=["patterns", "rslora"])
def test_logits_are_those_of_peft(config: dict[str, Any], tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    import transformers

    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    checkpoint = tiny_checkpoints["qwen3"]
    settings = peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=[*SELF_ATTENTION, *MLP], init_lora_weights=False, **config
    )
    plain = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model = peft.get_peft_model(plain, settings).eval()
    ranks = {name: len(each) for name, each in model.state_dict().items() if "lora_A" in name}
    assert set(ranks.values()) == ({1, 2, 3, 4} if config is PATTERNS else {3})
    model.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
        with model.disable_adapter():
            without = model(torch.tensor([TOKENS])).logits[0].numpy()
    found = logits_with_adapter(checkpoint, tmp_path / "adapter", tmp_path / "bundle", TOKENS, "f32")
    assert relative_error(found, expected) < F32
    assert relative_error(without, expected) > 0.1


@pytest.mark.parametrize(
    ("family", "modules"),
    [
        ("qwen3_5_text", ("q_proj", "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")),
        ("granitemoehybrid", ("in_proj", "out_proj")),
        # Its modules are below "backbone." in adapters, too.
        ("mamba2", ("in_proj", "out_proj")),
    ],
)
def test_projections_beside_a_state_accept_adapters(family: str, modules: tuple[str, ...], tmp_path: Path) -> None:
    make_family(family, tmp_path / "checkpoint")
    deltas = make_adapter(tmp_path / "adapter", tmp_path / "checkpoint", modules, rank=3, alpha=5, seed=1)
    assert {module.rsplit(".", 1)[1] for module in deltas} == set(modules)
    if family == "mamba2":
        file = tmp_path / "adapter" / "adapter_model.safetensors"
        save_file(
            {name.replace(".model.layers", ".backbone.layers"): each for name, each in load_file(file).items()}, file
        )
        deltas = {module.replace("model.layers", "backbone.layers"): delta for module, delta in deltas.items()}
    found = logits_with_adapter(tmp_path / "checkpoint", tmp_path / "adapter", tmp_path / "bundle", TOKENS, "f32")
    assert relative_error(found, adapted_logits(tmp_path / "checkpoint", deltas, TOKENS)) < F32
