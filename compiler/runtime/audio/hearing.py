"""Transcribes sound with a model that hears in chats: window after window, each in a chat of its own with the model's
instruction for transcripts, and the likeliest tokens.

`web/src/shared/transcription/hearing.ts` has the instructions, and says what of an answer is the text. The server asks
its executor in the same way; see `server_fallback/executors/hearing_transcriber.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...bundle.manifest import HEARING
from ...ir.ops.sampling import log_softmax
from ...ir.sampling import GREEDY
from ...ir.sounds import SoundSpec
from ...ir.speech import HOP, SAMPLE_RATE
from ...shared.script import SharedScript
from ..batch import FloatArray
from ..errors import DeviceError, RequestError
from ..generate import append, check_prompt, not_finite, prefill
from ..media import encode_media, placed_features
from ..runner import Limits, Runner, require_plan
from ..text.tokenizer import Tokenizer
from .prepared_sound import prepare_sound
from .readings import FRAMES_PER_SECOND, SampleReading
from .transcribe import Segment, TranscriptionOptions, WindowByWindow

# The runner decodes one sequence.
HEARING_LIMITS = Limits()
# The most tokens of a window's text, which 30 s of speech do not need; a translation follows the text.
MOST_TOKENS, MOST_TRANSLATED = 512, 1024
# A shorter window is followed by silence: it has no frame, or not a word.
LEAST_SECONDS = 0.1
# What such a model does not take, by the option and the parameter of requests that asks for it.
WITHOUT = {
    "words": ("timestamp_granularities", "does not know when each word is said; request the times of segments"),
    "prompt": ("prompt", "continues no text that precedes; leave the prompt out"),
    "continues": ("prompt", "continues no text that precedes; leave earlier text out"),
    "temperature": ("temperature", "writes a transcript of the likeliest tokens; leave the temperature out"),
}


class SoundWindow(NamedTuple):
    """The samples of a window, and its borders in frames of 10 ms."""

    seek: int
    end: int
    samples: FloatArray


class HearingTask:
    """What to ask of a model. Raises RequestError for what it does not do."""

    def __init__(self, model: str, options: TranscriptionOptions) -> None:
        for name, (param, why) in WITHOUT.items():
            if getattr(options, name) not in (None, "", False, 0.0):
                raise RequestError(f"{model} {why}", param=param)
        self._model, self._task = model, {"language": options.language, "translate": options.translate}
        self.instruction: str = SharedScript.of_thread().ask("hearingInstruction", self._task)
        self.max_tokens = MOST_TRANSLATED if options.translate else MOST_TOKENS

    def segments(self, window: SoundWindow, answer: str, tokens: Sequence[int], logprob: float) -> list[Segment]:
        """The segment that an answer makes of a window; none if it has no text. The probability that nothing is said is
        not known, and then 0. Raises DeviceError for an answer without the translation.
        """
        start, end = window.seek / FRAMES_PER_SECOND, window.end / FRAMES_PER_SECOND
        text: str | None = SharedScript.of_thread().ask("heardText", answer, self._task)
        if text is None:
            raise DeviceError(
                f"{self._model} has not translated the sound from {start:g} s to {end:g} s, but answered "
                f"{answer.strip()[:60]!r}; transcribe it, and have the text translated"
            )
        if not text:
            return []
        data = text.encode()
        ratio = len(data) / len(zlib.compress(data))
        # The segments of other models begin with their space.
        return [Segment(window.seek, start, end, f" {text}", tuple(tokens), 0.0, logprob, ratio, no_speech_prob=0.0)]


def sound_windows(samples: FloatArray, longest_seconds: float) -> Iterator[SoundWindow]:
    """Windows of at most ``longest_seconds``, which end at quiet places. Raises RequestError for an empty sound."""
    if not len(samples):
        raise RequestError("there are no samples of sound")
    longest = int(longest_seconds * FRAMES_PER_SECOND)
    reading = SampleReading(samples, min(int(LEAST_SECONDS * SAMPLE_RATE), longest * HOP), longest)
    seek = 0
    while seek < reading.count:
        frames, window = reading.window(seek)
        yield SoundWindow(seek, seek + frames, window)
        seek += frames


def longest_sound(sounds: SoundSpec) -> float:
    """The seconds of the longest sound that a model hears."""
    return sounds.most / SAMPLE_RATE


class HearingTranscriber(WindowByWindow):
    """``runner`` has `HEARING_LIMITS` or more. Raises RequestError for a bundle that does not hear."""

    def __init__(self, runner: Runner, tokenizer: Tokenizer) -> None:
        manifest = runner.manifest
        require_plan(manifest, HEARING)
        assert manifest.sounds is not None
        self._runner, self._manifest, self._tokenizer, self._sounds = runner, manifest, tokenizer, manifest.sounds

    def check(self, options: TranscriptionOptions) -> str | None:
        HearingTask(self._manifest.model, options)
        return options.language

    def windows(
        self, samples: FloatArray, options: TranscriptionOptions, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[str | None, float, list[Segment]]]:
        task = HearingTask(self._manifest.model, options)
        for window in sound_windows(samples, longest_sound(self._sounds)):
            if cancelled():
                return
            tokens, logprob = self._answer(window.samples, task, cancelled)
            if cancelled():
                return
            found = task.segments(window, self._tokenizer.decode(tokens), tokens, logprob)
            yield options.language, window.end / FRAMES_PER_SECOND, found

    def _answer(self, samples: FloatArray, task: HearingTask, cancelled: Callable[[], bool]) -> tuple[list[int], float]:
        """The likeliest tokens after the sound and the instruction, and the mean of their log-probabilities."""
        runner, manifest = self._runner, self._manifest
        sounds = [prepare_sound(self._sounds, samples)]
        content = [{"type": "audio"}, {"type": "text", "text": task.instruction}]
        prompt = encode_media(self._tokenizer, manifest, [{"role": "user", "content": content}], [], sounds)
        most = min(task.max_tokens, manifest.context - len(prompt) + 1)
        check_prompt(runner, prompt, max(most, 1))
        placed = placed_features(runner, prompt, [], sounds)
        (*_, output) = prefill(runner, prompt, sample_all=False, placed=placed)
        ends, tokens, logprobs = set(manifest.spec.eos_token_ids), list[int](), list[float]()
        while True:
            token = int(output.next_token_ids[-1])
            if token < 0:
                raise not_finite(runner)
            logprobs.append(float(log_softmax(output.logits[-1])[token]))
            if token in ends:
                break
            tokens.append(token)
            if len(tokens) == most or cancelled():
                break
            output = append(runner, [token], len(prompt) + len(tokens) - 1, [0], GREEDY, placed)
        return tokens, float(np.mean(logprobs))
