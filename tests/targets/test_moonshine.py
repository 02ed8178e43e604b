"""Moonshine and Moonshine streaming compute what transformers computes, on every kernel target: the rows of their
encoders for clips of different lengths, and the logits of their decoders in one piece and token by token, for two
sequences that attend to two clips.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heard_pieces import Reads
from light_bundle import kernels_of_models
from plain_target import compile_plain, without_kernels
from sounds import pattern
from test_runners import emulation_for, open_on
from tiny_moonshine import (
    CONTEXT,
    VOCABULARY,
    make_moonshine,
    make_moonshine_streaming,
    rows_and_logits,
    streamed_rows_and_logits,
)
from tolerances import F32, INT8, relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.pipeline.compile import compile_model
from nearfar.compiler.pipeline.options import CompileOptions
from nearfar.compiler.runtime.audio.windows import attended_rows, least_samples, source_of, window_batch
from nearfar.compiler.runtime.base_runner import BaseRunner
from nearfar.compiler.runtime.batch import Chunk, FloatArray, make_batch
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.trust import check_runner

LIMITS = Limits(tokens=CONTEXT, sequences=2, rows=CONTEXT, pages=6, windows=2)
TOKENS = [[(7 * i * i + 3 * i + 5) % VOCABULARY for i in range(17)], [(5 * i + 1) % VOCABULARY for i in range(9)]]
# The last row has one frame of the first convolution, and all six.
CLIPS = [pattern(127 + 64 * 60), pattern(127 + 64 * (6 * 7 - 1) + 63)]
FAMILIES = {
    "moonshine": (make_moonshine, rows_and_logits),
    "streaming": (make_moonshine_streaming, streamed_rows_and_logits),
}
TARGETS = ["numpy", "webgpu", "cpu", "cuda"]
# tests/web/test_page_moonshine.py runs a streaming model on WebGPU.
USUAL = {("moonshine", "numpy"), ("streaming", "cpu")}
# The shortest clip, one that lacks a frame of the next row, and one that has it.
LENGTHS = [895, 895 + 6 * 64 - 1, 895 + 6 * 64, 16_000]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """The folder of each family's checkpoint, and transformers' model."""
    made = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    return {family: (folder, FAMILIES[family][0](folder)) for family, folder in made.items()}


def compiled(folder: Path, output: Path, target: str, **options: Any) -> Bundle:
    """Without kernels for numpy."""
    on_device = target != "numpy"
    asked = {"target": target if on_device else "webgpu", "quantization": "f32", **options}
    with kernels_of_models() if on_device else without_kernels():
        compile_model(str(folder), output, CompileOptions(**asked))
    return open_bundle(output)


def chunk(runner: BaseRunner[Any], index: int, start: int, stop: int) -> Chunk:
    """Tokens of a sequence, on pages of its own."""
    pages = range(3 * index, 3 * index + 3)
    source = source_of(runner.manifest, index, CLIPS[index])
    return Chunk(TOKENS[index][start:stop], start, pages, range(stop - start), source=source)


@pytest.mark.parametrize(
    ("family", "target"),
    [
        pytest.param(family, target, marks=() if (family, target) in USUAL else pytest.mark.exhaustive)
        for family in FAMILIES
        for target in TARGETS
    ],
)
def test_rows_and_logits_are_those_of_transformers(
    target: str,
    family: str,
    folders: dict[str, tuple[Path, Any]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    (folder, model), (_, computed) = folders[family], FAMILIES[family]
    emulated = emulation_for(target, request)
    bundle = compiled(folder, tmp_path / "bundle", target)
    runner = open_on(target, bundle, LIMITS, "float32", emulated)
    assert isinstance(runner, PlanRunner)
    manifest, audio = runner.manifest, runner.manifest.spec.audio
    assert audio is not None
    oracle = [computed(model, clip, tokens) for clip, tokens in zip(CLIPS, TOKENS, strict=True)]
    try:
        check_runner(runner, manifest)
        for length in LENGTHS if target in ("numpy", "cpu") else LENGTHS[:2]:
            samples = pattern(length)
            rows, _ = computed(model, samples, [1])
            assert len(rows) == attended_rows(audio, samples)
            found = runner.listen(window_batch(manifest, [samples]))
            assert relative_error(found[: len(rows)], rows) < F32
        # Both clips at once are not normalized together.
        found = runner.listen(window_batch(manifest, CLIPS))
        starts = np.cumsum([0, *(attended_rows(audio, each) + audio.rows_behind for each in CLIPS)])
        for start, (rows, _) in zip(starts[:-1], oracle, strict=True):
            assert relative_error(found[start : start + len(rows)], rows) < F32
        if family == "streaming":
            read_in_pieces(runner, lambda samples: computed(model, samples, TOKENS[0]))
            runner.listen(window_batch(manifest, CLIPS))
        chunks = [chunk(runner, index, 0, len(tokens)) for index, tokens in enumerate(TOKENS)]
        whole = runner.forward(make_batch(chunks, manifest.page_size)).logits
        assert relative_error(whole, np.concatenate([logits for _, logits in oracle])) < F32
        for position in range(len(TOKENS[0])):
            here = [index for index, tokens in enumerate(TOKENS) if position < len(tokens)]
            chunks = [chunk(runner, index, position, position + 1) for index in here]
            output = runner.forward(make_batch(chunks, manifest.page_size))
            for row, index in zip(output.logits, here, strict=True):
                assert relative_error(row, oracle[index][1][position]) < F32
    finally:
        runner.close()


def test_an_encoder_has_8_bits_beside_a_decoder_with_4(folders: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    folder, model = folders["streaming"]
    compile_plain(folder, tmp_path / "bundle", "q4f16", CONTEXT)
    bundle = open_bundle(tmp_path / "bundle")
    forms = {name: each.quantization for name, each in bundle.manifest.weights.items() if len(each.shape) == 2}
    assert {form for name, form in forms.items() if name.startswith("model.encoder.")} == {"q8f16"}
    assert forms["model.embed_tokens.weight"] == "q4f16"
    runner = open_on("numpy", bundle, LIMITS, "float32", None)
    rows, _ = streamed_rows_and_logits(model, CLIPS[0], [1])
    assert relative_error(runner.listen(window_batch(bundle.manifest, [CLIPS[0]])), rows) < INT8


def read_in_pieces(runner: BaseRunner[Any], oracle: Callable[[FloatArray], tuple[FloatArray, FloatArray]]) -> None:
    """A clip that grows is read from where it changes, and its rows and logits are those of the whole clip."""
    reads = Reads(runner)
    for length in (10_000, 10_960, 14_000):
        rows, logits = oracle(samples := pattern(length))
        found = reads.heard(samples, TOKENS[0])
        assert relative_error(found[0], rows) < F32
        assert relative_error(found[1], logits) < F32
    # Of 32, 35 and 44 rows: the new ones, those that changed, and the receptive field before these.
    assert reads.counts == [32, 3 + 1 + 5 + 13, 9 + 1 + 5 + 13]


def test_a_batch_with_a_wrong_window_is_refused(folders: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    bundle = compile_plain(folders["moonshine"][0], tmp_path / "bundle", "f32", CONTEXT)
    runner = open_on("numpy", bundle, LIMITS, "float32", None)
    audio = bundle.manifest.spec.audio
    assert audio is not None
    assert least_samples(audio) == LENGTHS[0]
    with pytest.raises(RequestError, match=r"reads windows of 3 to 1250 rows, not of \[2\]"):
        runner.listen(window_batch(bundle.manifest, [np.zeros(LENGTHS[0] - 1, np.float32)]))
    with pytest.raises(RequestError, match=r"reads windows of 3 to 1250 rows, not of \[1251\]"):
        runner.listen(window_batch(bundle.manifest, [np.zeros(30 * 16_000 + 384, np.float32)]))
