"""An encoder of sound whose rows name tokens transcribes what transformers decodes of its scores; long sound is read in
windows that overlap; words have the times of their rows.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_target import compile_plain
from sounds import chirp
from tiny_parakeet import BLANK, make_parakeet

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.runtime.audio.ctc import CtcTranscriber, transcriber_of
from nearfar.compiler.runtime.audio.transcribe import TranscriptionOptions
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.shared.script import SharedScript

CONTEXT, ROW = 20, 1280
SIDE = CONTEXT // 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("ctc")
    return path, make_parakeet(path, num_mel_bins=80)


@pytest.fixture(scope="module")
def bundle(folder: tuple[Path, Any]) -> Bundle:
    return compile_plain(folder[0], folder[0] / "bundle", "f32", CONTEXT)


@pytest.fixture(scope="module")
def transcriber(bundle: Bundle) -> CtcTranscriber:
    found = transcriber_of(ReferenceRunner(bundle, activation="float32"), Tokenizer(bundle.tokenizer_files()))
    assert isinstance(found, CtcTranscriber)
    return found


def tokens_of_transformers(folder: tuple[Path, Any], samples: FloatArray) -> tuple[str, list[int]]:
    """The text, and the likeliest token of each row."""
    import torch
    from transformers import ParakeetFeatureExtractor, ParakeetTokenizer

    path, model = folder
    inputs = ParakeetFeatureExtractor(feature_size=80)(samples, sampling_rate=16000, return_tensors="pt")
    rows = -(-int(inputs["attention_mask"].sum()) // 8)
    with torch.no_grad():
        found = model(**inputs).logits[0].argmax(-1)[:rows].tolist()
    tokenizer = ParakeetTokenizer.from_pretrained(path)
    return tokenizer.decode(found), found


@pytest.mark.parametrize("length", [320, 9_000, CONTEXT * ROW])
def test_a_short_sound_is_what_transformers_decodes(
    length: int, folder: tuple[Path, Any], transcriber: CtcTranscriber
) -> None:
    samples = chirp(length)
    transcript = transcriber.transcribe(samples, TranscriptionOptions())
    text, _ = tokens_of_transformers(folder, samples)
    assert transcript.text.split() == text.split()
    assert transcript.duration == length / 16000


def test_long_sound_has_the_middles_of_windows(folder: tuple[Path, Any], transcriber: CtcTranscriber) -> None:
    samples, step = chirp(90_000), CONTEXT - 2 * SIDE
    rows = -(-(len(samples) // 160) // 8)
    named: list[int] = []
    for first in range(0, rows, step):
        _, found = tokens_of_transformers(folder, samples[first * ROW : (first + CONTEXT) * ROW])
        is_last = first + CONTEXT >= rows
        named += found[SIDE if first else 0 : len(found) if is_last else CONTEXT - SIDE]
        if is_last:
            break
    assert len(named) == rows
    spans = SharedScript.of_thread().ask("withRows", [], {"tokens": named, "logprobs": [0] * rows}, 0, BLANK)
    transcript = transcriber.transcribe(samples, TranscriptionOptions(words=True))
    assert [token for each in transcript.segments for token in each.tokens] == [span["token"] for span in spans]
    words = [word for each in transcript.segments for word in each.words]
    assert transcript.text == " ".join(word.word for word in words)
    assert all(0 <= word.start < word.end <= rows * 0.08 for word in words)
    assert all(one.start < other.start for one, other in pairwise(words))
    assert len(words) > 3


def test_segments_come_window_by_window(transcriber: CtcTranscriber) -> None:
    samples, options = chirp(90_000), TranscriptionOptions()
    windows = list(transcriber.windows(samples, options))
    assert len(windows) > 2
    assert [done for _, done, _ in windows] == sorted(done for _, done, _ in windows)
    joined = tuple(segment for _, _, found in windows for segment in found)
    assert joined == transcriber.transcribe(samples, options).segments
    assert list(transcriber.windows(samples, options, lambda: True)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TranscriptionOptions(language="en"), "takes no language"),
        (TranscriptionOptions(translate=True), "does not translate"),
        (TranscriptionOptions(prompt="Hello"), "continues no text"),
        (TranscriptionOptions(continues=True), "continues no text"),
        (TranscriptionOptions(temperature=0.4), "chooses the likeliest tokens"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(
    options: TranscriptionOptions, message: str, transcriber: CtcTranscriber
) -> None:
    with pytest.raises(RequestError, match=message):
        transcriber.transcribe(np.zeros(4000, np.float32), options)
    with pytest.raises(RequestError, match="no samples"):
        transcriber.transcribe(np.zeros(0, np.float32), TranscriptionOptions())
