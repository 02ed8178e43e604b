"""`nearfar run --audio`: a transcriber writes down what is said, and the model answers about that."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from plain_target import compile_plain
from sounds import wav
from tiny_whisper import CONTEXT, make_whisper

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.cli import main
from nearfar.compiler.runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the bundle "whisper", and noise in "one.wav" and "two.wav"."""
    path = tmp_path_factory.mktemp("audio")
    (path / "model").mkdir()
    make_whisper(path / "model")
    compile_plain(path / "model", path / "whisper", "f32", CONTEXT)
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
    for sound in sounds:
        assert main(["transcribe", str(sound), str(folder / "whisper"), "--runner", "numpy", "--format", "json"]) == 0
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", "hi", "--audio", "one.wav"], "hears nothing; add --transcriber BUNDLE, a Whisper"),
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
