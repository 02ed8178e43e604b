"""Moonshine, Moonshine streaming and Parakeet CTC in ONNX Runtime and Transformers.js, as their users run them: sounds
of any length, up to the longest window.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_bundles import Exported, export_folder
from onnx_cases import check_graph
from onnx_session import SpeechSession, open_graph
from sounds import chirp, pattern
from tiny_moonshine import (
    END,
    START,
    VOCABULARY,
    make_moonshine,
    make_moonshine_streaming,
    rows_and_logits,
    streamed_rows_and_logits,
)
from tiny_parakeet import BLANK, MELS, make_parakeet
from tolerances import F32, INT8, relative_error

from nearfar.compiler.bundle.folder import ExportBundle, open_any
from nearfar.compiler.cli.trial import find_trial
from nearfar.compiler.measure.dry_run import dry_run
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.targets.onnx.runner import check_machine

SCRIPT = Path(__file__).parent / "transformers_js_transcript.mjs"
MOONSHINES: dict[str, tuple[Callable[..., Any], Callable[..., tuple[FloatArray, FloatArray]]]] = {
    "moonshine": (make_moonshine, rows_and_logits),
    "streaming": (make_moonshine_streaming, streamed_rows_and_logits),
}
# The shortest clip that makes a row, one that lacks a frame of the next row, and one that has it.
LENGTHS = [895, 895 + 6 * 64 - 1, 895 + 6 * 64, 16_000]
TOKENS = [[(7 * i * i + 3 * i + 5) % VOCABULARY for i in range(17)], [(5 * i + 1) % VOCABULARY for i in range(17)]]
# Frames of sounds: of one row and less, of full rows, and with 1 to 7 frames of the last row.
FRAMES = [1, 7, 64, 97, 103]


export = partial(export_folder, quantization="f32")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """Each family's checkpoint, folder and model. With these weights, tokens differ."""
    found = {}
    for family, (make, _) in MOONSHINES.items():
        folder = tmp_path_factory.mktemp(family)
        model = make(folder / "checkpoint", seed=1, scale=0.4)
        found[family] = Exported(folder / "checkpoint", folder / "bundle", model)
    folder = tmp_path_factory.mktemp("parakeet")
    found["parakeet"] = Exported(folder / "checkpoint", folder / "bundle", make_parakeet(folder / "checkpoint"))
    for case in found.values():
        export(case.checkpoint, case.bundle)
    return found


@pytest.mark.parametrize("family", MOONSHINES)
def test_rows_and_logits_are_those_of_transformers(family: str, cases: dict[str, Exported]) -> None:
    case, (_, computed) = cases[family], MOONSHINES[family]
    for length in LENGTHS:
        samples = pattern(length)
        rows, _ = computed(case.model, samples, [1])
        assert relative_error(SpeechSession(case.bundle, samples[None]).rows[0], rows) < F32
    clips = np.stack([pattern(9_000), chirp(9_000)])
    oracle = [computed(case.model, clip, tokens)[1] for clip, tokens in zip(clips, TOKENS, strict=True)]
    logits = np.stack(oracle)
    session = SpeechSession(case.bundle, clips)
    # A prompt at once, more tokens at once after a past, and token by token.
    for start, stop in ((0, 4), (4, 9), *((index, index + 1) for index in range(9, 17))):
        found = session.run([tokens[start:stop] for tokens in TOKENS])
        assert relative_error(found, logits[:, stop - 1]) < F32
    check_graph(case.bundle / "onnx/encoder_model.onnx")


def greedy_text(case: Exported, samples: FloatArray, count: int) -> str:
    """What transformers writes of a clip, and our graphs too."""
    import torch
    from transformers import AutoTokenizer

    padded = torch.tensor(np.pad(samples, (0, -len(samples) % 80)))[None]
    # The windows of a streaming encoder apply only with a mask.
    inputs = {"input_values": padded, "attention_mask": torch.ones(padded.shape, dtype=torch.long)}
    with torch.no_grad():
        found = case.model.generate(**inputs, max_new_tokens=count, do_sample=False)[0].tolist()
    assert SpeechSession(case.bundle, samples[None]).greedy(START, count, (END,)) == found
    text: str = AutoTokenizer.from_pretrained(case.checkpoint).decode(found, skip_special_tokens=True)
    return text


def transcripts(node: str, folder: Path, sounds: Sequence[FloatArray], tmp_path: Path) -> list[str]:
    """What Transformers.js writes."""
    (tmp_path / "samples.json").write_text(json.dumps([samples.tolist() for samples in sounds]))
    command = [node, str(SCRIPT), str(folder), str(tmp_path / "samples.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    texts: list[str] = json.loads(done.stdout)
    return texts


@pytest.mark.parametrize("family", MOONSHINES)
def test_transformers_js_writes_what_transformers_does(
    node: str, family: str, cases: dict[str, Exported], tmp_path: Path
) -> None:
    case, sounds = cases[family], [chirp(32_000), pattern(48_000)]
    # Six tokens a second, as Transformers.js allows.
    expected = [greedy_text(case, samples, len(samples) // 16000 * 6) for samples in sounds]
    assert len(set("".join(expected))) > 5
    assert transcripts(node, case.bundle, sounds, tmp_path) == expected


def ctc_inputs(count: int, total: int) -> dict[str, Any]:
    """Frames of a sound, of which a processor masks those behind its end."""
    frames = np.random.default_rng(count).normal(size=(total, MELS)).astype(np.float32)
    frames[count:] = 0
    return {"input_features": frames, "attention_mask": (np.arange(total) < count).astype(np.int64)}


def test_the_logits_of_parakeet_are_those_of_transformers(cases: dict[str, Exported]) -> None:
    import torch

    case = cases["parakeet"]
    session, total = open_graph(case.bundle, "model"), max(FRAMES) + 1
    alone = [{name: each[None] for name, each in ctc_inputs(count, count + 1).items()} for count in FRAMES]
    of_all = [ctc_inputs(count, total) for count in FRAMES]
    together = {name: np.stack([each[name] for each in of_all]) for name in of_all[0]}
    for inputs, counts in (*zip(alone, [[count] for count in FRAMES], strict=True), (together, FRAMES)):
        masked = {"attention_mask": torch.tensor(inputs["attention_mask"]).bool()}
        with torch.no_grad():
            expected = case.model(input_features=torch.tensor(inputs["input_features"]), **masked).logits.numpy()
        (found,) = session.run(["logits"], inputs)
        assert found.shape == expected.shape
        for own, scores, count in zip(found, expected, counts, strict=True):
            rows = -(-count // 8)
            assert relative_error(own[:rows], scores[:rows]) < F32
            assert (own[rows:].argmax(-1) == BLANK).all()
    check_graph(case.bundle / "onnx/model.onnx")


def test_transformers_js_writes_what_parakeet_hears(node: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer, ParakeetFeatureExtractor

    model = make_parakeet(tmp_path / "checkpoint", seed=2, num_mel_bins=80)
    export(tmp_path / "checkpoint", tmp_path / "bundle")
    sounds, expected = [chirp(30_000), pattern(50_001)], []
    original = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    written = AutoTokenizer.from_pretrained(tmp_path / "bundle")
    for samples in sounds:
        inputs = ParakeetFeatureExtractor(feature_size=80)(samples, sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            tokens = model.generate(**inputs)[0].tolist()
        expected.append(original.decode(tokens))
        assert written.decode(tokens) == expected[-1]
    assert len(set("".join(expected))) > 3
    assert transcripts(node, tmp_path / "bundle", sounds, tmp_path) == expected
    # A letter twice, with and without a blank between.
    letters = original.convert_tokens_to_ids(["▁a", "b", "b", "c", "<pad>", "c", "<pad>", "▁d"])
    assert original.decode(letters) == written.decode(letters, skip_special_tokens=True) == "abcc d"


@pytest.mark.parametrize("family", ["moonshine", "streaming", "parakeet"])
def test_sound_longer_than_30_seconds_fails_by_name(family: str, cases: dict[str, Exported]) -> None:
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    if family == "parakeet":
        session, inputs = open_graph(cases[family].bundle, "model"), ctc_inputs(3_009, 3_009)
        inputs = {name: each[None] for name, each in inputs.items()}
    else:
        session = open_graph(cases[family].bundle, "encoder_model")
        inputs = {"input_values": np.zeros((1, 31 * 16_000), np.float32)}
    with pytest.raises(Fail, match="sound_must_not_be_longer_than_30_seconds"):
        session.run(None, inputs)


@pytest.mark.parametrize("family", ["moonshine", "streaming", "parakeet"])
def test_quantized_graphs_and_a_dry_run(family: str, cases: dict[str, Exported], tmp_path: Path) -> None:
    (make_parakeet if family == "parakeet" else MOONSHINES[family][0])(tmp_path / "checkpoint")
    for quantization in ("f32", "q8f16"):
        export(tmp_path / "checkpoint", tmp_path / quantization, quantization=quantization)
    folders, inputs = [tmp_path / "f32", tmp_path / "q8f16"], ctc_inputs(96, 96)
    if family == "parakeet":
        graphs = [open_graph(folder, "model") for folder in folders]
        exact, found = (graph.run(None, {name: each[None] for name, each in inputs.items()})[0] for graph in graphs)
        assert relative_error(found, exact) < INT8
    else:
        sessions = [SpeechSession(folder, chirp(9_000)[None]) for folder in folders]
        exact, found = (session.rows for session in sessions)
        assert relative_error(found, exact) < INT8
        exact, found = (session.run(TOKENS[:1]) for session in sessions)
        assert relative_error(found, exact) < INT8
    case = cases[family]
    sizes = dry_run(str(case.checkpoint), CompileOptions(target="onnx", quantization="f32")).sizes
    written = [path for path in case.bundle.rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert {name: size for name, size in sizes.items() if name != "manifest.json"} == {
        str(path.relative_to(case.bundle)): path.stat().st_size for path in written
    }


@pytest.mark.parametrize("family", ["moonshine", "parakeet"])
def test_our_runner_refuses_sound_by_name(family: str, cases: dict[str, Exported]) -> None:
    bundle = open_any(cases[family].bundle)
    assert isinstance(bundle, ExportBundle)
    with pytest.raises(UnsupportedModel, match="reads sound, which nearfar's runner of ONNX bundles does not"):
        check_machine(bundle)
    assert " inspect " in find_trial(bundle).command


def test_a_tokenizer_without_the_blank_is_refused(tmp_path: Path) -> None:
    make_parakeet(tmp_path / "checkpoint")
    for name, key, value in (("tokenizer", "added_tokens", []), ("tokenizer_config", "pad_token", None)):
        path = tmp_path / f"checkpoint/{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UnsupportedModel, match=rf"no added token {BLANK}, the blank of the model"):
        export(tmp_path / "checkpoint", tmp_path / "bundle")
