"""config.json compared with the tensors: impossible sizes are refused early, and the head is that of transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from decoder_families import make_family
from draft_heads import DraftHeads
from safetensors.numpy import load_file, save_file
from tiny_models import make_checkpoint
from tolerances import F32, relative_error

from nearfar.compiler.cli import main
from nearfar.compiler.formats import load
from nearfar.compiler.formats.spec_against_tensors import choose_draft_heads
from nearfar.compiler.ir.spec import Mixer
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.runtime.errors import CheckpointError, QuantizationError

TOKENS = [(7 * i * i + 3 * i + 5) % 509 for i in range(41)]
FACTOR = "model.layers.1.mlp.act_fn.beta"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def tied(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoints["qwen3"], tmp_path / "model"))


def configure(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def store(folder: Path, **changes: npt.NDArray[Any] | None) -> None:
    """Write tensors by name, with "__" for dots; None removes a tensor."""
    tensors: dict[str, Any] = {
        **load_file(folder / "model.safetensors"),
        **{name.replace("__", "."): v for name, v in changes.items()},
    }
    save_file(
        {name: value for name, value in tensors.items() if value is not None},
        folder / "model.safetensors",
        {"format": "pt"},
    )


def logits_of(folder: Path) -> npt.NDArray[np.float32]:
    reference = CheckpointReference(load(str(folder)), len(TOKENS))
    [hidden] = reference.hidden([TOKENS])
    return reference.logits(hidden)


def logits_of_transformers(folder: Path) -> npt.NDArray[np.float32]:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = model(torch.tensor([TOKENS])).logits[0].numpy()
    return logits


@pytest.mark.parametrize("stored", ["equal", "different", "head alone"])
def test_a_stored_head_beside_a_tied_embedding_is_used_as_in_transformers(
    stored: str, tied: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    embedding = load_file(tied / "model.safetensors")[EMBEDDING]
    head = embedding[::-1].copy() if stored == "different" else embedding.copy()
    store(tied, lm_head__weight=head, **({"model__embed_tokens__weight": None} if stored == "head alone" else {}))
    checkpoint = load(str(tied))
    assert checkpoint.spec.tie_word_embeddings == (stored != "different")
    assert relative_error(logits_of(tied), logits_of_transformers(tied)) < F32
    for target in ("mlx", "onnx"):
        assert (
            main(
                [
                    "compile",
                    str(tied),
                    "--target",
                    target,
                    "--quantization",
                    "f32",
                    "-o",
                    str(tmp_path / target),
                    "--json",
                ]
            )
            == 0
        )
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert ["'tie_word_embeddings'" in note and HEAD in note for note in notes] == [True] * (stored == "different")
        config = json.loads((tmp_path / target / "config.json").read_text())
        assert config["tie_word_embeddings"] == (stored != "different")


def test_a_note_is_printed_for_the_user(tied: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store(tied, lm_head__weight=np.zeros((509, 72), np.float32))
    assert main(["compile", str(tied), "--target", "mlx", "--quantization", "f32", "-o", str(tmp_path / "bundle")]) == 0
    assert f"note: {tied}: config.json ties the head to the embedding" in capsys.readouterr().err


def test_windows_on_some_layers_of_a_qwen_are_those_of_transformers(tmp_path: Path) -> None:
    for name, slides in (("qwen2", [False, True, True]), ("qwen3", [True, False, True])):
        folder = tmp_path / name
        kinds = ["sliding_attention" if slide else "full_attention" for slide in slides]
        make_checkpoint(name, folder)
        before = logits_of(folder)
        configure(folder, use_sliding_window=True, sliding_window=7, layer_types=kinds)
        assert load(str(folder)).spec.windows == tuple(7 if slide else None for slide in slides)
        after = logits_of(folder)
        assert relative_error(after, logits_of_transformers(folder)) < F32
        assert relative_error(after, before) > 0.1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 4, "'num_hidden_layers' is 4, but the weights have 3 layers"),
        ("num_hidden_layers", 9_999, "'num_hidden_layers' is 9999, but the weights have 3 layers"),
        ("num_hidden_layers", 10**9, "'num_hidden_layers' is 1000000000; the maximum is 10000"),
        ("vocab_size", 10**9, "'vocab_size' is 1000000000, but the largest side of any tensor is 509"),
        ("hidden_size", 10**12, "'hidden_size' is 1000000000000, but"),
        ("intermediate_size", 2**53, "'intermediate_size' is 9007199254740992, but"),
        ("num_attention_heads", 3 * 10**9, "'num_attention_heads' times the head size is 72000000000, but"),
        ("head_dim", 10**15, "'num_attention_heads' times the head size is"),
    ],
)
def test_sizes_that_no_tensor_has_are_refused_immediately(key: str, value: int, message: str, tied: Path) -> None:
    configure(tied, layer_types=None, **{key: value})
    with pytest.raises(CheckpointError, match=message):
        load(str(tied))


def test_a_factor_of_apertus_that_is_missing_is_named(tmp_path: Path) -> None:
    make_family("apertus", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({each: tensor for each, tensor in tensors.items() if each != FACTOR}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"tensor {FACTOR} is missing"):
        load(str(tmp_path))


def test_a_tensor_without_elements_does_not_justify_a_size(tied: Path) -> None:
    store(tied, model__huge=np.zeros((10**9, 0), np.float32))
    configure(tied, vocab_size=10**9)
    with pytest.raises(CheckpointError, match="'vocab_size' is 1000000000, but the largest side of any tensor is 509"):
        load(str(tied))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.layers.1.self_attn.q_norm.weight", "model.layers.2.mlp.up_proj.weight", HEAD]
)
@pytest.mark.parametrize("target", ["mlx", "onnx", "cpu"])
def test_numbers_that_are_not_finite_are_refused_by_every_target(
    value: float, name: str, target: str, tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = load_file(tied / "model.safetensors")[EMBEDDING if name == HEAD else name].copy()
    tensor[-1] = value
    store(tied, **{name.replace(".", "__"): tensor})
    # All kernel targets write weights in the same way, after their kernels.
    monkeypatch.setattr("nearfar.targets.cpu.lower.compile_library", no_kernels)
    with pytest.raises(QuantizationError, match=f"{name}.*: the tensor holds NaN or infinity"):
        compile_any(str(tied), tmp_path / "bundle", CompileOptions(target=target, quantization="f32", context=64))
    assert not (tmp_path / "bundle").exists()


def no_kernels(arch: Any, calls: Mapping[str, Any], progress: Any) -> Any:  # noqa: ARG001
    from nearfar.targets.lowering import Compiled

    return Compiled({}, {})


def test_heads_that_attend_are_left_out_of_a_model_that_only_has_states(tmp_path: Path) -> None:
    DraftHeads(tmp_path)
    given, notes = load(str(tmp_path)), list[str]()
    state: Mixer = "gated_delta"
    states = replace(given.spec, draft_layers=0, mixers=(state,) * given.spec.num_layers)
    spec, tensors = choose_draft_heads(tmp_path, states, given.tensors, notes, makes_text=True)
    assert (spec, set(given.tensors) - set(tensors)) == (states, {each for each in given.tensors if "mtp." in each})
    assert notes[0].endswith("tensors): their layer attends, and no layer of the model does")
