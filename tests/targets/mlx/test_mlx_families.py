"""Every decoder family as a folder for MLX: our runner and mlx-lm return the reference's logits and greedy tokens, and
models that mlx-lm computes differently are refused by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from case_selection import names_in, usual_or_exhaustive
from decoder_families import FAMILIES, HYBRIDS, PLAIN_FAMILIES, TOKENS, WITH_EXPERTS, YARN, make_family
from plain_target import compile_plain
from quantized_families import WIDE, logits_of
from ragged import chunked_logits
from tolerances import F32, KV_Q8, relative_error

from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.export.same_model import differences
from nearfar.compiler.formats import load
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.ir.spec import RopeSpec
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.pipeline.export import export_model
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.mlx.models import require_known

NEW_TOKENS = 16
CONTEXT = len(TOKENS) + NEW_TOKENS
LIMITS = Limits(tokens=64, sequences=2, rows=CONTEXT, pages=6)
# Constants of mlx-lm: Granite's head size, the layers of Command R7B that have no window, Gemma's embedding factor (a
# root that every dtype represents exactly), and no windows for Gemma 2. Ministral 3 is computed beyond its original
# length. OLMoE has no limits, Mamba-2 one norm, and every second layer of Qwen3.5 is one of attention.
CHANGES: dict[str, dict[str, Any]] = {
    "granite": {"hidden_size": 144},
    "cohere2": {"layer_types": None, "sliding_window_pattern": 2},
    "gemma2": {"hidden_size": 144, "sliding_window": 64},
    "gemma3_text": {"hidden_size": 144},
    "gemma4_text": {"hidden_size": 144},
    "gemma4_experts": {"hidden_size": 144},
    "gemma4_unified_text": {"hidden_size": 144},
    "mamba2": {"n_groups": 1},
    "olmoe": {"clip_qkv": None},
    "qwen3_5_text": {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2},
    "ministral3": {
        "rope_parameters": {**YARN, "original_max_position_embeddings": 13, "llama_4_scaling_beta": 0.8},
    },
}
# mlx-lm's models compute one activation each, and always round the bounds of YaRN's blend.
REFUSED = {
    # Those that we have not compared with mlx-lm's.
    "granite_swa": "head size 24",
    "gemma": "mlx-lm computes the exact GELU",
    "gpt2": "transposes its matrices when it loads them",
    "gpt_neox": "GELU's approximation with tanh, the model the exact one",
    "olmo": "hf_olmo",
    "apertus": "the factors of its activation as they were before softplus",
    "starcoder2": "mlx-lm computes the exact GELU",
    "gpt_oss": "; experts; mlx-lm rounds the bounds of YaRN's blend",
    "falcon_h1": "mlx-lm multiplies the weights by the factors",
    "lfm3": "layers of short_conv",
    "llama_yarn": "activation gelu_tanh",
    "llama_yarn_mscale": "rotated with scaling yarn",
}

# What a folder says otherwise: windows that its context does not reach, rotations of one length, a name in mlx-lm.
REWRITTEN = {
    "gemma2": frozenset({"max_position_embeddings", "windows"}),
    "gemma4_unified_text": frozenset({"model_type"}),
    "llama_dynamic": frozenset({"max_position_embeddings", "rope", "window_rope"}),
    "phi3_long": frozenset({"rope", "window_rope"}),
    "phi3_short": frozenset({"rope", "window_rope"}),
}
COMPUTED = [name for name in (*FAMILIES, *PLAIN_FAMILIES, *HYBRIDS) if name not in REFUSED]
# Our runner computes neither experts nor states.
RUN = [name for name in COMPUTED if name not in (*HYBRIDS, *WITH_EXPERTS)]
# A mixture, states, and both.
BEYOND = ("gemma4_experts", "qwen3_moe", "qwen3_5_text", "granitemoehybrid_experts")
# Sizes that are divisible into groups of 32 weights.
GROUPED: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"head_dim": 32, "moe_intermediate_size": 64},
    "qwen3_5_text": {
        "head_dim": 32,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
    "gemma4_experts": {
        "hidden_size": 256,
        "head_dim": 32,
        "global_head_dim": 64,
        "layer_types": ["sliding_attention", "full_attention"],
        "moe_intermediate_size": 64,
    },
    "granitemoehybrid_experts": {
        "mamba_n_heads": 4,
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 64,
        "intermediate_size": 64,
    },
}
# They have every block: a mixture with multipliers and states; the gated delta rule; LayerNorms and sub-layers side by
# side; soft caps and norms behind sub-layers; windows, heads of two sizes, two tables of rotations and shared keys and
# values; YaRN; scaled queries; parts of heads and biases; a feed-forward without a gate. test_mlx_lm.py has GLM-4 and
# Ernie 4.5, and with Llama and Qwen the norms of queries and keys.
USUAL = (
    "granitemoehybrid_experts", "qwen3_5_text", "cohere2", "gemma2", "gemma4_text", "nemotron", "ministral3",
    "stablelm", "phi3_long",
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("mlx")


@dataclass(frozen=True, slots=True)
class Case:
    bundle: ExportBundle
    logits: npt.NDArray[np.float32]
    token_ids: list[int]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Mapping[str, Case]:
    """The folder of each family of this session, with the logits and greedy tokens of the reference runner."""
    found = {}
    names = names_in(request)
    for name in (name for name in COMPUTED if name in names or name in USUAL):
        folder = tmp_path_factory.mktemp(name)
        make_family(name, folder / "checkpoint", **CHANGES.get(name, {}))
        reference = ReferenceRunner(compile_plain(folder / "checkpoint", folder / "plan", "f32", CONTEXT))
        logits = chunked_logits(reference, TOKENS, len(TOKENS))
        token_ids = list(generate(reference, TOKENS, NEW_TOKENS, Sampler()))
        found[name] = Case(export(folder / "checkpoint", folder / "mlx"), logits, token_ids)
    return found


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Mapping[str, Path]:
    """The folders of 4-bit integers of this session."""
    found = {}
    names = names_in(request, "test_integers")
    for name, sizes in ((name, sizes) for name, sizes in GROUPED.items() if name in names):
        folder = tmp_path_factory.mktemp(f"{name}_q4")
        make_family(name, folder / "checkpoint", **{**WIDE, **sizes})
        found[name] = export(folder / "checkpoint", folder / "mlx", quantization="q4f32").path
    return found


@pytest.fixture(scope="module")
def answers(
    cases: Mapping[str, Case], quantized: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[Any, list[int]]]:
    """mlx-lm's logits and greedy tokens of each folder; those of integers are called "NAME q4"."""
    folder = tmp_path_factory.mktemp("answers")
    folders = {name: case.bundle.path for name, case in cases.items()}
    folders |= {f"{name} q4": path for name, path in quantized.items()}
    jobs = [
        {
            "folder": str(path),
            "prompts": [TOKENS],
            "max_tokens": NEW_TOKENS,
            "logits": str(folder / f"{name}.npy"),
        }
        for name, path in folders.items()
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "mlx_lm_process.py"), str(folder / "jobs.json")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        name: (np.load(job["logits"]), answer[0]["token_ids"])  # type: ignore[arg-type]
        for name, job, answer in zip(folders, jobs, found, strict=True)
    }


def export(model: Path, folder: Path, context: int = CONTEXT, **options: Any) -> ExportBundle:
    given = {"quantization": "f32", "activations": ("float32",), **options}
    return export_model(str(model), folder, CompileOptions(target="mlx", context=context, **given))


@pytest.mark.parametrize("name", usual_or_exhaustive(COMPUTED, USUAL))
def test_mlx_lm_gives_the_logits_and_greedy_tokens_of_the_reference(
    name: str, cases: Mapping[str, Case], answers: Mapping[str, tuple[Any, list[int]]]
) -> None:
    logits, token_ids = answers[name]
    assert relative_error(logits, cases[name].logits) < F32
    assert token_ids == cases[name].token_ids


def test_folders_are_read_back_as_the_same_models(cases: Mapping[str, Case]) -> None:
    for name, case in cases.items():
        # Windows on some layers are Ministral's, and its folder names Llama.
        if name != "ministral":
            read = load(str(case.bundle.path)).spec
            assert {*differences(case.bundle.manifest.spec, read)} <= REWRITTEN.get(name, frozenset()), name


@pytest.mark.parametrize("name", usual_or_exhaustive(BEYOND, USUAL))
def test_integers_of_experts_and_states_are_those_that_mlx_lm_reads(
    name: str, quantized: Mapping[str, Path], answers: Mapping[str, tuple[Any, list[int]]]
) -> None:
    # Read back as a checkpoint, with the router in floats.
    assert load(str(quantized[name])).stored_forms.keys() == {"q4g32b"}
    assert relative_error(answers[f"{name} q4"][0], logits_of(quantized[name])) < F32


@pytest.mark.parametrize("name", usual_or_exhaustive(BEYOND, USUAL))
def test_our_runner_leaves_experts_and_states_to_mlx_lm(name: str, cases: Mapping[str, Case]) -> None:
    with pytest.raises(UnsupportedModel, match="which the MLX runner does not compute; run the folder with mlx-lm, or"):
        open_runner("mlx", cases[name].bundle, LIMITS)


@pytest.mark.parametrize("name", usual_or_exhaustive(RUN, USUAL))
def test_our_runner_gives_the_logits_and_greedy_tokens_of_the_reference(name: str, cases: Mapping[str, Case]) -> None:
    runner = open_runner("mlx", cases[name].bundle, LIMITS)
    for chunk in (len(TOKENS), 9):
        assert relative_error(chunked_logits(runner, TOKENS, chunk), cases[name].logits) < F32, chunk
    assert list(generate(runner, TOKENS, NEW_TOKENS, Sampler())) == cases[name].token_ids
    runner.close()


def test_upper_layers_compute_sampled_rows_of_several_sequences(cases: Mapping[str, Case]) -> None:
    runner = open_runner("mlx", cases["gemma4_text"].bundle, LIMITS)
    steps = (
        (Chunk(TOKENS[:13], 0, [4], [3, 12]), Chunk(TOKENS[:7], 0, [0])),
        (Chunk(TOKENS[13:40], 13, [4], [26]), Chunk(TOKENS[7:39], 7, [0], [0, 31], slot=1)),
        (Chunk(TOKENS[40:], 40, [4], [0]), Chunk(TOKENS[39:40], 39, [0], [0], slot=1)),
    )
    found = [runner.forward(make_batch(chunks, CONTEXT)).logits.copy() for chunks in steps]
    expected = cases["gemma4_text"].logits[[3, 12, 39, 7, 38, 40, 39]]
    assert relative_error(np.concatenate(found), expected) < F32
    runner.close()


@pytest.mark.parametrize("name", REFUSED)
def test_families_that_mlx_lm_computes_otherwise_are_refused(name: str, tmp_path: Path) -> None:
    make_family(name, tmp_path / "checkpoint")
    with pytest.raises(UnsupportedModel, match=f"mlx-lm's .* has .*{REFUSED[name]}.*use --target webgpu"):
        export(tmp_path / "checkpoint", tmp_path / "mlx")


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("granite", {"attention_softcap": 20.0}, "attention_softcap 20.0"),
        ("olmo2", {"residual_scale": 0.5}, "residual_scale 0.5"),
        ("gemma2", {"attention_softcap": None}, "mlx-lm's gemma2"),
        ("gemma2", {"attention_scale": 0.3}, "mlx-lm's gemma2"),
        ("gemma3_text", {"windows": (None, 11, 11, None)}, "mlx-lm's gemma3_text"),
        ("gemma4_text", {"window_num_kv_heads": 1}, "mlx-lm's gemma4_text"),
        (
            "gemma4_text",
            {"embedding_scale": 8.0},
            "multiplies the embedding by 12 .*checkpoint by 8; use --activations",
        ),
        ("exaone4", {"unrotated": (0,)}, "mlx-lm's exaone4"),
        ("cohere2", {"unrotated": (0,)}, "mlx-lm's cohere2"),
        ("cohere2", {"windows": (11, None, None, None)}, "mlx-lm's cohere2"),
        ("cohere2", {"tie_word_embeddings": False}, "mlx-lm's cohere2"),
        ("stablelm", {"output_bias": True}, "mlx-lm's stablelm"),
        ("stablelm", {"tie_word_embeddings": True}, "mlx-lm's stablelm"),
        ("olmo3", {"window_rope": RopeSpec(500.0)}, "mlx-lm's olmo3"),
        ("phi3_long", {"max_position_embeddings": 4096}, "scaling longrope"),
        ("smollm3", {"rope": RopeSpec(500.0, "proportional")}, "scaling proportional"),
        ("olmoe", {"qkv_limit": 0.7}, "qkv_limit 0.7"),
        ("lfm2", {"tie_word_embeddings": False}, "mlx-lm's lfm2"),
        ("lfm2", {"mixers": ("short_conv",) * 3}, "mlx-lm's lfm2"),
        ("mamba2", {"rms_norm_eps": 1e-6}, "mlx-lm's mamba2"),
        ("granitemoehybrid", {"unrotated": (1,)}, "mlx-lm's granitemoehybrid"),
        ("qwen3_5_text", {"mixers": ("attention", *["gated_delta"] * 3)}, "mlx-lm's qwen3_5_text"),
    ],
)
def test_models_that_mlx_lm_does_not_compute_are_refused_by_name(
    name: str, changes: dict[str, Any], found: str, tmp_path: Path
) -> None:
    make_family(name, tmp_path, **CHANGES.get(name, {}))
    spec = load(str(tmp_path)).spec
    require_known(spec)
    with pytest.raises(UnsupportedModel, match=f"{found}.*use --target webgpu, cpu or cuda"):
        require_known(replace(spec, **changes))


def test_the_root_of_the_hidden_size_is_compared_in_the_dtype_of_the_activations(cases: Mapping[str, Case]) -> None:
    # Gemma 2 9B: sqrt(3584) is 59.87, and 59.75 in bfloat16.
    spec = replace(cases["gemma2"].bundle.manifest.spec, hidden_size=3584, embedding_scale=59.75)
    require_known(spec, "bfloat16")
    with pytest.raises(UnsupportedModel, match=r"by 59.875 if activations are float16, the checkpoint by 59.75"):
        require_known(spec, "float16")


def test_mlx_lm_refuses_windows_of_gemma_2_that_our_runner_computes(tmp_path: Path) -> None:
    expected = make_family("gemma2", tmp_path / "checkpoint", hidden_size=144)
    bundle = export(tmp_path / "checkpoint", tmp_path / "mlx")
    assert json.loads((bundle.path / "config.json").read_text())["model_type"] == "gemma2_sliding_window"
    runner = open_runner("mlx", bundle, LIMITS)
    assert relative_error(chunked_logits(runner, TOKENS, len(TOKENS)), expected) < F32
    runner.close()


def test_heads_of_two_sizes_have_8_bit_keys_and_values(tmp_path: Path) -> None:
    # Two layers, because the tiny model's scores magnify an error with each layer.
    kinds = ["sliding_attention", "full_attention"]
    changes: dict[str, Any] = {"hidden_size": 144, "head_dim": 32, "global_head_dim": 64, "num_kv_shared_layers": 0}
    changes |= {"num_hidden_layers": 2, "layer_types": kinds}
    expected = make_family("gemma4_text", tmp_path / "checkpoint", **changes)
    runner = open_runner("mlx", export(tmp_path / "checkpoint", tmp_path / "mlx", kv="q8"), LIMITS)
    assert F32 < relative_error(chunked_logits(runner, TOKENS, 9), expected) < KV_Q8
    runner.close()
