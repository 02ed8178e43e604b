"""Sounds become windows as the vectors say with which the page is compared, and as encoders need them."""

from __future__ import annotations

import json

import numpy as np
from reading_cases import AUDIO, VECTORS, cases
from sounds import pattern

from nearfar.compiler.runtime.audio.readings import levels, reading_of
from nearfar.compiler.runtime.audio.windows import least_samples, row_frames, rows_of_window


def test_the_vectors_are_what_is_computed() -> None:
    assert json.loads(json.dumps(cases())) == json.loads(VECTORS.read_text())["cases"]


def test_rows_have_the_samples_from_their_first_frame_on() -> None:
    audio, samples = AUDIO["overlapping"], pattern(127 + 64 * 13)
    rows = rows_of_window(audio, samples)
    assert row_frames(audio, len(samples)).tolist() == [6, 6, 2]
    for row in range(3):
        expected = samples[384 * row : 384 * row + 448]
        assert np.array_equal(rows[row, : len(expected)], expected)
        assert not rows[row, len(expected) :].any()
    assert least_samples(audio) == 127 + 64 * 12


def test_frames_that_do_not_overlap_are_completed() -> None:
    assert row_frames(AUDIO["apart"], 321).tolist() == [4, 1]
    assert least_samples(AUDIO["apart"]) == 80


def test_a_long_sound_is_cut_where_it_is_quiet() -> None:
    samples = pattern(40_000)
    samples[11_600:15_200] = 0
    reading = reading_of(samples, AUDIO["apart"], 1)
    frames, window = reading.window(0)
    assert 11_600 < frames * 160 < 15_200
    assert np.array_equal(window, samples[: frames * 160])
    # No sample is lost, and none is read twice.
    seek, read = 0, 0
    while seek < reading.count:
        frames, window = reading.window(seek)
        assert frames <= 100
        seek, read = seek + frames, read + len(window)
    assert read == len(samples)


def test_levels_are_whole_decibels() -> None:
    assert levels(np.zeros(320, np.float32)) == [-100, -100]
    assert levels(np.full(479, 0.1, np.float32)) == [-20, -20]
