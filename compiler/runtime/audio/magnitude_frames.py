"""The frames of sound that Gemma 4 reads: logarithms of the magnitudes in bands of the HTK mel scale. Zhang et al. 2023
(USM). `web/src/audio/magnitude_frames.ts` computes the same, and tests/conformance/magnitude_frames.json holds both to
their numbers.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ...ir.sounds import MelSpec
from ...ir.speech import SAMPLE_RATE
from ..batch import FloatArray

# Frames whose spectra are in memory at once.
FRAMES_AT_ONCE = 4096


def magnitude_frames(mel: MelSpec, samples: FloatArray, count: int) -> FloatArray:
    """The first ``count`` frames (count, bins) of samples (N,) at 16 kHz, the first of which begins half a window
    before them, with zeros.
    """
    padded = np.concatenate([np.zeros(mel.window // 2, np.float32), samples])
    windows = np.lib.stride_tricks.sliding_window_view(padded, mel.window)[:: mel.hop][:count]
    weights = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(mel.window) / mel.window)
    filters = htk_filters(mel.bins, mel.points)
    frames = np.empty((count, mel.bins), np.float32)
    for start in range(0, count, FRAMES_AT_ONCE):
        spectrum = np.fft.rfft(windows[start : start + FRAMES_AT_ONCE] * weights, n=mel.points, axis=1)
        frames[start : start + FRAMES_AT_ONCE] = np.log(np.abs(spectrum) @ filters.T + mel.floor)
    return frames


@cache
def htk_filters(bins: int, points: int) -> npt.NDArray[np.float64]:
    """The weights (bins, points / 2 + 1) of each frequency of a spectrum in each band: triangles of height 1."""
    top = 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, bins + 2) / 2595) - 1)
    frequencies = np.linspace(0, SAMPLE_RATE / 2, points // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    filters: npt.NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling))
    return filters
