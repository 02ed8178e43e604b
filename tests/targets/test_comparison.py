"""The decoder in plain PyTorch, with which `make gpu-check` compares ours, computes what transformers' models do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib import machinery
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gpu_check import comparison, pytorch_decoder
from gpu_check.comparison import OURS
from gpu_check.pytorch_decoder import Decoder, Loop, projection, random_weights
from gpu_check.report import NotRun

# Sizes of heads that are not the hidden size divided by their number, and groups of three query heads.
CONFIG = {
    "vocab_size": 96, "hidden_size": 192, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
}  # fmt: skip
LENGTH = 16


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


@pytest.mark.parametrize(("model_type", "tied"), [("qwen3", True), ("llama", False)])
def test_logits_are_those_of_transformers(model_type: str, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_decoder, "DTYPE", torch.float32)
    config = {**CONFIG, "model_type": model_type, "tie_word_embeddings": tied}
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).float().eval()
    for parameter in model.parameters():
        parameter.normal_(mean=float(parameter.ndim == 1), std=0.2)
    tensors = model.state_dict()

    def weights(name: str, shape: tuple[int, ...]) -> Any:
        assert tuple(tensors[name].shape) == shape
        return tensors[name]

    decoder = Decoder(config, weights, 16, "cpu", LENGTH)
    ids = torch.randint(0, 96, (3, 9))
    expected = model(ids).logits
    cache = decoder.cache(3)
    prompt = decoder(ids[:, :8], torch.arange(8), cache)
    token = decoder(ids[:, 8:], torch.tensor([8]), cache)
    torch.testing.assert_close(prompt, expected[:, 7], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(token, expected[:, 8], atol=1e-4, rtol=1e-4)


def test_four_bits_are_multiplied_as_their_values() -> None:
    # Values that four bits hold exactly.
    numbers = torch.randint(-7, 8, (16, 2, 64))
    numbers[:, :, 0::32] = 7
    weight = (numbers / 64).reshape(16, 128).to(torch.bfloat16)
    x = torch.randn(2, 3, 128).to(torch.bfloat16)
    torch.testing.assert_close(projection(weight, 4)(x), projection(weight, 16)(x), atol=0.02, rtol=0.02)


def test_a_loop_decodes_at_the_positions_after_the_context() -> None:
    decoder = Decoder({**CONFIG, "model_type": "llama"}, random_weights("cpu"), 4, "cpu", LENGTH)
    loop = Loop(decoder, 2, 5, None)
    for _ in range(2):
        loop.run(3)
        assert loop.position.tolist() == [8]
    assert loop.ids.shape == (2, 1)


def test_without_another_engine_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = machinery.ModuleSpec("any", None)
    monkeypatch.setattr(comparison, "find_spec", lambda name: spec if name == "vllm" else None)
    assert comparison.other_engines(rehearse=False) == tuple(comparison.VLLM)
    monkeypatch.setattr(comparison, "find_spec", lambda _: None)
    with pytest.raises(NotRun, match="neither vllm nor torch is installed"):
        comparison.other_engines(rehearse=True)
    monkeypatch.setattr(comparison, "find_spec", lambda name: spec if name == "torch" else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NotRun, match=r"torch .* finds no GPU"):
        comparison.other_engines(rehearse=False)
    assert comparison.other_engines(rehearse=True) == tuple(comparison.PYTORCH)


def test_an_engine_that_does_not_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"bundle": str(tmp_path / "missing"), "context": 1, "steps": 1}))
    speeds: list[dict[str, Any]] = []
    expected = {"engine": OURS, "start_seconds": None, "error": "its process ended with 1; see the log"}
    assert comparison.measured(OURS, request, speeds, 200) == expected
    expected["error"] = "stopped after 0 s"
    assert comparison.measured(OURS, request, speeds, 0.05) == expected
    assert speeds == []
