"""Whisper computes what transformers computes, on every kernel target: the rows of its encoder, and the logits of its
decoder in one piece and token by token, for two sequences that attend to different windows of sound.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from light_bundle import kernels_of_models
from plain_target import compile_plain, without_kernels
from test_runners import emulation_for, open_on
from tiny_whisper import CONTEXT, TEXT, log_mel, make_whisper
from tolerances import F32, KV_Q8, relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.pipeline.compile import compile_model
from nearfar.compiler.pipeline.options import CompileOptions
from nearfar.compiler.runtime.audio.windows import source_of, window_batch
from nearfar.compiler.runtime.base_runner import BaseRunner
from nearfar.compiler.runtime.batch import Chunk, FloatArray, make_batch
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.trust import check_runner

LIMITS = Limits(tokens=CONTEXT, sequences=2, rows=CONTEXT, pages=4, windows=2)
TOKENS = [[(7 * i * i + 3 * i + 5) % TEXT for i in range(17)], [(5 * i * i + 3 * i + 1) % TEXT for i in range(9)]]
WINDOWS = [log_mel(0), log_mel(1)]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The checkpoint's folder, and transformers' model."""
    folder = tmp_path_factory.mktemp("whisper")
    return folder, make_whisper(folder)


def compiled(folder: Path, output: Path, target: str, **options: Any) -> Bundle:
    """Without kernels for numpy."""
    on_device = target != "numpy"
    asked = {"target": target if on_device else "webgpu", "quantization": "f32", **options}
    with kernels_of_models() if on_device else without_kernels():
        compile_model(str(folder), output, CompileOptions(**asked))
    return open_bundle(output)


def expected(model: Any) -> tuple[list[FloatArray], list[FloatArray]]:
    """The rows of both windows, and the logits of both sequences."""
    import torch

    with torch.no_grad():
        frames = [torch.tensor(each)[None] for each in WINDOWS]
        rows = [model.model.encoder(each).last_hidden_state[0].numpy() for each in frames]
        logits = [
            model(input_features=each, decoder_input_ids=torch.tensor(tokens)[None]).logits[0].numpy()
            for each, tokens in zip(frames, TOKENS, strict=True)
        ]
    return rows, logits


def chunk(runner: BaseRunner[Any], index: int, start: int, stop: int) -> Chunk:
    """Tokens of a sequence, on two pages of its own."""
    pages = range(2 * index, 2 * index + 2)
    return Chunk(TOKENS[index][start:stop], start, pages, range(stop - start), source=source_of(runner.manifest, index))


# tests/web/test_page_transcripts.py runs a Whisper on WebGPU.
@pytest.mark.parametrize(
    "target", ["numpy", "cpu", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("webgpu", "cuda"))]
)
def test_rows_and_logits_are_those_of_transformers(
    target: str, whisper: tuple[Path, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, model = whisper
    emulated = emulation_for(target, request)
    bundle = compiled(folder, tmp_path / "bundle", target)
    runner = open_on(target, bundle, LIMITS, "float32", emulated)
    assert isinstance(runner, PlanRunner)
    page_size = runner.manifest.page_size
    rows, logits = expected(model)
    try:
        check_runner(runner, runner.manifest)
        for index, window in enumerate(WINDOWS):
            found = runner.listen(window_batch(runner.manifest, [window], index))
            assert relative_error(found, rows[index]) < F32
        chunks = [chunk(runner, index, 0, len(tokens)) for index, tokens in enumerate(TOKENS)]
        whole = runner.forward(make_batch(chunks, page_size)).logits
        assert relative_error(whole, np.concatenate(logits)) < F32
        for position in range(len(TOKENS[0])):
            here = [index for index, tokens in enumerate(TOKENS) if position < len(tokens)]
            chunks = [chunk(runner, index, position, position + 1) for index in here]
            output = runner.forward(make_batch(chunks, page_size))
            for row, index in zip(output.logits, here, strict=True):
                assert relative_error(row, logits[index][position]) < F32
    finally:
        runner.close()


def test_keys_and_values_of_sound_may_be_integers(tmp_path: Path) -> None:
    folder = tmp_path / "wide"
    folder.mkdir()
    make_whisper(folder, d_model=64, encoder_attention_heads=2, decoder_attention_heads=2)
    bundle = compile_plain(folder, tmp_path / "bundle", "q4f16", CONTEXT, kv="q8")
    assert {state.dtype for name, state in bundle.manifest.states.items() if name.endswith("kv")} == {"uint32"}
    exact = compile_plain(folder, tmp_path / "exact", "q4f16", CONTEXT)
    logits = []
    for each in (bundle, exact):
        runner = open_on("numpy", each, LIMITS, "float32", None)
        runner.listen(window_batch(each.manifest, [WINDOWS[0]]))
        logits.append(runner.forward(make_batch([chunk(runner, 0, 0, 17)], 16)).logits)
    assert 0 < relative_error(*logits) < KV_Q8


def test_a_batch_with_a_wrong_window_or_source_is_refused(whisper: tuple[Path, Any], tmp_path: Path) -> None:
    bundle = compile_plain(whisper[0], tmp_path / "bundle", "f32", CONTEXT)
    runner = open_on("numpy", bundle, LIMITS, "float32", None)
    manifest = bundle.manifest
    with pytest.raises(RequestError, match=r"reads windows of 1 to 50 rows, not of \[51\]"):
        runner.listen(window_batch(manifest, [np.pad(WINDOWS[0], ((0, 0), (0, 2)))]))
    with pytest.raises(RequestError, match="not finite"):
        runner.listen(window_batch(manifest, [np.full_like(WINDOWS[0], np.nan)]))
    with pytest.raises(RequestError, match="pages 8 to 11 of sound; the runner has 8"):
        runner.listen(window_batch(manifest, [WINDOWS[0]], 2))
    with pytest.raises(RequestError, match=r"a chunk of the batch names no sound; set Chunk\.source"):
        runner.forward(make_batch([Chunk([1], 0, [0], [0])], 16))
