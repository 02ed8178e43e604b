"""Windows of sound as the plan "audio" reads them, and the one of the self-test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...bundle.manifest import Manifest
from ...ir.speech import FRAMES_OF_ROW
from ..batch import Batch, FloatArray, Source, make_audio_batch


def rows_of_window(frames: FloatArray) -> FloatArray:
    """The frames (mel bins, 2 * rows) of a window as the input "frames" (rows, 4 * mel bins): for row t, the frames
    2t - 1 to 2t + 2, one behind the other, with zeros outside of the window.
    """
    bins, count = frames.shape
    by_frame = np.zeros((count + 2, bins), np.float32)
    by_frame[1:-1] = frames.T
    windows = np.lib.stride_tricks.sliding_window_view(by_frame, FRAMES_OF_ROW, axis=0)[::2]
    return np.ascontiguousarray(windows.transpose(0, 2, 1)).reshape(count // 2, FRAMES_OF_ROW * bins)


def window_batch(manifest: Manifest, windows: Sequence[FloatArray], first: int = 0) -> Batch:
    """The batch of windows (mel bins, 2 * rows), whose keys and values will be those of sources ``first`` and on."""
    pages = [source_of(manifest, first + index).pages for index in range(len(windows))]
    return make_audio_batch([rows_of_window(each) for each in windows], pages, manifest.page_size)


def source_of(manifest: Manifest, index: int = 0) -> Source:
    """The source of a number: each has the pages of one window."""
    audio, count = manifest.spec.audio, manifest.source_pages
    assert audio is not None
    return Source(audio.positions, range(index * count, (index + 1) * count))


def test_window(manifest: Manifest) -> FloatArray:
    """Frames between -1 and 1 for the self-test, which are the same numbers on every machine and in every language."""
    audio = manifest.spec.audio
    assert audio is not None
    frame, mel = np.ogrid[: 2 * audio.positions, : audio.mel_bins]
    numbers = (31 * frame + 17 * mel + frame * mel) % 64
    return np.ascontiguousarray((numbers / 32 - 1).T, np.float32)


# It is no test of ours.
test_window.__test__ = False  # type: ignore[attr-defined]
