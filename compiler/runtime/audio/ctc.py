"""Transcribes sound with an encoder whose rows name tokens: window after window, the likeliest token of each row.

`web/src/shared/transcription/ctc.ts` decides: which rows of each window count, which tokens they write, and what words
and segments these form. This module computes what it decides on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...bundle.manifest import AUDIO, CTC, Manifest
from ...ir.speech import HOP, SAMPLE_RATE
from ...shared.script import SharedScript
from ..batch import FloatArray
from ..errors import RequestError
from ..generate import not_finite
from ..runner import Runner, require_plan
from ..text.tokenizer import Tokenizer
from .frame_rows import frames_batch
from .hearing import HearingTranscriber
from .parakeet_frames import FEWEST_SAMPLES, parakeet_frames
from .transcribe import Segment, Transcriber, TranscriptionOptions, WindowByWindow, Word, compression_ratio

# What an encoder of sound does not take, by the option and the parameter of requests that asks for it.
WITHOUT = {
    "language": "takes no language: it writes what it hears; leave the language out",
    "translate": "does not translate; transcribe, or use a Whisper of several languages",
    "prompt": "continues no text that precedes; leave the prompt out",
    "continues": "continues no text that precedes; leave earlier text out",
    "temperature": "chooses the likeliest tokens at every temperature; leave the temperature out",
}


class CtcTranscriber(WindowByWindow):
    """Raises RequestError for a bundle of another kind."""

    def __init__(self, runner: Runner, tokenizer: Tokenizer) -> None:
        manifest = runner.manifest
        require_plan(manifest, CTC)
        assert isinstance(manifest, Manifest)
        assert manifest.ctc is not None
        assert manifest.spec.conformer is not None
        self._runner, self._manifest, self._tokenizer = runner, manifest, tokenizer
        self._blank, self._conformer = manifest.ctc.blank, manifest.spec.conformer
        self._row_samples = self._conformer.frames * HOP
        self._sizes = {"rows": manifest.context, "rowSamples": self._row_samples, "frameSamples": HOP}

    def check(self, options: TranscriptionOptions) -> str | None:
        """None, for the language. Raises RequestError for what the model does not do."""
        for name, why in WITHOUT.items():
            if getattr(options, name) not in (None, "", False, 0.0):
                raise RequestError(f"{self._manifest.model} {why}", param=name)
        return None

    def windows(
        self, samples: FloatArray, options: TranscriptionOptions, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[str | None, float, list[Segment]]]:
        """As `Transcriber.windows`: the segments that are complete after each window."""
        self.check(options)
        if not len(samples):
            raise RequestError("there are no samples of sound")
        padded = np.pad(samples, (0, max(0, FEWEST_SAMPLES - len(samples))))
        spans: list[Mapping[str, Any]] = []
        windows = self._ask("rowWindows", len(padded), self._sizes)
        for index, window in enumerate(windows):
            if cancelled():
                return
            start, last = window["start"], index + 1 == len(windows)
            row = start // self._row_samples + window["first"]
            named = self._named(padded[start : window["end"]], window["first"], window["last"])
            spans = self._ask("withRows", spans, named, row, self._blank)
            seconds = (self._row_samples / SAMPLE_RATE, len(samples) / SAMPLE_RATE)
            cut = self._ask("wordSegments", spans, self._texts(spans), *seconds, last)
            spans = spans[cut["used"] :]
            done = (start // self._row_samples + window["last"]) * self._row_samples / SAMPLE_RATE
            yield None, done, [self._segment(each, start // HOP) for each in cut["segments"]]

    def _named(self, samples: FloatArray, first: int, last: int) -> dict[str, list[Any]]:
        """What the rows from ``first`` to before ``last`` of a window name."""
        frames = parakeet_frames(samples, self._conformer.mel_bins)
        scores = self._runner.embed(frames_batch([frames], self._conformer))[first:last]
        if not np.isfinite(scores).all():
            raise not_finite(self._runner)
        tokens, largest = scores.argmax(axis=1), scores.max(axis=1)
        logprobs = -np.log(np.exp(scores - largest[:, None]).sum(axis=1))
        return {"tokens": tokens.tolist(), "logprobs": logprobs.astype(float).tolist()}

    def _texts(self, spans: Sequence[Mapping[str, Any]]) -> list[str]:
        """The text of all tokens up to each span."""
        tokens = [span["token"] for span in spans]
        return [self._tokenizer.decode(tokens[: count + 1]) for count in range(len(tokens))]

    def _segment(self, cut: Mapping[str, Any], seek: int) -> Segment:
        """The probability that nothing is said is not known, and then 0."""
        tokens = tuple(cut["tokens"])
        return Segment(
            seek,
            cut["start"],
            cut["end"],
            cut["text"],
            tokens,
            temperature=0.0,
            avg_logprob=cut["logprob"],
            compression_ratio=compression_ratio(tokens, self._manifest.spec.vocab_size),
            no_speech_prob=0.0,
            words=tuple(Word(**word) for word in cut["words"]),
        )

    def _ask(self, name: str, *values: Any) -> Any:
        return SharedScript.of_thread().ask(name, *values)


def transcriber_of(runner: Runner, tokenizer: Tokenizer) -> WindowByWindow:
    """The transcriber of a bundle's kind. Raises RequestError for a bundle that transcribes no sound."""
    if CTC in runner.manifest.plan_names:
        return CtcTranscriber(runner, tokenizer)
    if runner.manifest.hears:
        return HearingTranscriber(runner, tokenizer)
    require_plan(runner.manifest, AUDIO)
    return Transcriber(runner, tokenizer)
