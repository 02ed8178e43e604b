"""Transcripts of a model that hears in chats: each window is the chat that its model card asks for, on the command line
and on the server alike.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hearing_families import AUDIO, make_hearing, sound, stored, wav
from local_requests import run
from plain_target import compile_plain
from test_local_sounds import hearing

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.cli import main
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.audio import hearing as module
from nearfar.compiler.runtime.audio.hearing import HearingTranscriber, sound_windows
from nearfar.compiler.runtime.audio.prepared_sound import prepare_sound
from nearfar.compiler.runtime.audio.transcribe import TranscriptionOptions
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.media import encode_media, placed_features
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.shared.script import SharedScript
from nearfar.server_fallback.executors.executor import Call, Recording
from nearfar.server_fallback.executors.hearing_transcriber import hearing_turns, transcriber_on, wav_of
from nearfar.server_fallback.schema.transcription import TranscriptionRequest

TOKENS = 5
GERMAN = (
    "Transcribe the following speech segment in German into German text.\n\nFollow these specific instructions for "
    "formatting the answer:\n* Only output the transcription, with no newlines.\n* When transcribing numbers, write "
    "the digits, i.e. write 1.7 and not one point seven, and write 3 instead of three."
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("hearing")
    make_hearing("gemma4_unified", folder / "checkpoint", max_position_embeddings=1400)
    return compile_plain(folder / "checkpoint", folder / "bundle", "f32", 1400)


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The random model's texts have no end."""
    monkeypatch.setattr(module, "MOST_TOKENS", TOKENS)
    monkeypatch.setattr(module, "MOST_TRANSLATED", TOKENS)


def paused() -> FloatArray:
    """2.5 s, of which the model hears 1.5 s at once, with a pause from 1.2 s on."""
    samples = sound(40_000, 1)
    samples[19_200:22_400] = 0
    return stored(samples)


def test_each_window_is_a_chat_with_the_instruction_of_the_model_card(bundle: Bundle) -> None:
    manifest, tokenizer = bundle.manifest, Tokenizer(bundle.tokenizer_files())
    assert manifest.sounds is not None
    runner = ReferenceRunner(bundle, limits=Limits(pages=90), activation="float32")
    samples, progress = paused(), list[tuple[float, float]]()
    transcript = HearingTranscriber(runner, tokenizer).transcribe(
        samples, TranscriptionOptions("de"), lambda done, total, _: progress.append((done, total))
    )
    assert (transcript.task, transcript.language, transcript.duration) == ("transcribe", "de", 2.5)
    # The cut is in the middle of the pause.
    borders = [(each.start, each.end) for each in transcript.segments]
    assert borders == [(0, 1.3), (1.3, 2.5)]
    assert progress == [(1.3, 2.5), (2.5, 2.5)]
    for segment in transcript.segments:
        own = samples[int(segment.start * 16_000) : int(segment.end * 16_000)]
        sounds = [prepare_sound(manifest.sounds, own)]
        content = [{"type": "audio"}, {"type": "text", "text": GERMAN}]
        prompt = encode_media(tokenizer, manifest, [{"role": "user", "content": content}], [], sounds)
        assert prompt.count(AUDIO) == sounds[0].features > 500
        features = lambda: placed_features(runner, prompt, [], sounds)  # noqa: B023, E731
        tokens = list(generate(runner, prompt, TOKENS, Sampler(), features=features))
        assert segment.tokens == tuple(tokens)
        assert segment.text == f" {tokenizer.decode(tokens).strip()}"
        assert segment.avg_logprob < 0

    # The server's engine says the same.
    async def served() -> Any:
        transcriber = transcriber_on(local, hearing_turns())
        assert transcriber is not None
        heard = list[str]()
        request = TranscriptionRequest(model="ears", language="de", response_format="srt")
        recording = Recording(wav_of(samples), "a.wav")
        made = await transcriber.transcribe(recording, request, Call("1"), heard.append)
        assert "".join(heard).strip() == made.text
        return made

    with hearing(bundle, pages=400) as local:
        made = run(served())
    assert [each.tokens for each in made.segments] == [each.tokens for each in transcript.segments]
    assert made.text == transcript.text
    assert [each.avg_logprob for each in made.segments] == pytest.approx(
        [each.avg_logprob for each in transcript.segments], abs=1e-4
    )


def test_the_command_transcribes_with_a_model_that_hears(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.wav").write_bytes(wav(sound(2_000)))
    command = ["transcribe", str(tmp_path / "a.wav"), str(bundle.path), "--runner", "numpy", "--quiet"]
    assert main([*command, "--format", "verbose_json"]) == 0
    verbose = json.loads(capsys.readouterr().out)
    (segment,) = verbose["segments"]
    assert (segment["start"], segment["end"], verbose["language"]) == (0, 0.13, None)
    assert verbose["text"] == segment["text"].strip() != ""
    cases = (
        (["--language", "tlh"], "language 'tlh' is not known; give a code of ISO 639-1"),
        (["--prompt", "names"], "continues no text that precedes; leave the prompt out"),
        (["--temperature", "0.5"], "writes a transcript of the likeliest tokens; leave the temperature out"),
        (["--translate", "--language", "de"], "has not translated the sound from 0 s to 0.13 s, but answered"),
    )
    for options, message in cases:
        assert main([*command, *options]) != 0
        assert message in " ".join(capsys.readouterr().err.split())


def test_windows_end_at_quiet_places_and_have_all_samples() -> None:
    samples = np.arange(100_000, dtype=np.float32)
    windows = list(sound_windows(samples, 1.5))
    assert [window.end for window in windows[:-1]] == [window.seek for window in windows[1:]]
    assert all(window.end - window.seek <= 150 for window in windows)
    assert np.array_equal(np.concatenate([window.samples for window in windows]), samples)
    # A short sound is followed by silence.
    (window,) = sound_windows(samples[:7], 30)
    assert (window.end, len(window.samples), window.samples[:7].tolist()) == (1, 1600, list(range(7)))
    with pytest.raises(RequestError, match="no samples"):
        list(sound_windows(samples[:0], 30))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (" Guten Tag.\nEnglish: Good\nday. ", "Good day."),
        ("They said English: yes.\nEnglish: Yes.", "Yes."),
        ("  ", ""),
        ("Guten Tag.", None),
    ],
)
def test_the_text_of_a_translation_follows_the_transcript(answer: str, text: str | None) -> None:
    script = SharedScript.of_thread()
    assert script.ask("heardText", answer, {"language": None, "translate": True}) == text
    assert script.ask("heardText", " a \n b ", {"language": None, "translate": False}) == "a b"
    asked = script.ask("hearingInstruction", {"language": None, "translate": True})
    assert asked.startswith("Transcribe the following speech segment in its original language, then translate it into")
    task = module.HearingTask("m", TranscriptionOptions(translate=True))
    window = module.SoundWindow(100, 250, np.zeros(1, np.float32))
    if text is None:
        with pytest.raises(DeviceError, match=r"m has not translated the sound from 1 s to 2.5 s"):
            task.segments(window, answer, [], 0.0)
    else:
        assert [each.text for each in task.segments(window, answer, [], 0.0)] == ([f" {text}"] if text else [])
