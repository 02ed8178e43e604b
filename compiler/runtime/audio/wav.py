"""Reads WAV files: integers of 8 to 32 bits, and floats. Microsoft and IBM 1991; WAVE_FORMAT_EXTENSIBLE, 2001."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..batch import FloatArray
from ..errors import RequestError

INTEGERS, FLOATS, EXTENSIBLE = 1, 3, 0xFFFE
# The length of a file that was written to a pipe, whose end was not known.
UNKNOWN = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Wav:
    """The samples of a file, as stored: ``data`` has whole frames of one sample for each channel."""

    rate: int
    channels: int
    kind: int
    bits: int
    data: memoryview

    @property
    def frames(self) -> int:
        return len(self.data) * 8 // (self.bits * self.channels)

    def blocks(self, frames: int) -> Iterator[FloatArray]:
        """Samples (up to ``frames``, channels), integers as numbers from -1 to 1."""
        size = frames * self.channels * self.bits // 8
        for start in range(0, len(self.data), size):
            yield self._samples(self.data[start : start + size]).reshape(-1, self.channels)

    def _samples(self, data: memoryview) -> FloatArray:
        if self.kind == FLOATS:
            floats: FloatArray = np.frombuffer(data, "<f4" if self.bits == 32 else "<f8").astype(np.float32)
            return floats
        if self.bits == 8:
            return (np.frombuffer(data, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)
        integers: npt.NDArray[np.int_]
        if self.bits == 24:
            # As the upper three bytes of an integer of 32 bits.
            wide = np.zeros((len(data) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
            integers = wide.view("<i4")[:, 0]
        else:
            integers = np.frombuffer(data, f"<i{self.bits // 8}")
        scaled: FloatArray = (integers / 2.0 ** (31 if self.bits == 24 else self.bits - 1)).astype(np.float32)
        return scaled


def is_wav(data: bytes | memoryview) -> bool:
    return bytes(data[:4]) in (b"RIFF", b"RF64") and bytes(data[8:12]) == b"WAVE"


def read_wav(data: bytes | memoryview, where: str) -> Wav:
    """A file's content, for which `is_wav` holds. Raises RequestError for a damaged file and for other encodings."""
    view = memoryview(data)
    found: tuple[int, int, int, int] | None = None
    start = 12
    while start + 8 <= len(view):
        name, size = struct.unpack_from("<4sI", view, start)
        body = start + 8
        if name == b"fmt ":
            found = _read_format(view[body : body + size], where)
        elif name == b"data":
            if found is None:
                break
            kind, channels, rate, bits = found
            # A file that is still being written, or that was cut, is read as far as it goes.
            stop = len(view) if size == UNKNOWN else min(body + size, len(view))
            frame = channels * bits // 8
            return Wav(rate, channels, kind, bits, view[body : stop - (stop - body) % frame])
        start = body + size + size % 2
    raise RequestError(f"{where}: is a WAV file without samples; it is damaged")


def _read_format(body: memoryview, where: str) -> tuple[int, int, int, int]:
    """The kind of samples, and the numbers of channels, of frames in a second, and of bits of a sample."""
    if len(body) < 16:
        raise RequestError(f"{where}: is a damaged WAV file: its format has {len(body)} bytes")
    kind, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", body)
    if kind == EXTENSIBLE and len(body) >= 26:
        (kind,) = struct.unpack_from("<H", body, 24)
    known = {INTEGERS: (8, 16, 24, 32), FLOATS: (32, 64)}
    if bits not in known.get(kind, ()):
        raise RequestError(
            f"{where}: is a WAV file of encoding {kind} with {bits} bits, which is not supported; convert it to 16-bit "
            "PCM"
        )
    if not channels or not rate or frame != channels * bits // 8:
        raise RequestError(f"{where}: is a damaged WAV file: {channels} channels, {rate} Hz, {frame} bytes a frame")
    return kind, channels, rate, bits
