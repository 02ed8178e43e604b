"""Every decoder family in ONNX Runtime against transformers, and a family with two windows in ONNX Runtime GenAI."""

from __future__ import annotations

from pathlib import Path

import pytest
from decoder_families import FAMILIES, TOKENS, make_family
from onnx_cases import Session
from ragged import whole_and_in_chunks
from tolerances import relative_error

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.errors import UnsupportedModel
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Limits


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gemma4_text"])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    expected = make_family(name, tmp_path / "checkpoint")
    runner = open_runner("onnx", open_any(export(tmp_path)), Limits(tokens=64, rows=64, sequences=2))
    assert relative_error(whole_and_in_chunks(runner, TOKENS, 41), expected) < 1e-5
    assert relative_error(whole_and_in_chunks(runner, TOKENS, 5), expected) < 1e-5


def test_gemma_4_is_refused_by_name(tmp_path: Path) -> None:
    make_family("gemma4_text", tmp_path / "checkpoint")
    with pytest.raises(UnsupportedModel, match="no form in --target onnx; take --target webgpu, cpu or cuda"):
        export(tmp_path)


def test_genai_continues_a_text_beyond_the_window(tmp_path: Path) -> None:
    import onnxruntime_genai

    make_family("gemma3_text", tmp_path / "checkpoint")
    folder = export(tmp_path)
    model = onnxruntime_genai.Model(str(folder))
    generator = onnxruntime_genai.Generator(model, onnxruntime_genai.GeneratorParams(model))
    generator.append_tokens(TOKENS[:20])
    tokens: list[int] = []
    while len(tokens) < 16:
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    assert tokens == Session(folder).greedy(TOKENS[:20], 16)


def export(folder: Path) -> Path:
    options = CompileOptions(target="onnx", quantization="f32", context=41, activations=("float32",))
    compile_any(str(folder / "checkpoint"), folder / "onnx", options)
    return folder / "onnx"
