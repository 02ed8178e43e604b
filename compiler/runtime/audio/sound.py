"""Reads sound as models need it: one channel at 16 kHz.

WAV files need nothing else. Other formats (FLAC, MP3, Ogg and more) need soundfile, and other rates need soxr: both are
in the extra "audio". soxr is small and resamples with a linear phase and 20 bits of precision; scipy, which could do it
too, is twenty times its size.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...given_file import MAX_MEDIA_BYTES, read_given
from ...ir.speech import SAMPLE_RATE
from ..batch import FloatArray
from ..errors import RequestError, ToolError, reason_of
from .wav import is_wav, read_wav

# The samples of a file that are converted at a time, in all channels; of WAV files, the frames.
FRAMES_AT_ONCE = 1 << 20
# The rates that files may have, in Hz.
RATES = range(1_000, 768_001)
# The loudest sample: floats may have the range of integers of 32 bits. Larger numbers become infinite in a model.
LOUDEST = 2.0**31
EXTRA = "pip install 'nearfar[audio]'"


def read_sound_file(path: Path) -> FloatArray:
    """The samples (N,) of a file at 16 kHz. Raises RequestError for a file that is missing, empty or damaged, or has
    samples that are no numbers, and ToolError for a format or rate that needs a missing package.
    """
    try:
        data = read_given(path, MAX_MEDIA_BYTES)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {reason_of(error)}") from error
    return read_sound(data, str(path))


def read_sound(data: bytes, where: str, max_seconds: float = math.inf) -> FloatArray:
    """As `read_sound_file`, of a file's content. ``where`` names it in errors. Longer sound than ``max_seconds`` is
    refused before it is decoded completely.
    """
    if not data:
        raise RequestError(f"{where}: is empty")
    rate, blocks = _blocks_of_wav(data, where) if is_wav(data) else _blocks_of_file(data, where)
    if rate not in RATES:
        raise RequestError(f"{where}: has {rate} samples a second; supported: {RATES[0]} to {RATES[-1]}")
    parts, length = [np.zeros(0, np.float32)], 0
    # Numbers that are too large become infinite, and are refused below.
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _resampled(map(_mono, blocks), rate, where):
            length += len(part)
            if length > max_seconds * SAMPLE_RATE:
                raise RequestError(f"{where}: is longer than {max_seconds:g} seconds; send parts of it")
            parts.append(part)
    samples = np.concatenate(parts)
    if not len(samples):
        raise RequestError(f"{where}: has no samples")
    if not np.isfinite(samples).all():
        raise RequestError(f"{where}: has samples that are not finite numbers; it is damaged")
    if max(samples.max(), -samples.min()) > LOUDEST:
        raise RequestError(f"{where}: has samples beyond 2^31; it is damaged, samples are from -1 to 1")
    return samples


def _blocks_of_wav(data: bytes, where: str) -> tuple[int, Iterator[FloatArray]]:
    wav = read_wav(data, where)
    return wav.rate, wav.blocks(FRAMES_AT_ONCE)


def _blocks_of_file(data: bytes, where: str) -> tuple[int, Iterable[FloatArray]]:
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise ToolError(
            f"{where}: is no WAV file, and soundfile, which reads other formats, is not installed; {EXTRA}, or convert "
            "the file to WAV"
        ) from error
    try:
        file = soundfile.SoundFile(SoundBytes(data))
    except soundfile.LibsndfileError as error:
        raise RequestError(f"{where}: is no sound in a known format: {error.error_string}") from error
    return file.samplerate, _read_blocks(file, soundfile.LibsndfileError, where)


class SoundBytes(io.BytesIO):
    """A file in memory. Damaged ones lead decoders to before its start, where nothing is."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self.getbuffer().nbytes}[whence]
        return super().seek(max(0, start + offset))


def _read_blocks(file: Any, damaged: type[Exception], where: str) -> Iterator[FloatArray]:
    try:
        # Of a stream in which soundfile cannot seek, it does not know the length.
        frames = max(1, FRAMES_AT_ONCE // file.channels)
        while len(block := file.read(frames, dtype="float32", always_2d=True)):
            yield block
    except damaged as error:
        raise RequestError(f"{where}: is damaged: {error}") from error


def _mono(block: FloatArray) -> FloatArray:
    """The mean of all channels."""
    return block[:, 0] if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32)


def _resampled(blocks: Iterator[FloatArray], rate: int, where: str) -> Iterator[FloatArray]:
    if rate == SAMPLE_RATE:
        yield from blocks
        return
    try:
        import soxr
    except ImportError as error:
        raise ToolError(
            f"{where}: has {rate} samples a second, and soxr, which converts them to {SAMPLE_RATE}, is not installed; "
            f"{EXTRA}, or convert the file"
        ) from error
    stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
