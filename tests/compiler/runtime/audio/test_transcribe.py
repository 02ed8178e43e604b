"""Transcripts have the tokens and times that transformers' generate gives them: of one window and of several, with and
without timestamps, and with windows that are left out because nobody speaks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_target import compile_plain
from sounds import chirp
from tiny_whisper import (
    CONTEXT,
    LANGUAGES,
    MELS,
    NO_TIMESTAMPS,
    PREVIOUS,
    ROWS,
    START,
    TRANSCRIBE,
    VOCABULARY,
    make_whisper,
)

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.ir.ops.sampling import log_softmax
from nearfar.compiler.ir.speech import FRAME, HOP
from nearfar.compiler.runtime.audio.formats import Format, write_transcript
from nearfar.compiler.runtime.audio.transcribe import (
    LIMITS,
    Segment,
    Transcriber,
    Transcript,
    TranscriptionOptions,
    choose,
    compression_ratio,
)
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

GREEDY = TranscriptionOptions(language="de", temperature=0.0)
STAMPED = TranscriptionOptions(language="de", temperature=0.0, timestamps=True)


TRANSCRIPT = Transcript(
    "transcribe",
    "en",
    3700.5,
    (
        Segment(0, 0.0, 1.5, " Hello there.", (1,), 0.0, -0.2, 1.1, 0.01),
        Segment(366000, 3661.25, 3663.0, " A --> B & <i>", (2,), 0.0, -0.3, 1.1, 0.01),
    ),
)
SRT = """1
00:00:00,000 --> 00:00:01,500
Hello there.

2
01:01:01,250 --> 01:01:03,000
A -> B & <i>

"""
VTT = """WEBVTT

00:00.000 --> 00:01.500
Hello there.

01:01:01.250 --> 01:01:03.000
A -> B &amp; &lt;i>

"""


@dataclass(frozen=True, slots=True)
class Whisper:
    """A model: ours on the reference runner, and transformers'."""

    bundle: Bundle
    model: Any

    def transcriber(self, **thresholds: float) -> Transcriber:
        runner = ReferenceRunner(self.bundle, limits=LIMITS, activation="float32")
        return Transcriber(runner, Tokenizer(self.bundle.tokenizer_files()), thresholds)

    def generate(self, samples: FloatArray, **options: Any) -> Any:
        """What transformers generates of the frames of samples, behind which there is silence."""
        import torch
        from transformers import WhisperFeatureExtractor

        extractor = WhisperFeatureExtractor(feature_size=MELS, chunk_length=1)
        longer = np.pad(samples, (0, FRAME))
        frames = extractor(
            longer, sampling_rate=16000, return_tensors="pt", truncation=False, padding="longest"
        ).input_features[..., : len(samples) // HOP]
        with torch.no_grad():
            return self.model.generate(input_features=frames, **{"task": "transcribe", **options})


@pytest.fixture(scope="module")
def whispers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Whisper]:
    """whispers(seed) -> a model with other random weights."""
    made: dict[int, Whisper] = {}

    def make(seed: int) -> Whisper:
        if seed not in made:
            folder: Path = tmp_path_factory.mktemp("whisper")
            (folder / "model").mkdir()
            model = make_whisper(folder / "model", seed=seed)
            made[seed] = Whisper(compile_plain(folder / "model", folder / "bundle", "f32", CONTEXT), model)
        return made[seed]

    return make


def without_opening(tokens: list[int], is_last: bool) -> list[int]:
    """Transformers repeats the start of the segment that it leaves out behind the last one of a window."""
    repeats = is_last and len(tokens) > 1 and min(tokens[-2:]) > NO_TIMESTAMPS
    return tokens[:-1] if repeats else tokens


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [
        # Each number of windows and each model once.
        (seed, seconds) if turn % 4 == seed else pytest.param(seed, seconds, marks=pytest.mark.exhaustive)
        for seed in range(4)
        for turn, seconds in enumerate((1.0, 6.02, 3.7))
    ],
)
def test_segments_are_those_of_transformers(whispers: Callable[[int], Whisper], seed: int, seconds: float) -> None:
    whisper, samples = whispers(seed), chirp(int(16000 * seconds))
    (expected,) = whisper.generate(samples, return_timestamps=True, language="de", return_segments=True)["segments"]
    found = whisper.transcriber().transcribe(samples, STAMPED).segments
    assert len(expected) > 1
    # A segment of timestamps alone has no text, and no place in a transcript.
    wanted = [each for each in expected if any(token < START for token in each["tokens"].tolist())]
    assert [without_opening(each["tokens"].tolist(), True) for each in wanted] == [list(each.tokens) for each in found]
    times = [(float(each["start"]), float(each["end"])) for each in wanted]
    assert np.allclose(times, [(each.start, each.end) for each in found], atol=0.011)


@pytest.mark.parametrize("seed", [0, 3])
def test_a_window_without_timestamps_has_the_text_of_transformers(
    whispers: Callable[[int], Whisper], seed: int
) -> None:
    whisper, samples = whispers(seed), chirp(16000)
    (expected,) = whisper.generate(samples, language="yue").tolist()
    options = TranscriptionOptions(language="yue", temperature=0.0)
    (found,) = whisper.transcriber().transcribe(samples, options).segments
    text = [token for token in expected if token < START - 1]
    assert list(found.tokens) == text
    assert found.text == Tokenizer(whisper.bundle.tokenizer_files()).decode(text)
    assert (found.start, found.end) == (0, 1)


def test_the_language_is_the_one_that_transformers_detects(whispers: Callable[[int], Whisper]) -> None:
    import torch
    from transformers import WhisperFeatureExtractor

    detected = set()
    for seed in range(6):
        whisper, samples = whispers(seed), chirp(16000)
        extractor = WhisperFeatureExtractor(feature_size=MELS, chunk_length=1)
        frames = extractor(samples, sampling_rate=16000, return_tensors="pt").input_features
        with torch.no_grad():
            (token,) = whisper.model.detect_language(frames).tolist()
        transcript = whisper.transcriber().transcribe(samples, TranscriptionOptions(temperature=0.0))
        assert LANGUAGES[f"<|{transcript.language}|>"] == token
        detected.add(token)
    assert len(detected) > 1


def test_windows_without_speech_are_left_out_as_in_transformers(whispers: Callable[[int], Whisper]) -> None:
    """With thresholds that some windows exceed."""
    whisper, samples = whispers(0), chirp(16000 * 6)
    thresholds = {"no_speech_threshold": 0.02, "logprob_threshold": -1.8, "compression_ratio_threshold": 9.0}
    options = {"return_timestamps": True, "language": "de", "return_segments": True, "temperature": (0.0,)}
    (expected,) = whisper.generate(samples, **options, **thresholds)["segments"]
    transcriber = whisper.transcriber(no_speech=0.02, logprob=-1.8, compression_ratio=9.0)
    found = transcriber.transcribe(samples, STAMPED).segments
    everything = whisper.transcriber(no_speech=2).transcribe(samples, STAMPED).segments
    assert 0 < len(found) < len(everything)
    assert [float(each["start"]) for each in expected] == pytest.approx([each.start for each in found])


def test_a_text_that_is_not_good_is_tried_at_higher_temperatures(whispers: Callable[[int], Whisper]) -> None:
    """The likelihood of random weights' texts is low, so that all temperatures are tried, and the last text is kept."""
    whisper = whispers(0)
    options = TranscriptionOptions(language="de", timestamps=True, seed=5)
    first = whisper.transcriber(logprob=0.0).transcribe(chirp(16000), options)
    assert {each.temperature for each in first.segments} == {1.0}
    assert first == whisper.transcriber(logprob=0.0).transcribe(chirp(16000), options)
    other = TranscriptionOptions(language="de", timestamps=True, seed=6, temperature=1.0)
    assert first.text != whisper.transcriber(logprob=0.0).transcribe(chirp(16000), other).text
    good = whisper.transcriber(logprob=-99.0, compression_ratio=99.0).transcribe(chirp(16000), options)
    assert {each.temperature for each in good.segments} == {0.0}


def test_a_prompt_precedes_each_window(whispers: Callable[[int], Whisper]) -> None:
    import torch

    whisper, samples = whispers(0), chirp(16000)
    tokens = Tokenizer(whisper.bundle.tokenizer_files()).encode(" abc", add_special_tokens=False)
    prompt = torch.tensor([PREVIOUS, *tokens])
    (expected,) = whisper.generate(samples, language="de", prompt_ids=prompt).tolist()
    options = TranscriptionOptions(language="de", temperature=0.0, prompt="abc")
    (found,) = whisper.transcriber().transcribe(samples, options).segments
    text = [token for token in expected if token < START - 1]
    assert list(found.tokens) == text[len(tokens) :] if text[: len(tokens)] == tokens else text
    assert found.tokens != whisper.transcriber().transcribe(samples, GREEDY).segments[0].tokens


@pytest.mark.parametrize(
    ("seed", "prompt"),
    [(0, "abc"), *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in ((0, ""), (3, ""), (3, "abc")))],
)
def test_windows_continue_the_text_of_those_before_as_in_transformers(
    whispers: Callable[[int], Whisper], seed: int, prompt: str
) -> None:
    import torch

    whisper, samples = whispers(seed), chirp(16000 * 5)
    options = {"return_timestamps": True, "language": "de", "return_segments": True, "temperature": (0.0,)}
    if prompt:
        tokens = Tokenizer(whisper.bundle.tokenizer_files()).encode(f" {prompt}", add_special_tokens=False)
        options["prompt_ids"] = torch.tensor([PREVIOUS, *tokens])
    (expected,) = whisper.generate(samples, **options, condition_on_prev_tokens=True)["segments"]
    continuing = replace(STAMPED, continues=True, prompt=prompt)
    found = whisper.transcriber().transcribe(samples, continuing).segments
    wanted = [each for each in expected if any(token < START for token in each["tokens"].tolist())]
    assert [without_opening(each["tokens"].tolist(), True) for each in wanted] == [list(each.tokens) for each in found]
    alone = whisper.transcriber().transcribe(samples, replace(STAMPED, prompt=prompt)).segments
    assert [each.tokens for each in found] != [each.tokens for each in alone]


def test_progress_ends_at_the_length_of_the_sound(whispers: Callable[[int], Whisper]) -> None:
    done, segments = list[tuple[float, float]](), list[Segment]()

    def progress(seconds: float, total: float, found: Sequence[Segment]) -> None:
        done.append((seconds, total))
        segments.extend(found)

    transcript = whispers(0).transcriber().transcribe(chirp(48001), STAMPED, progress)
    assert tuple(segments) == transcript.segments != ()
    assert len(done) > 2
    assert done == sorted(done)
    assert np.allclose(done[-1], 3.0, atol=0.01)


def test_silence_and_a_click_have_a_transcript_or_none(whispers: Callable[[int], Whisper]) -> None:
    for samples in (np.zeros(32000, np.float32), np.ones(1, np.float32)):
        transcript = whispers(2).transcriber().transcribe(samples, GREEDY)
        assert transcript.duration == len(samples) / 16000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TranscriptionOptions(language="fr"), "language 'fr' is not known to the model; known: de, en, yue"),
        (TranscriptionOptions(language="de", prompt="x"), None),
    ],
)
def test_a_language_that_the_model_lacks_is_refused(
    whispers: Callable[[int], Whisper], options: TranscriptionOptions, message: str | None
) -> None:
    transcriber = whispers(0).transcriber()
    if message is None:
        transcriber.check(options)
        return
    with pytest.raises(RequestError) as caught:
        transcriber.transcribe(chirp(16000), options)
    assert message in caught.value.message


def test_no_samples_are_refused(whispers: Callable[[int], Whisper]) -> None:
    with pytest.raises(RequestError, match="no samples"):
        whispers(0).transcriber().transcribe(np.zeros(0, np.float32), GREEDY)


FIRST = NO_TIMESTAMPS + 1


@pytest.mark.parametrize(
    "written",
    [
        [],
        [FIRST],
        [FIRST, 7],
        [FIRST, 7, 9],
        [FIRST, 7, FIRST + 9],
        [FIRST, 7, FIRST + 9, FIRST + 9],
        [FIRST, 7, FIRST + 9, FIRST + 9, 8],
        [FIRST, 7, FIRST + 9, FIRST + 10, 8, FIRST + 19],
        [FIRST, FIRST],
        [FIRST + 2, 7, 8, 9, 9],
        [FIRST, 7, FIRST + ROWS],
    ],
)
def test_the_tokens_that_may_follow_are_those_of_transformers(
    whispers: Callable[[int], Whisper], written: list[int]
) -> None:
    import torch
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    whisper = whispers(0)
    transcriber, config = whisper.transcriber(), whisper.model.generation_config
    ids = torch.tensor([[START, LANGUAGES["<|de|>"], TRANSCRIBE, *written]])
    for seed in range(4):
        logits = np.random.default_rng(seed).normal(0, 2, VOCABULARY).astype(np.float32)
        scores = torch.tensor(logits)[None]
        scores = SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, 3)(ids, scores)
        scores = SuppressTokensLogitsProcessor(config.suppress_tokens)(ids, scores)
        scores = WhisperTimeStampLogitsProcessor(config, begin_index=3)(ids, scores)
        rules = transcriber._ask("nextTokens", transcriber._rules, written, True, VOCABULARY)
        assert np.array_equal(transcriber._allowed(logits, rules), scores[0].numpy())


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("text", "Hello there. A --> B & <i>\n"),
        ("json", '{"text": "Hello there. A --> B & <i>"}\n'),
        ("srt", SRT),
        ("vtt", VTT),
    ],
)
def test_a_transcript_is_written_in_each_format(form: Format, text: str) -> None:
    found = write_transcript(TRANSCRIPT, form)
    assert found == text


def test_times_and_measures_of_segments_are_written_in_json() -> None:
    verbose = json.loads(write_transcript(TRANSCRIPT, "verbose_json"))
    assert (verbose["task"], verbose["language"], verbose["duration"]) == ("transcribe", "en", 3700.5)
    assert [each["id"] for each in verbose["segments"]] == [0, 1]
    assert verbose["segments"][1]["start"] == 3661.25
    assert write_transcript(TRANSCRIPT, "text", stamped=True).splitlines()[0] == "[0.00 - 1.50] Hello there."


def test_ratios_and_probabilities_are_those_of_transformers() -> None:
    import torch
    from transformers import WhisperForConditionalGeneration as Model

    tokens = [5, 6, 7] * 20 + [200]
    assert compression_ratio(tokens, 51865) == Model._retrieve_compression_ratio(torch.tensor(tokens), 51865)
    assert compression_ratio(tokens, 200) != compression_ratio(tokens, 51865)
    scores = np.array([0.5, -np.inf, 3, 1], np.float32)
    assert np.allclose(log_softmax(scores), torch.tensor(scores).log_softmax(-1).numpy())


def test_a_token_is_drawn_as_often_as_its_probability_says() -> None:
    generator, scores = np.random.default_rng(1), np.log(np.array([0.1, 0.6, 0.3], np.float32))
    drawn = np.bincount([choose(scores, 1.0, generator) for _ in range(4000)], minlength=3) / 4000
    assert np.abs(drawn - [0.1, 0.6, 0.3]).max() < 0.03
    sharp = np.bincount([choose(scores, 0.2, generator) for _ in range(1000)], minlength=3) / 1000
    assert sharp[1] > 0.95
    with pytest.raises(DeviceError, match="allow no token"):
        choose(np.full(3, -np.inf, np.float32), 0, generator)
