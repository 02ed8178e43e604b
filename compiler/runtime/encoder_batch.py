"""Batches of complete texts and sounds, for encoders and other plans whose rows have no pages of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..ir.sampling import Settings
from ..ir.speech import FRAMES, ROW_FRAMES
from .batch import Array, Batch, FloatArray, IntArray, SourceTables, join, page_lists, page_tables, require_tokens


def make_text_batch(texts: Sequence[Sequence[int]], token_types: Sequence[Sequence[int]] | None = None) -> Batch:
    """A batch of complete texts, by their token ids, for a plan without pages. A text's ``token_types`` may be empty if
    all are of type 0. Raises RequestError for a text without a token.
    """
    lengths = list(map(len, texts))
    require_tokens(lengths)
    starts = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    tokens, none = int(starts[-1]), np.zeros(0, np.int32)
    types = None
    if token_types is not None:
        types = join([own or [0] * len(text) for own, text in zip(token_types, texts, strict=True)])
    return Batch(
        token_ids=join(texts),
        positions=np.arange(tokens, dtype=np.int32) - np.repeat(starts[:-1], lengths),
        slots=np.zeros(tokens, np.int32),
        seq_starts=starts,
        page_indptr=np.zeros_like(starts),
        page_ids=none,
        sample_rows=none,
        sample_slots=none.reshape(0, 2),
        sample_settings=np.zeros((0, len(Settings._fields)), np.float32),
        adapters=np.full(tokens, -1, np.int32),
        token_types=types,
    )


def make_frame_batch(sounds: Sequence[FloatArray], row_frames: Sequence[IntArray] | None = None) -> Batch:
    """A batch of sounds, by their rows of frames (N, elements), for a plan "hearing". ``row_frames`` (N,): how many of
    each row's frames exist, for models whose rows have several.
    """
    batch = make_text_batch([[0] * len(rows) for rows in sounds])
    extra: dict[str, Array] = {FRAMES: np.concatenate(sounds)}
    if row_frames is not None:
        extra[ROW_FRAMES] = np.concatenate(row_frames)
    return replace(batch, extra=extra)


def make_audio_batch(
    windows: Sequence[FloatArray],
    pages: Sequence[Sequence[int]],
    page_size: int,
    *,
    behind: int = 0,
    row_frames: Sequence[IntArray] | None = None,
) -> Batch:
    """A batch of windows of sound for a plan "audio": their rows (N, elements), and the pages that will hold the keys
    and values of each. The last ``behind`` rows of each are a sequence of their own, to which no other row attends.
    """
    batch = make_frame_batch(windows)
    slots = page_tables(*page_lists(pages), batch.positions, list(map(len, windows)), page_size).slots
    if row_frames is not None:
        batch = replace(batch, extra={**batch.extra, ROW_FRAMES: np.concatenate(row_frames)})
    if behind:
        ends = batch.seq_starts[1:]
        starts = np.append(0, np.stack([ends - behind, ends], axis=1).reshape(-1)).astype(np.int32)
        pages = [each for each in pages for _ in range(2)]
        batch = replace(batch, seq_starts=starts, page_indptr=np.zeros_like(starts))
    return replace(batch, source=SourceTables(batch.positions, slots, *page_lists(pages)))
