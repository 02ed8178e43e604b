"""Mistral and Phi-3 on MLX, compared with transformers: with our runner beyond three windows, and with mlx-lm for the
models that it supports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_target import compile_plain
from ragged import chunked_logits
from tolerances import F32, KV_Q8, relative_error
from windowed_models import TOKENS, WINDOW, WINDOWED, logits_of_transformers, make_all, make_windowed

from nearfar.compiler import quant
from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.formats import load
from nearfar.compiler.formats.safetensors_file import read_safetensors
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.pipeline.export import export_model
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits, Runner
from nearfar.targets.mlx.config import write_config
from nearfar.targets.mlx.models import require_known
from nearfar.targets.mlx.packing import Packing

CONTEXT = 48
LIMITS = Limits(tokens=CONTEXT, sequences=2, rows=CONTEXT, pages=2)

pytestmark = pytest.mark.usefixtures("mlx")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return make_all(tmp_path_factory.mktemp("windowed"))


def export_mlx(model: Path, folder: Path, quantization: str = "f32", **options: Any) -> ExportBundle:
    given = {"context": CONTEXT, "activations": ("float32",), **options}
    return export_model(str(model), folder, CompileOptions(target="mlx", quantization=quantization, **given))


def open_mlx(bundle: ExportBundle) -> Runner:
    return open_runner("mlx", bundle, LIMITS)


@pytest.mark.parametrize("name", WINDOWED)
def test_logits_equal_transformers_beyond_three_windows(name: str, models: Mapping[str, Path], tmp_path: Path) -> None:
    expected = logits_of_transformers(models[name])
    runner = open_mlx(export_mlx(models[name], tmp_path / "f32"))
    for chunk in (1, 6, 13, len(TOKENS)):
        assert relative_error(chunked_logits(runner, TOKENS, chunk), expected) < F32, chunk
    runner.close()


def test_fused_tensors_are_exported_complete_and_their_slices_are_those_of_the_reference(
    models: Mapping[str, Path], tmp_path: Path
) -> None:
    bundle = export_mlx(models["phi3"], tmp_path / "mlx", "q8f16")
    stored = {
        name.removesuffix(".scales").removesuffix(".biases")
        for name in read_safetensors(bundle.path / "model.safetensors")
    }
    assert {name.removesuffix(".weight") for name in stored} == {
        name.removesuffix(".weight") for name in load(str(models["phi3"])).tensors
    }
    expected = chunked_logits(
        ReferenceRunner(compile_plain(models["phi3"], tmp_path / "plan", "q8f16", CONTEXT)), TOKENS, 41
    )
    assert relative_error(chunked_logits(open_mlx(bundle), TOKENS, 13), expected) < F32


def test_8_bit_keys_and_values_of_a_window_stay_near(models: Mapping[str, Path], tmp_path: Path) -> None:
    plain, small = (open_mlx(export_mlx(models["phi3"], tmp_path / kv, kv=kv)) for kv in ("activation", "q8"))
    exact = chunked_logits(plain, TOKENS, 13)
    for chunk in (1, 13):
        assert 0 < relative_error(chunked_logits(small, TOKENS, chunk), exact) < KV_Q8, chunk


# mlx-lm computes windows of Gemma 4 and Command R7B in test_mlx_families.py.
@pytest.mark.exhaustive
def test_mlx_lms_logits_are_those_of_transformers(
    models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window as long as the context hides nothing. In mlx-lm, only llama supports mixed windows."""
    folders = {}
    for name in WINDOWED:
        model = make_windowed(name, tmp_path / name, sliding_window=CONTEXT)
        folders[name] = export_mlx(model, tmp_path / f"{name}-mlx"), logits_of_transformers(model)
    mixed = (None, WINDOW)
    from nearfar.compiler.arch import by_model_type

    arch = by_model_type("mistral")
    read_config = arch.read_config
    monkeypatch.setattr(arch, "read_config", lambda config: replace(read_config(config), windows=mixed))
    bundle = export_mlx(models["mistral"], tmp_path / "mixed")
    ours = chunked_logits(open_mlx(bundle), TOKENS, len(TOKENS))
    assert relative_error(ours, logits_of_transformers(models["mistral"])) > F32
    folders["mixed"] = bundle, ours
    found = answers_of_mlx_lm({name: bundle.path for name, (bundle, _) in folders.items()}, tmp_path)
    for name, (_, expected) in folders.items():
        assert relative_error(found[name], expected) < F32, name


def answers_of_mlx_lm(folders: Mapping[str, Path], directory: Path) -> Mapping[str, Any]:
    """The logits of TOKENS by name."""
    logits = {name: str(directory / f"{name}.npy") for name in folders}
    jobs = [
        {"folder": str(path), "prompts": [TOKENS], "max_tokens": 1, "logits": logits[name]}
        for name, path in folders.items()
    ]
    (directory / "jobs.json").write_text(json.dumps(jobs))
    program = str(Path(__file__).parent / "mlx_lm_process.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, program, str(directory / "jobs.json")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return {name: np.load(path) for name, path in logits.items()}


@pytest.mark.parametrize("name", ["mistral", "phi3"])
def test_mlx_lm_refuses_windows_that_it_does_not_compute(name: str, models: Mapping[str, Path], tmp_path: Path) -> None:
    from mlx_lm.utils import load_model

    folder = export_mlx(models[name], tmp_path / name).path
    with pytest.raises(ValueError, match=f"Model type {name}_sliding_window not supported"):
        load_model(folder)


def test_the_configuration_states_the_windows_and_the_part_that_is_rotated(
    models: Mapping[str, Path], tmp_path: Path
) -> None:
    packing = Packing(quant.by_name("f32"), "float32")

    def config(name: str, context: int, **changes: object) -> dict[str, Any]:
        write_config(replace(load(str(models[name])).spec, **changes), packing, context, tmp_path)  # type: ignore[arg-type]
        found: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
        return found

    fitting = config("phi3", WINDOW)
    assert (fitting["model_type"], fitting["partial_rotary_factor"], fitting["max_position_embeddings"]) == (
        "phi3",
        0.5,
        WINDOW,
    )
    assert "sliding_window" not in fitting
    longer = config("phi3", WINDOW + 1)
    assert (longer["model_type"], longer["sliding_window"], longer["max_position_embeddings"]) == (
        "phi3_sliding_window",
        WINDOW,
        512,
    )
    mixed = config("mistral", 48, windows=(WINDOW, None))
    assert (mixed["model_type"], mixed["layer_types"]) == ("mistral", ["sliding_attention", "full_attention"])
    assert config("mistral", 48, windows=(WINDOW, 9))["model_type"] == "mistral_sliding_window"


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("mistral", {"activation": "gelu"}, "activation gelu"),
        ("mistral", {"qkv_bias": True}, "biases qkv True"),
        ("phi3", {"head_dim": 16}, "head size 16"),
        ("phi3", {"model_type": "olmo"}, "mlx-lm's olmo"),
    ],
)
def test_a_model_that_mlx_lm_computes_otherwise_is_refused(
    name: str, changes: dict[str, Any], found: str, models: Mapping[str, Path]
) -> None:
    with pytest.raises(UnsupportedModel, match=found):
        require_known(replace(load(str(models[name])).spec, **changes))
