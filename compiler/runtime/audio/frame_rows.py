"""Frames of sound as the plan "ctc" reads them, and those of its test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...ir.spec import ConformerSpec
from ...ir.speech import FRAMES, ROW_FRAMES
from ..batch import Array, Batch, FloatArray
from ..encoder_batch import make_text_batch


def frames_batch(windows: Sequence[FloatArray], conformer: ConformerSpec) -> Batch:
    """The batch of windows of frames (T, mel bins): each row has several frames, one behind the other, and the last row
    of a window has zeros behind its last frame.
    """
    counts = [len(frames) for frames in windows]
    rows = [-(-count // conformer.frames) for count in counts]
    padded = [
        np.pad(frames, ((0, count * conformer.frames - len(frames)), (0, 0))).reshape(count, -1)
        for frames, count in zip(windows, rows, strict=True)
    ]
    filled = [
        np.minimum(count - conformer.frames * np.arange(length), conformer.frames)
        for count, length in zip(counts, rows, strict=True)
    ]
    extra: dict[str, Array] = {
        FRAMES: np.concatenate(padded).astype(np.float32),
        ROW_FRAMES: np.concatenate(filled).astype(np.int32),
    }
    return replace(make_text_batch([[0] * count for count in rows]), extra=extra)


def with_test_frames(batch: Batch, conformer: ConformerSpec) -> Batch:
    """The batch of the test of a bundle, whose texts are numbers: the row of a number has frames between -1 and 1 that
    follow from it, which are the same on every machine and in every language. The last row of a text lacks one frame.
    """
    number, element = batch.token_ids[:, None] % 64, np.arange(conformer.frames * conformer.mel_bins)
    frames = (31 * number + 17 * element + number * element) % 64 / 32 - 1
    filled = np.full(len(batch.token_ids), conformer.frames, np.int32)
    last = batch.seq_starts[1:] - 1
    filled[last] -= 1
    frames[last, -conformer.mel_bins :] = 0
    return replace(batch, extra={FRAMES: frames.astype(np.float32), ROW_FRAMES: filled})
