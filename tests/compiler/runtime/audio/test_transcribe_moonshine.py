"""Transcripts of Moonshine have the tokens that transformers' generate gives them, for clips of any length; longer
sound is cut at quiet places, and what the family lacks is refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plain_target import compile_plain
from sounds import chirp, wav
from tiny_moonshine import CONTEXT, END, START, make_moonshine, make_moonshine_streaming

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.cli import main
from nearfar.compiler.runtime.audio.readings import reading_of
from nearfar.compiler.runtime.audio.transcribe import LIMITS, Transcriber, TranscriptionOptions
from nearfar.compiler.runtime.batch import Batch, FloatArray
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Output
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

GREEDY = TranscriptionOptions(temperature=0.0)


@pytest.fixture(scope="module")
def moonshine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Any]:
    """The bundle, and transformers' model."""
    folder: Path = tmp_path_factory.mktemp("moonshine")
    (folder / "model").mkdir()
    model = make_moonshine(folder / "model", seed=2, scale=0.2)
    return compile_plain(folder / "model", folder / "bundle", "f32", CONTEXT), model


@pytest.fixture
def transcriber(moonshine: tuple[Bundle, Any]) -> Transcriber:
    bundle, _ = moonshine
    runner = ReferenceRunner(bundle, limits=LIMITS, activation="float32")
    return Transcriber(runner, Tokenizer(bundle.tokenizer_files()))


def generated(model: Any, samples: FloatArray) -> list[int]:
    """The tokens that transformers writes greedily, without start and end."""
    import torch

    with torch.no_grad():
        (tokens,) = model.generate(torch.tensor(samples)[None], do_sample=False, max_length=CONTEXT)
    assert tokens[0] == START
    return [token for token in tokens.tolist()[1:] if token != END]


@pytest.mark.parametrize("samples", [895, 20_001, 52_345])
def test_the_tokens_are_those_of_transformers(
    moonshine: tuple[Bundle, Any], transcriber: Transcriber, samples: int
) -> None:
    sound = chirp(samples)
    transcript = transcriber.transcribe(sound, GREEDY)
    (segment,) = transcript.segments
    assert list(segment.tokens) == generated(moonshine[1], sound)
    assert (segment.start, segment.end) == (0, round(-(-samples // 160) / 100, 2))
    assert (segment.no_speech_prob, transcript.language) == (0, None)
    assert transcript.text


def test_those_of_streaming_too(tmp_path: Path) -> None:
    import torch

    (tmp_path / "model").mkdir()
    model = make_moonshine_streaming(tmp_path / "model", seed=2, scale=0.3)
    bundle = compile_plain(tmp_path / "model", tmp_path / "bundle", "f32", CONTEXT)
    runner = ReferenceRunner(bundle, limits=LIMITS, activation="float32")
    transcriber = Transcriber(runner, Tokenizer(bundle.tokenizer_files()))
    sound = chirp(20_000)
    values, mask = torch.tensor(sound)[None], torch.ones(1, len(sound), dtype=torch.long)
    with torch.no_grad():
        (tokens,) = model.generate(values, attention_mask=mask, do_sample=False, max_length=CONTEXT)
    (segment,) = transcriber.transcribe(sound, GREEDY).segments
    assert len(segment.tokens) > 1
    assert list(segment.tokens) == [token for token in tokens.tolist()[1:] if token != END]


def test_sound_that_grows_has_the_transcripts_of_whole_clips(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make_moonshine_streaming(tmp_path / "model", seed=2, scale=0.3)
    bundle = compile_plain(tmp_path / "model", tmp_path / "bundle", "f32", CONTEXT)
    runner, tokenizer = (
        ReferenceRunner(bundle, limits=LIMITS, activation="float32"),
        Tokenizer(bundle.tokenizer_files()),
    )
    growing = Transcriber(runner, tokenizer)
    sound = chirp(32_000)
    for samples in (sound[:16_000], sound[:16_001], sound[:24_000], sound, -sound):
        other = ReferenceRunner(bundle, limits=LIMITS, activation="float32")
        (found,) = growing.transcribe(samples, GREEDY).segments
        (whole,) = Transcriber(other, tokenizer).transcribe(samples, GREEDY).segments
        assert (found.tokens, found.start, found.end) == (whole.tokens, whole.start, whole.end)


class Steps(ReferenceRunner):
    """Records the tokens of each step."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle, limits=LIMITS, activation="float32")
        self.tokens: list[list[int]] = []

    def forward(self, batch: Batch) -> Output:
        self.tokens.append(batch.token_ids.tolist())
        return super().forward(batch)


def test_a_text_that_was_written_before_is_computed_several_tokens_at_a_time(moonshine: tuple[Bundle, Any]) -> None:
    bundle, model = moonshine
    runner = Steps(bundle)
    transcriber = Transcriber(runner, Tokenizer(bundle.tokenizer_files()))
    sound, other = chirp(20_001), chirp(52_345)
    steps = []
    for samples in (sound, sound, other, sound):
        runner.tokens.clear()
        (segment,) = transcriber.transcribe(samples, GREEDY).segments
        assert list(segment.tokens) == generated(model, samples)
        assert runner.tokens[0] == [START]
        steps.append([len(tokens) for tokens in runner.tokens[1:]])
    count = len(generated(model, sound))
    assert count == 39
    assert steps[0] == [1] * (count - 1)
    assert steps[1] == [2, 4, 8, 16, 9]
    # Of another text, at most the tokens until the first one that differs are right.
    assert sum(steps[2]) <= len(generated(model, other)) + 16
    # A text at another temperature is not guessed.
    runner.tokens.clear()
    transcriber.transcribe(sound, TranscriptionOptions(temperature=0.5))
    assert {len(tokens) for tokens in runner.tokens} == {1}


def test_long_sound_is_transcribed_piece_by_piece(moonshine: tuple[Bundle, Any], transcriber: Transcriber) -> None:
    bundle, model = moonshine
    sound = chirp(33 * 16_000)
    sound[24 * 16_000 : 25 * 16_000] = 0
    audio, speech = bundle.manifest.spec.audio, bundle.manifest.speech
    assert audio is not None
    assert speech is not None
    frames, first = reading_of(sound, audio, speech.seconds).window(0)
    assert 24 < frames / 100 < 25
    transcript = transcriber.transcribe(sound, TranscriptionOptions(temperature=0.0, timestamps=True))
    one, other = transcript.segments
    assert (one.start, one.end, other.start, other.end) == (0, frames / 100, frames / 100, 33)
    assert list(one.tokens) == generated(model, first)
    assert list(other.tokens) == generated(model, sound[len(first) :])
    # The tokenizer strips the space before a text.
    assert transcript.text == f"{one.text.strip()} {other.text.strip()}"


def test_a_sound_without_a_row_is_followed_by_silence(transcriber: Transcriber) -> None:
    (segment,) = transcriber.transcribe(chirp(100), GREEDY).segments
    assert segment.end == 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TranscriptionOptions(language="en"), "language 'en' is not known to the model; it knows one language"),
        (TranscriptionOptions(translate=True), "the model does not translate"),
        (TranscriptionOptions(prompt="names"), "has no token for a text that precedes"),
        (TranscriptionOptions(continues=True), "has no token for a text that precedes"),
    ],
)
def test_what_the_family_lacks_is_refused(
    transcriber: Transcriber, options: TranscriptionOptions, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        transcriber.check(options)


def test_the_command_writes_subtitles_of_windows(
    moonshine: tuple[Bundle, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talk.wav").write_bytes(wav(chirp(20_001).astype("<f4").tobytes(), 3, 32))
    sound, bundle = str(tmp_path / "talk.wav"), str(moonshine[0].path)
    assert main(["transcribe", sound, bundle, "--runner", "numpy", "--format", "srt", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("1\n00:00:00,000 --> 00:00:01,260\n")
    assert main(["transcribe", sound, bundle, "--runner", "numpy", "--translate"]) == 2
    assert "does not translate" in capsys.readouterr().err
