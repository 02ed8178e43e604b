"""Sounds for tests: their samples, and files of them."""

from __future__ import annotations

import struct

import numpy as np

from nearfar.compiler.runtime.batch import FloatArray


def chirp(samples: int) -> FloatArray:
    """A tone that rises and pauses, in noise."""
    generator, seconds = np.random.default_rng(3), np.arange(samples) / 16000
    tone = 0.3 * np.sin(2 * np.pi * (200 + 300 * seconds) * seconds) * (np.sin(3 * seconds) > 0)
    return (tone + 0.05 * generator.normal(size=samples)).astype(np.float32)


def wav(samples: bytes, kind: int, bits: int, *, channels: int = 1, rate: int = 16000, more: bytes = b"") -> bytes:
    """A file with a chunk of an odd size before its samples."""
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * frame, frame, bits) + more
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"LIST" + struct.pack("<I", 3) + b"abc\0"
    chunks += b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def pattern(samples: int) -> FloatArray:
    """Tones and noise, the same numbers in every language."""
    index = np.arange(samples, dtype=np.int64)
    values = (index * index * 7 + index * 13) % 2003 / 2003 - 0.5
    found: FloatArray = (values * ((index // 4096) % 5 + 1) / 5).astype(np.float32)
    return found
