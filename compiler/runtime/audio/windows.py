"""Windows of sound as the plan "audio" reads them, and the one of the self-test.

A window is what an encoder reads at once: frames of mel bands (mel bins, frames), or the samples (N,) themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...bundle.manifest import Manifest
from ...ir.spec import AudioSpec
from ..batch import Batch, FloatArray, IntArray, Source
from ..encoder_batch import make_audio_batch

# The rows of the self-test's window: more than a tile of rows or a page of keys has. A complete one of Whisper, with
# 1,500 rows, would take a device minutes, because it is read once for each variant.
TEST_ROWS = 80


def rows_of_window(audio: AudioSpec, window: FloatArray) -> FloatArray:
    """The window as the input "frames" (rows, elements of a row).

    Row t of frames of mel bands reads its own, the one before and the one behind them; those outside of the window are
    zeros. Row t of samples reads them from its first frame on, followed by zeros.
    """
    if audio.mel_bins:
        bins, count = window.shape
        by_frame = np.zeros((count + 2, bins), np.float32)
        by_frame[1:-1] = window.T
        size, step = audio.frames_of_row + 2, audio.frames_of_row
        windows = np.lib.stride_tricks.sliding_window_view(by_frame, size, axis=0)[::step]
        return np.ascontiguousarray(windows.transpose(0, 2, 1)).reshape(count // step, size * bins)
    step, rows = audio.hop_samples * audio.frames_of_row, len(row_frames(audio, len(window)))
    samples = np.zeros((rows - 1) * step + audio.row_elements, np.float32)
    kept = window[: len(samples)]
    samples[: len(kept)] = kept
    return np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(samples, audio.row_elements)[::step])


def row_frames(audio: AudioSpec, samples: int) -> IntArray:
    """How many complete frames each row of a window of samples has. Frames that do not overlap are completed with
    zeros, so that no sound is lost.
    """
    missing = audio.hop_samples - 1 if audio.frame_samples == audio.hop_samples else 0
    frames = max(0, samples + missing - audio.frame_samples) // audio.hop_samples + 1
    starts = np.arange(0, frames, audio.frames_of_row)
    return np.minimum(frames - starts, audio.frames_of_row).astype(np.int32)


def least_samples(audio: AudioSpec) -> int:
    """The samples of the shortest window that has a row to attend to."""
    # The frames of the rows behind the first one, of which the last has one.
    return audio.rows_behind * audio.frames_of_row * audio.hop_samples + audio.frame_samples


def attended_rows(audio: AudioSpec, window: FloatArray) -> int:
    """The rows of a window that a decoder attends to."""
    if audio.mel_bins:
        return int(window.shape[1]) // audio.frames_of_row
    return len(row_frames(audio, len(window))) - audio.rows_behind


def window_batch(manifest: Manifest, windows: Sequence[FloatArray], first: int = 0) -> Batch:
    """The batch of windows, whose keys and values will be those of sources ``first`` and on."""
    audio = manifest.spec.audio
    assert audio is not None
    rows = [rows_of_window(audio, each) for each in windows]
    pages = [source_of(manifest, first + index).pages for index in range(len(windows))]
    # Frames that are read by other rows are counted.
    counts = [row_frames(audio, len(each)) for each in windows] if audio.rows_behind else None
    return make_audio_batch(rows, pages, manifest.page_size, behind=audio.rows_behind, row_frames=counts)


def rest_batch(manifest: Manifest, rows: FloatArray, first: int, kept: int) -> Batch:
    """The batch of the rows of a window from ``first`` on, of an encoder with a receptive field. Keys and values from
    row ``kept`` on will be those of source 0, and those before it, which are wrong, take the place behind all rows.
    """
    source = source_of(manifest)
    batch = make_audio_batch([rows[first:]], [source.pages], manifest.page_size)
    assert batch.source is not None
    places = np.arange(first, len(rows), dtype=np.int32)
    slots = np.where(places < kept, room_of(manifest) - 1, places).astype(np.int32)
    return replace(batch, source=replace(batch.source, positions=places, slots=slots))


def room_of(manifest: Manifest) -> int:
    """The rows that the pages of a source hold."""
    return manifest.source_pages * manifest.page_size


def source_of(manifest: Manifest, index: int = 0, window: FloatArray | None = None) -> Source:
    """The source of a number: each has the pages of one window. It has the rows of ``window``, by default those of the
    longest one.
    """
    audio, count = manifest.spec.audio, manifest.source_pages
    assert audio is not None
    rows = audio.positions - audio.rows_behind if window is None else attended_rows(audio, window)
    return Source(rows, range(index * count, (index + 1) * count))


def test_window(manifest: Manifest) -> FloatArray:
    """Numbers between -1 and 1 for the self-test, which are the same on every machine and in every language."""
    audio = manifest.spec.audio
    assert audio is not None
    if not audio.mel_bins:
        step = audio.hop_samples * audio.frames_of_row
        sample = np.arange(min(TEST_ROWS, audio.positions - 1) * step + step // 2)
        return ((31 * sample + sample // 7 * (sample // 64)) % 64 / 32 - 1).astype(np.float32)
    frame, mel = np.ogrid[: audio.frames_of_row * min(TEST_ROWS, audio.positions), : audio.mel_bins]
    numbers = (31 * frame + 17 * mel + frame * mel) % 64
    return np.ascontiguousarray((numbers / 32 - 1).T, np.float32)


# It is no test of ours.
test_window.__test__ = False  # type: ignore[attr-defined]
