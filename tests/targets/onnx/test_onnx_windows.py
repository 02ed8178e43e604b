"""Mistral and Phi-3 on ONNX Runtime against transformers: windows, fused tensors and partial rotations, in every way of
running a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx_cases import Logits, relative_rms
from onnx_session import Session
from ragged import chunked_logits
from tolerances import F32, KV_Q8, ONNX_F32, relative_error
from windowed_models import TOKENS, WINDOWED, logits_of_transformers, make_all

from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.pipeline.export import export_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.onnx.runner import OnnxRunner

CONTEXT = 48
LIMITS = Limits(tokens=CONTEXT, sequences=3, rows=CONTEXT, pages=3)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return make_all(tmp_path_factory.mktemp("windowed"))


@pytest.mark.parametrize("name", WINDOWED)
def test_logits_equal_transformers_beyond_three_windows(name: str, models: Mapping[str, Path], tmp_path: Path) -> None:
    expected = logits_of_transformers(models[name])
    exported = export_model(
        str(models[name]), tmp_path / "f32", CompileOptions(target="onnx", quantization="f32", context=CONTEXT)
    )
    for chunk in (1, 6, len(TOKENS)):
        session = Session(tmp_path / "f32")
        found = [session.run([TOKENS[start : start + chunk]])[0] for start in range(0, len(TOKENS), chunk)]
        ends = [min(start + chunk, len(TOKENS)) - 1 for start in range(0, len(TOKENS), chunk)]
        assert relative_error(np.stack(found), expected[ends]) < F32, chunk
    runner = OnnxRunner(exported, limits=LIMITS, threads=2)
    for chunk in (1, 13, len(TOKENS)):
        assert relative_error(chunked_logits(runner, TOKENS, chunk), expected) < F32, chunk
    assert_steps_of_sequences_side_by_side(runner, expected)
    runner.close()


def assert_steps_of_sequences_side_by_side(runner: OnnxRunner, expected: Logits) -> None:
    """Two sequences of different lengths decode in one call; the row between them is a filler."""
    for page, length in ((0, 30), (2, 4)):
        runner.forward(make_batch([Chunk(TOKENS[:length], 0, [page])], CONTEXT))
    for step in range(8):
        chunks = [Chunk([TOKENS[start + step]], start + step, [page], [0]) for page, start in ((0, 30), (2, 4))]
        logits = runner.forward(make_batch(chunks, CONTEXT)).logits
        assert relative_error(logits, expected[[30 + step, 4 + step]]) < F32, step


@pytest.mark.parametrize("name", WINDOWED)
def test_rows_of_a_padded_batch_are_each_as_alone(name: str, models: Mapping[str, Path], tmp_path: Path) -> None:
    export_model(
        str(models[name]), tmp_path / "f32", CompileOptions(target="onnx", quantization="f32", context=CONTEXT)
    )
    expected = logits_of_transformers(models[name])
    lengths, together = (20, 9, 1), Session(tmp_path / "f32")
    padded = [[*TOKENS[:length], *[0] * (20 - length)] for length in lengths]
    first = together.run(padded, [[1] * length + [0] * (20 - length) for length in lengths])
    then = together.run(
        [[TOKENS[length]] for length in lengths], [[1] * (length + 1) + [0] * (20 - length) for length in lengths]
    )
    assert relative_error(first, expected[[length - 1 for length in lengths]]) < F32
    assert relative_error(then, expected[list(lengths)]) < F32


def test_the_runner_of_a_cache_of_8_bit_integers_stays_near(models: Mapping[str, Path], tmp_path: Path) -> None:
    for name in ("mistral", "phi3"):
        plain, small = (
            export_model(
                str(models[name]),
                tmp_path / f"{name}-{kv}",
                CompileOptions(target="onnx", quantization="f32", context=CONTEXT, kv=kv),
            )
            for kv in ("activation", "q8")
        )
        assert isinstance(small, ExportBundle)
        exact, near = (
            chunked_logits(OnnxRunner(bundle, limits=LIMITS, threads=2), TOKENS, 6) for bundle in (plain, small)
        )
        assert ONNX_F32 < relative_rms(near, exact) < KV_Q8, name


def test_genai_and_transformers_js_continue_a_text_beyond_the_window(
    models: Mapping[str, Path], tmp_path: Path, node: str
) -> None:
    import onnxruntime_genai
    from test_onnx_loaders import run_transformers_js

    text = "Near and far, all the same."
    for name in ("mistral", "phi3"):
        folder = tmp_path / name
        export_model(str(models[name]), folder, CompileOptions(target="onnx", quantization="f32", context=CONTEXT))
        model = onnxruntime_genai.Model(str(folder))
        prompt = [int(token) for token in onnxruntime_genai.Tokenizer(model).encode(text)]
        generator = onnxruntime_genai.Generator(model, onnxruntime_genai.GeneratorParams(model))
        generator.append_tokens(prompt)
        found: list[int] = []
        while len(found) < 12:
            generator.generate_next_token()
            found.append(int(generator.get_next_tokens()[0]))
        expected = Session(folder).greedy(prompt, 12)
        assert found == expected, name
        assert run_transformers_js(node, folder, text)["tokens"] == expected, name
