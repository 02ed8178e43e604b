"""SpeechSpec: how a model of sound transcribes, apart from its layers: the tokens with which it is prompted, and those
that it may not write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .expr import Count, Natural

# The rate of the sound that models read. Of frames of mel bands, the samples from one to the next, and those of a
# frame's window.
SAMPLE_RATE = 16_000
HOP = 160
FRAME = 400
# The input of a plan "audio": what each row of a window reads (S, `AudioSpec.row_elements`).
FRAMES = "frames"
# The input (S,) int32 with the number of frames that exist of those of a row.
ROW_FRAMES = "row_frames"


@dataclass(frozen=True, slots=True)
class LanguageToken:
    """The token of a language, by its code such as "en"; None if it is the model's only one, which no prompt names."""

    code: str
    token: Natural | None


@dataclass(frozen=True, slots=True)
class SpeechSpec:
    """A prompt is ``start``, and if ``languages`` have tokens, one of them and the task; then ``no_timestamps``, unless
    the text is to have timestamps: all tokens after it, ``seconds`` / rows of a window apart. Without that token, the
    model writes no timestamps, and ``seconds`` are those of its longest window. ``previous`` precedes a text that was
    transcribed before, None if the model has no such token. The probability of ``no_speech`` after ``start`` is that
    of a window without speech.

    ``suppressed`` tokens are never written, ``suppressed_first`` not as the first one. With timestamps, the first one
    is at most number ``max_initial_timestamp``, unless that is None.
    """

    start: Natural
    no_timestamps: Natural | None
    no_speech: Natural | None
    seconds: Count
    languages: tuple[LanguageToken, ...] = ()
    transcribe: Natural | None = None
    translate: Natural | None = None
    previous: Natural | None = None
    suppressed: tuple[Natural, ...] = ()
    suppressed_first: tuple[Natural, ...] = ()
    max_initial_timestamp: Natural | None = None


@dataclass(frozen=True, slots=True)
class CtcSpec:
    """How the rows of an encoder of sound become text: the likeliest token of each row is written unless it is
    ``blank`` or that of the row before (connectionist temporal classification, Graves et al. 2006). ``features`` names
    how frames are made of samples.
    """

    blank: Natural
    features: Literal["parakeet"]
