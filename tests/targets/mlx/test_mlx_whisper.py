"""Whisper as a folder of mlx-whisper: the tensors have the names of OpenAI's file, and mlx-whisper computes what
transformers does. What it would compute differently is refused.

mlx-whisper requires torch and numba, so it is not among the packages of the tests: NEARFAR_MLX_WHISPER_PYTHON names the
Python of an environment that has it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_moonshine import make_moonshine
from tiny_parakeet import make_parakeet
from tiny_whisper import ROWS, START, log_mel, make_whisper
from tolerances import F32, INT8, relative_error

from nearfar.compiler.bundle.folder import ExportBundle, open_any
from nearfar.compiler.cli.trial import find_trial
from nearfar.compiler.measure.dry_run import dry_run
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.pipeline.export import export_model
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.targets.mlx.runner import check_machine

SIZE, SCRIPT = 64, Path(__file__).parent / "mlx_whisper_process.py"
# The names of OpenAI's file by those of transformers.
NAMES = {
    "model.": "", "encoder.layer_norm": "encoder.ln_post", "decoder.layer_norm": "decoder.ln",
    "embed_tokens": "token_embedding", "embed_positions.weight": "positional_embedding", "layers": "blocks",
    "self_attn_layer_norm": "attn_ln", "encoder_attn_layer_norm": "cross_attn_ln", "final_layer_norm": "mlp_ln",
    "self_attn": "attn", "encoder_attn": "cross_attn", "q_proj": "query", "k_proj": "key", "v_proj": "value",
    "out_proj": "out", "fc1": "mlp1", "fc2": "mlp2",
}  # fmt: skip


def make(path: Path, **changes: Any) -> Any:
    """A tiny Whisper with the vocabulary of the multilingual ones, and the positions of all of them."""
    import torch

    sizes = {"d_model": SIZE, "encoder_ffn_dim": 4 * SIZE, "decoder_ffn_dim": 4 * SIZE, "vocab_size": 51865}
    model = make_whisper(path, **{**sizes, "encoder_attention_heads": 4, "decoder_attention_heads": 2, **changes})
    width = model.config.d_model // 2
    angles = np.outer(np.arange(ROWS), 10_000.0 ** (-np.arange(width) / (width - 1)))
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    with torch.no_grad():
        model.model.encoder.embed_positions.weight.copy_(torch.tensor(positions))
    model.save_pretrained(path)
    return model


def export(checkpoint: Path, output: Path, **options: Any) -> None:
    export_model(str(checkpoint), output, CompileOptions(**{"target": "mlx", **options}))


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a checkpoint, and transformers' model."""
    folder = tmp_path_factory.mktemp("whisper")
    return folder, make(folder)


def test_tensors_have_the_names_and_the_values_of_openais_file(whisper: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = whisper
    export(folder, tmp_path / "bundle", quantization="f32", activations=("float32",))
    expected = {}
    for name, parameter in model.state_dict().items():
        for theirs, own in NAMES.items():
            name = name.replace(theirs, own)
        values = parameter.numpy()
        expected[name] = values.swapaxes(1, 2) if values.ndim == 3 else values
    # They are computed, and the head is the embedding.
    del expected["encoder.positional_embedding"], expected["proj_out.weight"]
    found = load_file(tmp_path / "bundle/weights.safetensors")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    config = json.loads((tmp_path / "bundle/config.json").read_text())
    assert config["n_audio_ctx"] == ROWS
    assert "quantization" not in config
    sizes = dry_run(str(folder), CompileOptions(target="mlx", quantization="f32", activations=("float32",))).sizes
    assert sizes["weights.safetensors"] == (tmp_path / "bundle/weights.safetensors").stat().st_size
    bundle = open_any(tmp_path / "bundle")
    assert isinstance(bundle, ExportBundle)
    with pytest.raises(UnsupportedModel, match="reads sound, which the MLX runner does not compute"):
        check_machine(bundle)
    assert " inspect " in find_trial(bundle).command


@pytest.mark.parametrize("quantization", ["f32", "q8f16"])
def test_mlx_whisper_computes_what_transformers_does(
    quantization: str, whisper: tuple[Path, Any], tmp_path: Path
) -> None:
    import torch

    python = os.environ.get("NEARFAR_MLX_WHISPER_PYTHON")
    if python is None:
        pytest.skip("NEARFAR_MLX_WHISPER_PYTHON is not set: no environment with mlx-whisper")
    folder, model = whisper
    export(folder, tmp_path / "bundle", quantization=quantization, activations=("float32",))
    frames, tokens = np.stack([log_mel(0), log_mel(1)]), np.array([[START, 5, 9, 11], [START, 8, 2, 30]])
    with torch.no_grad():
        inputs = {"input_features": torch.tensor(frames), "decoder_input_ids": torch.tensor(tokens)}
        logits = model(**inputs).logits.numpy()
        rows = model.model.encoder(inputs["input_features"]).last_hidden_state.numpy()
    np.savez(tmp_path / "inputs.npz", frames=frames.swapaxes(1, 2), tokens=tokens)
    command = [python, str(SCRIPT), str(tmp_path / "bundle"), str(tmp_path / "inputs.npz"), str(tmp_path / "out.npz")]
    subprocess.run(command, check=True, timeout=120)
    found = np.load(tmp_path / "out.npz")
    tolerance = {"f32": F32, "q8f16": INT8}[quantization]
    assert relative_error(found["rows"], rows) < tolerance
    assert relative_error(found["logits"], logits) < tolerance


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_ffn_dim": 3 * SIZE}, "feed-forwards of 256 and 192 elements instead of 256"),
        ({"vocab_size": 200}, "a vocabulary of 200 tokens"),
        ({"scale_embedding": True}, "a scale of its embedding"),
        ({"activation_function": "relu"}, "an activation relu"),
    ],
)
def test_what_mlx_whisper_computes_differently_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "checkpoint", **changes)
    with pytest.raises(UnsupportedModel, match=message):
        export(tmp_path / "checkpoint", tmp_path / "bundle")


def test_other_encoders_are_refused_by_name(tmp_path: Path) -> None:
    make_whisper(
        tmp_path / "positions",
        d_model=SIZE,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        vocab_size=51865,
        encoder_attention_heads=4,
        decoder_attention_heads=2,
    )
    make_moonshine(tmp_path / "moonshine")
    make_parakeet(tmp_path / "parakeet")
    for name, message in (
        ("positions", "has positions of its encoder, which mlx-whisper does not compute"),
        ("moonshine", "mlx-whisper computes Whisper alone, not moonshine"),
        ("parakeet", "transcribes sound as parakeet_ctc does, which mlx bundles cannot"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            export(tmp_path / name, tmp_path / "bundle")
