"""Whisper in ONNX Runtime and Transformers.js, as their users run it: the rows of the encoder's graph, from which the
decoder's graph computes keys and values once.
"""

from __future__ import annotations

import json
import subprocess
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from onnx_bundles import Exported, export_folder
from onnx_cases import check_graph
from onnx_session import SpeechSession
from tiny_whisper import END, LANGUAGES, MELS, NO_TIMESTAMPS, ROWS, START, TRANSCRIBE, VOCABULARY, log_mel, make_whisper
from tolerances import F32, INT8, relative_error

from nearfar.compiler.bundle.folder import ExportBundle, open_any
from nearfar.compiler.cli import transcribe
from nearfar.compiler.cli.options import Transcribe
from nearfar.compiler.cli.trial import find_trial
from nearfar.compiler.measure.dry_run import dry_run
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.runtime.errors import RequestError, UnsupportedModel
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.onnx.runner import check_machine, open_runner

SCRIPT = Path(__file__).parent / "transformers_js_sound.mjs"
PROMPT = [START, LANGUAGES["<|de|>"], TRANSCRIBE, NO_TIMESTAMPS]
COUNT = 20
Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("whisper")
    # With these weights, tokens differ.
    model = make_whisper(folder / "checkpoint", seed=1, scale=0.5)
    # Without timestamps, transformers reads a window once, and nothing ends the text.
    model.generation_config.suppress_tokens += [END, *range(NO_TIMESTAMPS, VOCABULARY)]
    model.generation_config.save_pretrained(folder / "checkpoint")
    export_folder(folder / "checkpoint", folder / "bundle", quantization="f32")
    return Exported(folder / "checkpoint", folder / "bundle", model)


def test_rows_and_logits_are_those_of_transformers(whisper: Exported) -> None:
    import torch

    frames = np.stack([log_mel(0), log_mel(1)])
    tokens = [[*PROMPT, 5, 6, 9], [START, LANGUAGES["<|en|>"], TRANSCRIBE, NO_TIMESTAMPS, 7, 8, 30]]
    with torch.no_grad():
        inputs = {"input_features": torch.tensor(frames), "decoder_input_ids": torch.tensor(tokens)}
        logits = whisper.model(**inputs).logits.numpy()
        rows = whisper.model.model.encoder(inputs["input_features"]).last_hidden_state.numpy()
    session = SpeechSession(whisper.bundle, frames)
    assert relative_error(session.rows, rows) < F32
    assert relative_error(session.run([each[:4] for each in tokens]), logits[:, 3]) < F32
    for index in range(4, 7):
        assert relative_error(session.run([each[index : index + 1] for each in tokens]), logits[:, index]) < F32
    check_graph(whisper.bundle / "onnx/encoder_model.onnx")


def greedy_answer(case: Exported, frames: Floats) -> list[int]:
    """The tokens that transformers writes behind the prompt."""
    import torch

    options = {"language": "de", "task": "transcribe", "max_new_tokens": COUNT, "do_sample": False}
    with torch.no_grad():
        found: list[int] = case.model.generate(torch.tensor(frames), **options)[0].tolist()
    # Versions differ in whether the prompt precedes the answer.
    return found[len(PROMPT) :] if found[: len(PROMPT)] == PROMPT else found


def test_greedy_tokens_are_those_of_transformers(whisper: Exported) -> None:
    frames = log_mel(3)[None]
    session = SpeechSession(whisper.bundle, frames)
    found: list[int] = []
    suppressed = whisper.model.generation_config.suppress_tokens
    first = whisper.model.generation_config.begin_suppress_tokens
    tokens = PROMPT
    while len(found) < COUNT:
        logits = session.run([tokens])[0]
        logits[[*suppressed, *(first if not found else [])]] = -np.inf
        tokens = [int(logits.argmax())]
        found += tokens
    assert found == greedy_answer(whisper, frames)
    assert len(set(found)) > 5


@pytest.mark.parametrize("seed", [3, 4])
def test_transformers_js_loads_the_folder_and_writes_the_same_tokens(
    node: str, whisper: Exported, seed: int, tmp_path: Path
) -> None:
    frames = log_mel(seed)[None]
    (tmp_path / "frames.json").write_text(json.dumps({"dims": frames.shape, "data": frames.ravel().tolist()}))
    command = [node, str(SCRIPT), str(whisper.bundle), str(tmp_path / "frames.json"), str(COUNT), "de"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["tokens"] == PROMPT + greedy_answer(whisper, frames)
    assert answer["frames"] == [1, MELS, 2 * ROWS]


def test_quantized_graphs_and_a_dry_run(whisper: Exported, tmp_path: Path) -> None:
    make_whisper(tmp_path / "checkpoint")
    for quantization in ("f32", "q8f16"):
        export_folder(tmp_path / "checkpoint", tmp_path / quantization, quantization=quantization)
    exact, found = (SpeechSession(tmp_path / each, log_mel(0)[None]) for each in ("f32", "q8f16"))
    assert relative_error(found.rows, exact.rows) < INT8
    assert relative_error(found.run([PROMPT]), exact.run([PROMPT])) < INT8
    sizes = dry_run(str(whisper.checkpoint), CompileOptions(target="onnx", quantization="f32")).sizes
    written = [path for path in whisper.bundle.rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert {name: size for name, size in sizes.items() if name != "manifest.json"} == {
        str(path.relative_to(whisper.bundle)): path.stat().st_size for path in written
    }


def test_our_runner_and_8_bit_caches_refuse_sound_by_name(whisper: Exported, tmp_path: Path) -> None:
    bundle = open_any(whisper.bundle)
    assert isinstance(bundle, ExportBundle)
    for refused in (lambda: check_machine(bundle), lambda: open_runner(bundle, Limits())):
        with pytest.raises(UnsupportedModel, match="reads sound, which nearfar's runner of ONNX bundles does not"):
            refused()
    assert " inspect " in find_trial(bundle).command
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(3200))
    with pytest.raises(UnsupportedModel, match="reads sound, which nearfar's runner of ONNX bundles does not"):
        transcribe.run(Transcribe(sound=tmp_path / "sound.wav", bundle=whisper.bundle))
    with pytest.raises(RequestError, match=r"--kv q8: not supported for .* on onnx, which reads sound"):
        export_folder(whisper.checkpoint, tmp_path / "kv", kv="q8")
