"""Transcribes sound with one sequence on any runner: window after window, each with its text at the first temperature
that gives a good one.

`web/src/shared/transcription` decides: which tokens may follow, what segments a text has, where the next window begins,
and whether a text is good enough. This module computes what it decides on.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from ...bundle.manifest import AUDIO, Manifest
from ...ir.ops.sampling import log_softmax, log_sum_exp
from ...ir.speech import SAMPLE_RATE
from ...shared.script import SharedScript
from ..batch import Chunk, FloatArray, make_batch
from ..errors import DeviceError, RequestError
from ..generate import not_finite
from ..runner import Limits, Runner, require_plan
from ..text.tokenizer import Tokenizer
from .listener import Listener
from .readings import FRAMES_PER_SECOND, reading_of
from .windows import source_of

# Of a prompt, two rows are sampled: that of the start, after which the model says whether there is speech, and the last
# one. Of a guessed text, all rows are sampled.
LIMITS = Limits(rows=16)
# The temperature from which on a text is not continued.
STEADY = 0.5


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """``language`` None: the model detects it. ``prompt``: a text that precedes, whose style and names it continues;
    with ``continues``, so does the text of earlier windows, which may also repeat itself. ``temperature``: the only
    one; None for those of `windows.ts`, from 0 on. ``words``: the times of words are needed.
    """

    language: str | None = None
    translate: bool = False
    timestamps: bool = False
    prompt: str = ""
    continues: bool = False
    temperature: float | None = None
    seed: int = 0
    words: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """A word from ``start`` to ``end`` in seconds."""

    word: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a transcript, from ``start`` to ``end`` in seconds; ``seek`` is the first frame of 10 ms of its window,
    of which a model without timestamps makes one segment. ``words`` are those of models that know when each is said.
    """

    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[Word, ...] = ()


# Receives the seconds that are done, all of them, and the segments that have become final.
Progress = Callable[[float, float, Sequence[Segment]], None]


@dataclass(frozen=True, slots=True)
class Transcript:
    """``language`` is None for models that do not name theirs; ``duration`` in seconds."""

    task: Literal["transcribe", "translate"]
    language: str | None
    duration: float
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()


@dataclass(frozen=True, slots=True)
class WindowText:
    """The text of a window: its tokens without the end, and their quality."""

    tokens: list[int]
    temperature: float
    mean_logprob: float
    compression_ratio: float
    no_speech: float

    def quality(self) -> dict[str, float]:
        return {
            "compressionRatio": self.compression_ratio,
            "meanLogprob": self.mean_logprob,
            "noSpeech": self.no_speech,
        }


@dataclass(frozen=True, slots=True)
class Job:
    """What the texts of a transcript are computed with."""

    options: TranscriptionOptions
    generator: np.random.Generator
    cancelled: Callable[[], bool]
    stamped: bool


class WindowByWindow(ABC):
    """What transcribes sound window after window."""

    def transcribe(
        self,
        samples: FloatArray,
        options: TranscriptionOptions,
        progress: Progress = lambda *_: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Transcript:
        """The transcript of samples at 16 kHz. ``progress`` is called after each window; ``cancelled``
        before each forward pass, and ends the transcript.

        Raises RequestError for no samples, and for a language or task that the model does not have; DeviceError for
        results that are not finite.
        """
        segments: list[Segment] = []
        language = self.check(options)
        duration = len(samples) / SAMPLE_RATE
        for spoken, done, found in self.windows(samples, options, cancelled):
            language = spoken
            segments += found
            progress(min(done, duration), duration, found)
        return Transcript("translate" if options.translate else "transcribe", language, duration, tuple(segments))

    @abstractmethod
    def check(self, options: TranscriptionOptions) -> str | None:
        """The language as far as it is known. Raises RequestError for what the model does not have."""

    @abstractmethod
    def windows(
        self, samples: FloatArray, options: TranscriptionOptions, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[str | None, float, list[Segment]]]:
        """For each window: the language, the seconds that are done, and the segments that are complete."""


class Transcriber(WindowByWindow):
    """``runner`` has `LIMITS` or more. ``thresholds``: others than those of `windows.ts`, by name. Raises RequestError
    for a bundle that reads no sound.
    """

    def __init__(self, runner: Runner, tokenizer: Tokenizer, thresholds: Mapping[str, float] | None = None) -> None:
        manifest = runner.manifest
        require_plan(manifest, AUDIO)
        assert isinstance(manifest, Manifest)
        assert manifest.speech is not None
        assert manifest.spec.audio is not None
        self._runner, self._manifest, self._tokenizer = runner, manifest, tokenizer
        self._speech, self._audio = manifest.speech, manifest.spec.audio
        sizes = {"ends": manifest.spec.eos_token_ids, "rows": self._audio.positions, "context": manifest.context}
        self._model = {**asdict(self._speech), **sizes}
        # What the rules of timestamps read, which are asked once for each token.
        self._rules = {name: self._model[name] for name in ("ends", "max_initial_timestamp", "no_timestamps")}
        self._listener = Listener(runner, manifest)
        self._source = source_of(manifest)
        # The text of the last sound's first window: a good guess if the sound has grown since.
        self._opening: list[int] = []
        self._suppressed = list(self._speech.suppressed)
        self._suppressed_first = list(self._speech.suppressed_first)
        limits = self._ask("transcriptionLimits")
        self._temperatures: Sequence[float] = limits["temperatures"]
        self._thresholds: Mapping[str, float] = {**limits["thresholds"], **(thresholds or {})}

    def check(self, options: TranscriptionOptions) -> str | None:
        """The language as far as it is known. Raises RequestError for what the model does not have."""
        self._ask("checkTask", self._model, options.language, options.translate)
        if options.words:
            raise RequestError(
                f"{self._manifest.model}: does not know when each word is said; request the times of segments",
                param="timestamp_granularities",
            )
        if (options.prompt or options.continues) and self._speech.previous is None:
            raise RequestError(
                f"{self._manifest.model}: has no token for a text that precedes; use neither a prompt nor earlier text"
            )
        return options.language

    def windows(
        self, samples: FloatArray, options: TranscriptionOptions, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[str | None, float, list[Segment]]]:
        """The segments of each window, as soon as they are known, with the language and the seconds that are done."""
        if not len(samples):
            raise RequestError("there are no samples of sound")
        reading = reading_of(samples, self._audio, self._speech.seconds)
        stamped = (options.timestamps or reading.is_long) and self._speech.no_timestamps is not None
        language, generator = options.language, np.random.default_rng(options.seed)
        given = f" {options.prompt.strip()}" if options.prompt.strip() else ""
        preceding = self._tokenizer.encode(given, add_special_tokens=False)
        # All text so far, and whether the next window continues it.
        history, continues = list(preceding), options.continues
        task: dict[str, Any] = {"translate": options.translate, "timestamps": stamped}
        job = Job(options, generator, cancelled, stamped)
        seek = 0
        while seek < reading.count and not cancelled():
            window, read = reading.window(seek)
            self._source = self._listener.listen(read)
            if language is None:
                language = self._detect_language()
            task |= {"language": language, "previous": history if continues else preceding}
            prompt = self._ask("transcriptionPrompt", self._model, task)
            found, text = self._best_text(prompt, job, self._opening if seek == 0 else ())
            if seek == 0 and text.temperature == 0:
                self._opening = text.tokens
            advance, segments = window, []
            if found != "skip":
                cut = self._ask("cutWindow", self._model, text.tokens, {"seek": seek, "frames": window})
                advance, segments = cut["advance"], [self._segment(each, seek, text) for each in cut["segments"]]
                history += [token for each in segments for token in each.tokens]
            # What was drawn at a high temperature leads astray.
            continues = options.continues and text.temperature < STEADY
            seek += advance
            yield language, seek / FRAMES_PER_SECOND, [each for each in segments if each.text.strip()]

    def _detect_language(self) -> str | None:
        """The language whose token is likeliest behind the start, None for a model that names none."""
        if len(self._speech.languages) < 2:
            return next((each.code for each in self._speech.languages), None)
        (logits,) = self._forward([self._speech.start], 0, [0])
        tokens = {each.code: each.token for each in self._speech.languages if each.token is not None}
        return max(tokens, key=lambda code: logits[tokens[code]])

    def _best_text(self, prompt: list[int], job: Job, guess: Sequence[int]) -> tuple[str, WindowText]:
        """What becomes of the first good text ("use" or "skip"), and that text; or the last one that was tried."""
        start = prompt.index(self._speech.start)
        rows = list(dict.fromkeys([start, len(prompt) - 1]))
        logits = self._forward(prompt, 0, rows)
        silent = self._speech.no_speech
        no_speech = 0.0 if silent is None else float(np.exp(log_softmax(logits[0])[silent]))
        only = job.options.temperature
        for temperature in self._temperatures if only is None else [only]:
            text = self._text(prompt, logits[-1], temperature, job, guess if temperature == 0 else ())
            text = replace(text, no_speech=no_speech)
            verdict: str = self._ask("judgeText", text.quality(), self._thresholds)
            if verdict != "retry":
                break
        return verdict, text

    def _text(
        self,
        prompt: list[int],
        logits: FloatArray,
        temperature: float,
        job: Job,
        guess: Sequence[int],
    ) -> WindowText:
        """A text behind the prompt, whose last row has these logits. While it is the one that is ``guess``ed, several
        tokens are computed at once.
        """
        written: list[int] = []
        ends, logprobs = set(self._manifest.spec.eos_token_ids), []
        room = self._manifest.context - len(prompt)
        # The logits behind the last token, and those behind the tokens that are guessed to follow it.
        following, size = [logits], 1
        for count in range(room):
            logits = following.pop(0)
            rules = self._ask("nextTokens", self._rules, written, job.stamped, len(logits))
            scores = self._allowed(logits, rules)
            log_probabilities = log_softmax(scores)
            token = choose(scores, temperature, job.generator)
            logprobs.append(float(log_probabilities[token]))
            written.append(token)
            if token in ends or job.cancelled() or count + 1 == room:
                break
            if count >= len(guess) or token != guess[count]:
                guess, following = (), []
            if not following:
                # More at once as long as the guess is right.
                size = min(2 * size, self._runner.limits.rows, room - count)
                own = [token, *guess[count + 1 : count + size]]
                following = list(self._forward(own, len(prompt) + count, range(len(own))))
        tokens = [token for token in written if token not in ends]
        mean = sum(logprobs) / len(logprobs) if logprobs else 0.0
        return WindowText(tokens, temperature, mean, compression_ratio(written, len(logits)), 0.0)

    def _allowed(self, logits: FloatArray, rules: Mapping[str, Any]) -> FloatArray:
        """The logits, minus infinity for tokens that must not follow."""
        scores = logits.copy()
        scores[self._suppressed] = -np.inf
        if rules["isFirst"]:
            scores[self._suppressed_first] = -np.inf
        for start, stop in rules["banned"]:
            scores[start:stop] = -np.inf
        preferred = rules["preferred"]
        if preferred is not None and np.isfinite(scores[preferred:]).any():
            others = scores[:preferred].max()
            if log_sum_exp(scores[preferred:]) > others:
                scores[:preferred] = -np.inf
        return scores

    def _forward(self, tokens: Sequence[int], start: int, rows: Sequence[int]) -> FloatArray:
        """The logits of some rows of tokens that follow the first ``start`` ones."""
        manifest = self._manifest
        pages = range(manifest.pages_for(start + len(tokens)))
        logits = None
        for first in range(0, len(tokens), self._runner.limits.tokens):
            own = tokens[first : first + self._runner.limits.tokens]
            sampled = [row - first for row in rows if first <= row < first + len(own)]
            chunk = Chunk(own, start + first, pages, sampled, source=self._source)
            found = self._runner.forward(make_batch([chunk], manifest.page_size)).logits
            logits = found if logits is None else np.concatenate([logits, found])
        assert logits is not None
        if not np.isfinite(logits).all():
            raise not_finite(self._runner)
        return logits

    def _segment(self, cut: Mapping[str, Any], seek: int, text: WindowText) -> Segment:
        tokens = tuple(cut["tokens"])
        last = self._speech.no_timestamps
        words = self._tokenizer.decode([token for token in tokens if last is None or token < last])
        # Text without timestamps stands for itself; those of Whisper's segments begin with their space.
        spoken = words if last is not None or not words.strip() else f" {words.strip()}"
        return Segment(
            seek,
            cut["start"],
            cut["end"],
            spoken,
            tokens,
            text.temperature,
            text.mean_logprob,
            text.compression_ratio,
            text.no_speech,
        )

    def _ask(self, name: str, *values: Any) -> Any:
        return SharedScript.of_thread().ask(name, *values)


def choose(scores: FloatArray, temperature: float, generator: np.random.Generator) -> int:
    """The likeliest token, or one drawn at a temperature. Raises DeviceError if none is allowed."""
    if not np.isfinite(scores.max()):
        raise DeviceError("the rules of timestamps allow no token; the model's suppressed tokens are wrong")
    if temperature == 0:
        return int(scores.argmax())
    # The largest of noisy scores is a sample (Gumbel 1954).
    noise = -np.log(-np.log(generator.uniform(1e-12, 1, len(scores))))
    return int((scores / np.float32(temperature) + noise).argmax())


def compression_ratio(tokens: Sequence[int], vocab_size: int) -> float:
    """How much shorter a text's tokens become if repetitions are left out: the size of their bytes, as many for each as
    the vocabulary needs, divided by the size after zlib.
    """
    size = int(math.log2(vocab_size) / 8) + 1
    data = b"".join(token.to_bytes(size, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))
