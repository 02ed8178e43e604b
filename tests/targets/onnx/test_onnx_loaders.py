"""ONNX Runtime GenAI and Transformers.js load the folder without changes, and continue a text like a loop over the
graph.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from onnx_cases import CONTEXT, Export
from onnx_session import Session

from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.pipeline.export import export_model

TEXT = "Near and far."
COUNT = 12
SCRIPT = Path(__file__).parent / "transformers_js.mjs"
CASES = [
    ("llama", "f32", "activation"), ("qwen2", "f32", "activation"), ("qwen3", "f32", "activation"), ("qwen3", "q4f16",
    "activation"),
    ("qwen3", "f32", "q8"),
]  # fmt: skip


@pytest.mark.parametrize(("checkpoint", "quantization", "kv"), CASES)
def test_genai_loads_the_folder_and_generates_the_same_tokens(
    export_onnx: Export, checkpoint: str, quantization: str, kv: str
) -> None:
    import onnxruntime_genai

    folder = export_onnx(checkpoint, quantization, kv=kv)
    model = onnxruntime_genai.Model(str(folder))
    prompt = [int(token) for token in onnxruntime_genai.Tokenizer(model).encode(TEXT)]
    assert prompt == token_ids(folder)
    parameters = onnxruntime_genai.GeneratorParams(model)
    assert parameters.get_search_options()["max_length"] == CONTEXT
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(prompt)
    found: list[int] = []
    while len(found) < COUNT:
        generator.generate_next_token()
        found.append(int(generator.get_next_tokens()[0]))
    assert found == Session(folder).greedy(prompt, COUNT)


@pytest.mark.parametrize(("checkpoint", "quantization", "kv"), CASES)
def test_transformers_js_loads_the_folder_and_generates_the_same_tokens(
    node: str, export_onnx: Export, checkpoint: str, quantization: str, kv: str
) -> None:
    folder = export_onnx(checkpoint, quantization, kv=kv)
    answer = run_transformers_js(node, folder, TEXT)
    assert answer == {
        "prompt": token_ids(folder),
        "tokens": Session(folder).greedy(token_ids(folder), COUNT),
        "chat": f"<s>{TEXT}",
    }


def test_transformers_js_finds_weights_beside_the_graph(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nearfar.targets.onnx import weights

    monkeypatch.setattr(weights, "FILE_BYTES", 500_000)
    export_model(str(CHECKPOINT), tmp_path / "demo", CompileOptions(target="onnx", quantization="f32", context=CONTEXT))
    assert len(list((tmp_path / "demo/onnx").glob("*_data*"))) > 2
    answer = run_transformers_js(node, tmp_path / "demo", "<bos><user>What is 3 plus 4?<end><assistant>")
    assert answer["tokens"] == [23, 308, 225, 24, 279, 225, 27, 3]


@pytest.mark.parametrize(("device", "wanted"), [("cpu", None), ("webgpu", "webgpu"), ("cuda", "cuda")])
def test_transformers_js_and_genai_get_the_device(export_onnx: Export, device: str, wanted: str | None) -> None:
    folder = export_onnx("qwen2", "q4f16", device=device)
    assert json.loads((folder / "config.json").read_text())["transformers.js_config"].get("device") == wanted
    options = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["session_options"]
    assert options["provider_options"] == ([{wanted: {}}] if wanted else [])


def run_transformers_js(node: str, folder: Path, text: str) -> Mapping[str, object]:
    [answer] = answers_of_transformers_js(node, [folder], text)
    return answer


def answers_of_transformers_js(node: str, folders: Sequence[Path], text: str) -> list[Mapping[str, object]]:
    """One process loads all folders."""
    done = subprocess.run(
        [node, SCRIPT, text, str(COUNT), *folders], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: list[Mapping[str, object]] = json.loads(done.stdout)
    return answers


def token_ids(folder: Path) -> list[int]:
    from tokenizers import Tokenizer

    found: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    return found
