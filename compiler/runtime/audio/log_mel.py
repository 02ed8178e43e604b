"""The frames of sound that Whisper reads: logarithms of the energy in bands of the mel scale. Radford et al. 2022.

A frame is 25 ms, one begins every 10 ms. The bands are triangles on Slaney's scale, which is linear below 1 kHz, from 0
to 8 kHz, with equal areas. Numbers more than 8 powers of ten below the loudest one of the sound are raised to that, so
that frames depend on the loudest of all.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ...ir.speech import FRAME, HOP, SAMPLE_RATE
from ..batch import FloatArray

# Frames whose spectra are in memory at once.
FRAMES_AT_ONCE = 4096
# The logarithm's least argument, and how far the least number is below the largest.
LEAST_ENERGY = 1e-10
RANGE = 8.0
# The frequency up to which the mel scale is linear, the mels there, and those of a factor of 6.4 above it.
LINEAR_HERTZ, LINEAR_MELS, LOGARITHMIC_MELS = 1000.0, 15.0, 27.0


def log_mel(samples: FloatArray, bins: int) -> FloatArray:
    """The frames (bins, N // 160) of samples (N,) at 16 kHz, which are more than half a frame. The samples at both ends
    are mirrored, so that a frame is centred on its first sample.
    """
    padded = np.pad(samples, FRAME // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::HOP][: len(samples) // HOP]
    filters, weights = mel_filters(bins), hann()
    frames = np.empty((bins, len(windows)), np.float32)
    for start in range(0, len(windows), FRAMES_AT_ONCE):
        spectrum = np.fft.rfft(windows[start : start + FRAMES_AT_ONCE] * weights, axis=1)
        energy = filters @ (spectrum.real**2 + spectrum.imag**2).T
        frames[:, start : start + FRAMES_AT_ONCE] = np.log10(np.maximum(energy, LEAST_ENERGY))
    np.maximum(frames, frames.max() - np.float32(RANGE), out=frames)
    frames += np.float32(4)
    frames /= np.float32(4)
    return frames


def hann() -> npt.NDArray[np.float64]:
    """The periodic window of a frame."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)


@cache
def mel_filters(bins: int, samples: int = FRAME) -> npt.NDArray[np.float64]:
    """The weights (bins, samples / 2 + 1) of each frequency of a spectrum of ``samples`` in each band."""
    edges = hertz(np.linspace(0, mels(SAMPLE_RATE / 2), bins + 2))
    frequencies = np.linspace(0, SAMPLE_RATE / 2, samples // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    filters: npt.NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling)) * (2 / (high - low))
    return filters


def mels(frequency: float) -> float:
    """A frequency in Hz on Slaney's mel scale."""
    if frequency < LINEAR_HERTZ:
        return LINEAR_MELS * frequency / LINEAR_HERTZ
    return float(LINEAR_MELS + np.log(frequency / LINEAR_HERTZ) * LOGARITHMIC_MELS / np.log(6.4))


def hertz(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The inverse of `mels`."""
    above = LINEAR_HERTZ * np.exp((values - LINEAR_MELS) * np.log(6.4) / LOGARITHMIC_MELS)
    return np.where(values < LINEAR_MELS, values * LINEAR_HERTZ / LINEAR_MELS, above)
