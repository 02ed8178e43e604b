"""mlx-lm loads the folder without changes and computes our logits and greedy tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_selection import names_in, usual_or_exhaustive
from decoder_families import make_family
from plain_target import compile_plain
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle, ExportBundle, open_any
from nearfar.compiler.cli import main
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.generate import generate, score
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

CompileTiny = Callable[..., Path]
QUESTIONS = ("what is 27 + 58?", "tell me a story about a fox")
TOKENS = 16
# Checkpoint, quantization, group size: every architecture, with tied and untied heads, with and without biases, each
# kind of weights.
CASES = [
    ("llama", "f32", None),
    ("llama_plain_wide", "q4f32", 32),
    ("qwen2_wide", "q4f16", 64),
    ("qwen3_wide", "q8f16", 128),
    ("llama_wide", "f16", None),
]
# The same for families whose checkpoints this suite writes. The first two store rows for interleaved RoPE.
FAMILY_CASES = [("glm4", "f32", None), ("ernie4_5", "q4f32", 32), ("hunyuan_v1_dense", "f32", None)]
TINY = [checkpoint for checkpoint, _, _ in (*CASES, *FAMILY_CASES)]
# The others have parts and formats that these have: Ernie 4.5 the 4 bits of `llama_plain_wide`, GLM-4 its floats.
USUAL = ("qwen2_wide", "qwen3_wide", "llama_wide", "glm4", "ernie4_5")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Bundle | ExportBundle]:
    """The demo model for MLX by activation dtype, and as a bundle with a plan."""
    folder = tmp_path_factory.mktemp("demo")
    found = {
        name: compile_any(str(CHECKPOINT), folder / name, CompileOptions(target="mlx", activations=(name,)))
        for name in ("float32", "float16", "bfloat16")
    }
    return {**found, "plan": compile_plain(CHECKPOINT, folder / "plan", "q4f16", 512)}


@pytest.fixture(scope="module")
def folders(
    demo: Mapping[str, Bundle | ExportBundle],
    compile_tiny: CompileTiny,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    mlx: Any,  # noqa: ARG001
) -> Mapping[str, Path]:
    names = {*names_in(request), *USUAL}
    tiny = {
        checkpoint: compile_tiny(checkpoint, quantization, target="mlx", group_size=group, activations=("float32",))
        for checkpoint, quantization, group in CASES
        if checkpoint in names
    }
    for family, quantization, group in (case for case in FAMILY_CASES if case[0] in names):
        folder = tmp_path_factory.mktemp(family)
        make_family(family, folder / "checkpoint")
        options = CompileOptions(
            target="mlx", quantization=quantization, group_size=group, context=256, activations=("float32",)
        )
        tiny[family] = compile_any(str(folder / "checkpoint"), folder / "mlx", options).path
    return tiny | {name: bundle.path for name, bundle in demo.items() if name != "plan"}


@pytest.fixture(scope="module")
def answers(
    folders: Mapping[str, Path], prompt_token_ids: list[int], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Any]:
    """mlx-lm's answers to the prompts of each folder, and its logits of the first prompt."""
    folder = tmp_path_factory.mktemp("answers")
    jobs: list[dict[str, Any]] = [
        {
            "folder": str(path),
            "prompts": [prompt_token_ids] if name in TINY else QUESTIONS,
            "max_tokens": TOKENS,
            "logits": str(folder / f"{name}.npy"),
        }
        for name, path in folders.items()
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    program = Path(__file__).parent / "mlx_lm_process.py"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(program), str(folder / "jobs.json")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: (answer, np.load(job["logits"])) for name, job, answer in zip(folders, jobs, found, strict=True)}


@pytest.mark.parametrize("name", usual_or_exhaustive(TINY, USUAL))
def test_mlx_lms_logits_and_greedy_tokens_are_ours(
    name: str, answers: Mapping[str, Any], folders: Mapping[str, Path], prompt_token_ids: list[int]
) -> None:
    runner = open_runner("mlx", open_any(folders[name]), Limits(tokens=75, rows=75))
    logits = np.concatenate(list(score(runner, prompt_token_ids, 75)))
    (theirs,), their_logits = answers[name]
    assert relative_error(their_logits, logits) < F32
    assert theirs["token_ids"] == list(generate(runner, prompt_token_ids, TOKENS, Sampler()))
    runner.close()


@pytest.mark.parametrize("activation", ["float32", "float16", "bfloat16"])
def test_the_demo_model_answers_mlx_lm_as_it_does_the_reference(
    activation: str, answers: Mapping[str, Any], demo: Mapping[str, Bundle | ExportBundle]
) -> None:
    tokenizer = Tokenizer(demo["plan"].tokenizer_files())
    # Bfloat16 rounds coarsely enough to change a story.
    for question, theirs in zip(
        QUESTIONS[: 1 if activation == "bfloat16" else None], answers[activation][0], strict=False
    ):
        prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
        assert theirs["prompt_ids"] == prompt
        for name, runner in (("numpy", demo["plan"]), ("mlx", demo[activation])):
            assert theirs["token_ids"] == list(
                generate(open_runner(name, runner, Limits(tokens=64)), prompt, TOKENS, Sampler())
            ), name


def test_the_command_line_accepts_the_folder(
    demo: Mapping[str, Bundle | ExportBundle],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mlx: Any,  # noqa: ARG001
) -> None:
    path = str(demo["float16"].path)
    assert main(["run", path, QUESTIONS[0], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "27 + 58 = 85"
    assert answer["device"].startswith("MLX ")
    assert main(["score", path, "--tokens", "1,2,3", "-o", str(tmp_path / "logits.npy"), "--json"]) == 0
    assert np.load(tmp_path / "logits.npy").shape == (3, 1024)
    assert main(["run", path, "hello", "--runner", "cpu"]) == 2
    assert "was compiled for mlx" in " ".join(capsys.readouterr().err.split())
