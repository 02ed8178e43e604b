"""The frames of sound that Parakeet reads: logarithms of the energy in bands of the mel scale, each of which has the
mean 0 and the standard deviation 1 over the sound. NVIDIA 2019 (NeMo).

A frame is 25 ms in the middle of a spectrum of 512 samples, one begins every 10 ms. The bands are those of Whisper's
frames (`log_mel.py`), of samples from which most of the sample before them is subtracted.
"""

from __future__ import annotations

import numpy as np

from ...ir.speech import FRAME, HOP
from ..batch import FloatArray
from .log_mel import FRAMES_AT_ONCE, mel_filters

SPECTRUM, PREEMPHASIS = 512, 0.97
# What is added to energies before their logarithm, and to standard deviations.
LEAST_ENERGY, LEAST_DEVIATION = 2.0**-24, 1e-5
# The fewest samples: of two frames, because one has no deviation.
FEWEST_SAMPLES = 2 * HOP


def parakeet_frames(samples: FloatArray, bins: int) -> FloatArray:
    """The frames (N // 160, bins) of samples (N,) at 16 kHz, at least `FEWEST_SAMPLES`, with zeros around them."""
    rising = np.concatenate([samples[:1], samples[1:] - np.float32(PREEMPHASIS) * samples[:-1]])
    padded = np.pad(rising, SPECTRUM // 2)
    spectra = np.lib.stride_tricks.sliding_window_view(padded, SPECTRUM)[::HOP][: len(samples) // HOP]
    # The symmetric window of a frame, in the middle of a spectrum.
    window = np.pad(np.hanning(FRAME), (SPECTRUM - FRAME) // 2)
    filters = mel_filters(bins, SPECTRUM)
    frames = np.empty((len(spectra), bins), np.float64)
    for start in range(0, len(spectra), FRAMES_AT_ONCE):
        spectrum = np.fft.rfft(spectra[start : start + FRAMES_AT_ONCE] * window, axis=1)
        energy = (spectrum.real**2 + spectrum.imag**2) @ filters.T
        frames[start : start + FRAMES_AT_ONCE] = np.log(energy + LEAST_ENERGY)
    deviation = frames.std(axis=0, ddof=1) + LEAST_DEVIATION
    normalized: FloatArray = ((frames - frames.mean(axis=0)) / deviation).astype(np.float32)
    return normalized
