"""`nearfar transcribe`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from plain_target import compile_plain
from sounds import wav
from tiny_parakeet import make_parakeet
from tiny_whisper import SHORT_CONTEXT, make_whisper

from nearfar.compiler.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the bundle "whisper", and two seconds of noise in "noise.wav"."""
    path = tmp_path_factory.mktemp("transcribe")
    (path / "model").mkdir()
    make_whisper(path / "model")
    compile_plain(path / "model", path / "whisper", "f32", SHORT_CONTEXT)
    noise = np.random.default_rng(0).normal(0, 0.1, 32000).astype("<f4")
    (path / "noise.wav").write_bytes(wav(noise.tobytes(), 3, 32))
    return path


def transcribe(folder: Path, *options: str, sound: str = "noise.wav", bundle: str = "whisper") -> int:
    return main(["transcribe", str(folder / sound), str(folder / bundle), "--runner", "numpy", *options])


def test_text_json_and_subtitles_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for form in ("text", "json", "verbose_json", "srt", "vtt"):
        assert transcribe(folder, "--format", form, "--language", "en", "--timestamps") == 0
        texts[form] = capsys.readouterr().out
    verbose = json.loads(texts["verbose_json"])
    assert json.loads(texts["json"])["text"] == verbose["text"] != ""
    assert texts["srt"].count("-->") == texts["vtt"].count("-->") == len(verbose["segments"]) > 1
    assert len(texts["text"].splitlines()) == len(verbose["segments"])
    assert (verbose["language"], verbose["duration"]) == ("en", 2.0)


def test_a_transcript_is_written_to_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder / "out.srt"
    assert transcribe(folder, "--format", "srt", "-o", str(output), "--translate", "--quiet") == 0
    assert capsys.readouterr().out == ""
    assert output.read_text().startswith("1\n00:00:0")


@pytest.mark.parametrize(
    ("options", "sound", "message"),
    [
        (["--language", "tlh"], "noise.wav", "language 'tlh' is not known to the model; known: de, en, yue"),
        ([], "nothing.wav", "nothing.wav: cannot be read: No such file or directory"),
        (["-o", "/nowhere/x.txt"], "noise.wav", "/nowhere/x.txt: cannot be written"),
    ],
)
def test_what_cannot_be_transcribed_is_refused(
    folder: Path, options: list[str], sound: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transcribe(folder, *options, sound=sound) == 2
    assert message in capsys.readouterr().err


def test_an_encoder_whose_rows_name_tokens_knows_when_words_are_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_parakeet(tmp_path, num_mel_bins=80)
    compile_plain(tmp_path, tmp_path / "parakeet", "f32", SHORT_CONTEXT)
    texts = {}
    for form in ("text", "verbose_json", "srt", "vtt"):
        assert transcribe(folder, "--format", form, bundle=str(tmp_path / "parakeet")) == 0
        texts[form] = capsys.readouterr().out
    verbose = json.loads(texts["verbose_json"])
    assert " ".join(word["word"] for word in verbose["words"]) == verbose["text"] == texts["text"].strip() != ""
    assert texts["srt"].count("-->") == texts["vtt"].count("-->") == len(verbose["segments"]) >= 1
    assert transcribe(folder, "--language", "en", bundle=str(tmp_path / "parakeet")) == 2
    assert "takes no language" in capsys.readouterr().err


def test_models_of_text_and_of_sound_are_told_apart(
    folder: Path, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transcribe", str(folder / "noise.wav"), str(tiny_bundle), "--runner", "numpy"]) == 2
    assert "generates text and reads no sound; use the bundle of a model that transcribes" in capsys.readouterr().err
    assert main(["run", str(folder / "whisper"), "hello", "--runner", "numpy"]) == 2
    assert "transcribes sound; use nearfar transcribe SOUND MODEL" in capsys.readouterr().err
