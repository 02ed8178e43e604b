"""`nearfar run --audio`: the model hears, or answers about what a transcriber writes down."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hearing_families import AUDIO, make_hearing, sound
from hearing_families import wav as file_of
from light_bundle import few_kernels, one_compilation
from plain_target import compile_plain
from sounds import wav
from test_run_options import pipe
from tiny_whisper import SHORT_CONTEXT, make_whisper

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.cli import main
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.audio.prepared_sound import prepare_sound
from nearfar.compiler.runtime.audio.sound import read_sound_file
from nearfar.compiler.runtime.generate import score
from nearfar.compiler.runtime.media import placed_features
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the bundle "whisper", and noise in "one.wav" and "two.wav"."""
    path = tmp_path_factory.mktemp("audio")
    (path / "model").mkdir()
    make_whisper(path / "model")
    compile_plain(path / "model", path / "whisper", "f32", SHORT_CONTEXT)
    for seed, name in enumerate(("one.wav", "two.wav")):
        noise = np.random.default_rng(seed).normal(0, 0.1, 16000 * (seed + 1)).astype("<f4")
        (path / name).write_bytes(wav(noise.tobytes(), 3, 32))
    (path / "text.wav").write_text("no sound")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["run", *arguments, "--runner", "numpy"])
    captured = capsys.readouterr()
    return int(code or 0), captured.out, " ".join(captured.err.split())


def test_transcripts_precede_the_message(folder: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sounds = [folder / "one.wav", folder / "two.wav"]
    transcripts = []
    for file in sounds:
        assert main(["transcribe", str(file), str(folder / "whisper"), "--runner", "numpy", "--format", "json"]) == 0
        transcripts.append(json.loads(capsys.readouterr().out)["text"])
    assert transcripts[0] != transcripts[1]
    given = [part for sound in sounds for part in ("--audio", str(sound))]
    whisper = ["--transcriber", str(folder / "whisper")]
    code, out, err = run(capsys, str(tiny_bundle), "what?", *given, *whisper, "--max-tokens", "2", "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert [each["text"] for each in answer["transcripts"]] == transcripts
    assert [each["file"] for each in answer["transcripts"]] == [str(sound) for sound in sounds]
    assert [each["seconds"] for each in answer["transcripts"]] == [1, 2]
    said = "".join(f"[Transcript of a recording]\n{text}\n[End of transcript]\n" for text in transcripts)
    tokenizer = Tokenizer(open_bundle(tiny_bundle).tokenizer_files())
    assert answer["prompt_token_ids"] == tokenizer.encode_chat([{"role": "user", "content": f"{said}what?"}])


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a model that hears, and sounds of 11 features and of one."""
    folder = tmp_path_factory.mktemp("hearing")
    make_hearing("gemma4_unified", folder / "checkpoint")
    options = CompileOptions(target="cpu", quantization="f32", context=256, activations=("float32",), self_test=False)
    with one_compilation(), few_kernels():
        compile_model(str(folder / "checkpoint"), folder / "bundle", options)
    for number, samples in enumerate((32 * 11, 32)):
        (folder / f"{number}.wav").write_bytes(file_of(sound(samples, number)))
    return folder


def test_a_model_that_hears_answers_about_recordings_without_a_transcriber(
    hearing: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [hearing / "0.wav", hearing / "1.wav"]
    given = [str(hearing / "bundle"), "What <|audio|>?", *(part for file in files for part in ("--audio", str(file)))]
    assert main(["run", *given, "--max-tokens", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    prompt = answer["prompt_token_ids"]
    # The mark in the message is text.
    assert prompt.count(AUDIO) == 11 + 1
    assert "transcripts" not in answer
    bundle = open_bundle(hearing / "bundle")
    assert bundle.manifest.sounds is not None
    sounds = [prepare_sound(bundle.manifest.sounds, read_sound_file(file)) for file in files]
    runner = open_runner("numpy", bundle, Limits(rows=len(prompt)))
    try:
        placed = placed_features(runner, prompt, [], sounds)
        *_, logits = score(runner, prompt, len(prompt), placed)
    finally:
        runner.close()
    assert answer["token_ids"] == [int(logits[-1].argmax())]
    # A recording alone is the message, in the model's own words or the transcriber's.
    for more in ([], ["--transcriber", str(folder / "whisper"), "--runner", "numpy"]):
        pipe(monkeypatch, b"")
        alone = [str(hearing / "bundle"), "--audio", str(files[0]), *more]
        assert main(["run", *alone, "--max-tokens", "1", "--json"]) == 0
        spoken = json.loads(capsys.readouterr().out)
        text = Tokenizer(bundle.tokenizer_files()).decode(spoken["prompt_token_ids"])
        assert spoken["prompt_token_ids"].count(AUDIO) == (0 if more else 11)
        assert ("What" in text, len(spoken.get("transcripts", []))) == (False, len(more) // 4)
    # With a transcriber it reads what is said.
    given += ["--transcriber", str(folder / "whisper"), "--runner", "numpy"]
    assert main(["run", *given, "--max-tokens", "1", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert AUDIO not in written["prompt_token_ids"]
    assert len(written["transcripts"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", "hi", "--audio", "one.wav"], "hears nothing; add --transcriber BUNDLE, a model such as Whisper"),
        (["MODEL", "hi", "--transcriber", "whisper"], "--transcriber writes down recordings; give some with --audio"),
        (["MODEL", "hi", "--audio", "one.wav", "--transcriber", "MODEL"], "generates text and reads no sound"),
        (["MODEL", "hi", "--audio", "text.wav", "--transcriber", "whisper"], "text.wav: is no sound in a known format"),
        (["MODEL", "hi", "--audio", "gone.wav", "--transcriber", "whisper"], "gone.wav: cannot be read: No such file"),
        (["MODEL", "hi", "--audio", "one.wav", "--raw"], "--audio needs the chat template"),
        (["whisper", "hi", "--audio", "one.wav"], "transcribes sound; use nearfar transcribe"),
    ],
)
def test_recordings_that_cannot_be_used_are_refused(
    arguments: list[str], message: str, folder: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"MODEL": tiny_bundle} | {each: folder / each for each in arguments if "." in each or each == "whisper"}
    code, out, err = run(capsys, *(str(files.get(each, each)) for each in arguments))
    assert code == 2
    assert not out
    assert message in err
