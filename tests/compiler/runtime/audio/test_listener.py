"""Sound that grows is read from where it changes: the rows of each window, and what the decoder computes of their keys
and values, are those of the whole window, for any pieces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heard_pieces import Reads
from plain_target import compile_plain
from sounds import chirp
from tiny_moonshine import CONTEXT, make_moonshine, make_moonshine_streaming, streamed_rows_and_logits
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.runtime.audio.listener import Listener
from nearfar.compiler.runtime.audio.windows import room_of, rows_of_window
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.reference import ReferenceRunner

ROW = 320
# Of the tiny model: convolutions read 3 rows back, and layers 4, 5 and 1; they see 2 and 3 rows ahead.
BACK, AHEAD = 13, 5
SOUND = chirp(80 * ROW)
TOKENS = [5, 9, 3]


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Any]:
    """The bundle, and transformers' model."""
    folder: Path = tmp_path_factory.mktemp("streaming")
    (folder / "model").mkdir()
    model = make_moonshine_streaming(folder / "model", seed=3)
    return compile_plain(folder / "model", folder / "bundle", "f32", CONTEXT), model


@pytest.fixture
def reads(streaming: tuple[Bundle, Any]) -> Reads:
    return Reads(ReferenceRunner(streaming[0], activation="float32"))


def grown(*lengths: int) -> list[FloatArray]:
    return [SOUND[:length] for length in lengths]


@pytest.mark.parametrize("seed", range(20))
def test_any_pieces_make_the_rows_of_the_whole(streaming: tuple[Bundle, Any], reads: Reads, seed: int) -> None:
    """Every second time, sound also becomes shorter."""
    cuts = np.random.default_rng(seed).integers(80, len(SOUND) + 1, 5).tolist()
    for window in grown(*(sorted(cuts) if seed % 2 else cuts)):
        rows, logits = reads.heard(window, TOKENS)
        whole = Reads(ReferenceRunner(streaming[0], activation="float32")).heard(window, TOKENS)
        assert relative_error(rows, whole[0]) < F32
        assert relative_error(logits, whole[1]) < F32


def test_they_are_those_of_transformers(streaming: tuple[Bundle, Any], reads: Reads) -> None:
    for window in grown(33 * ROW, 33 * ROW + 81, 40 * ROW + 7, 80 * ROW):
        rows, logits = streamed_rows_and_logits(streaming[1], window, TOKENS)
        found = reads.heard(window, TOKENS)
        assert relative_error(found[0], rows) < F32
        assert relative_error(found[1], logits) < F32
    assert reads.counts[1:] != [34, 41, 80]


def test_only_rows_that_change_and_their_receptive_field_are_read(streaming: tuple[Bundle, Any], reads: Reads) -> None:
    audio = streaming[0].manifest.spec.audio
    assert audio is not None
    assert audio.receptive_field is not None
    assert (audio.receptive_field.back, audio.receptive_field.ahead) == (BACK, AHEAD)
    # The same sound is not read again. A row that was filled up with silence changes.
    for window in grown(40 * ROW, 40 * ROW, 50 * ROW, 50 * ROW + 80, 80 * ROW):
        reads.heard(window, TOKENS)
    context = BACK + AHEAD
    assert reads.counts == [40, context + 10, context + 1, context + 30]
    # A shorter sound ends earlier: what its last rows saw ahead is not there.
    reads.heard(SOUND[: 60 * ROW], TOKENS)
    # Another sound, and one that differs in its first rows.
    reads.heard(SOUND[::-1].copy(), TOKENS)
    reads.heard(np.concatenate([-SOUND[:ROW], SOUND[ROW:]]), TOKENS)
    assert reads.counts[4:] == [context, 80, 80]


def test_the_receptive_field_is_neither_larger_nor_smaller(streaming: tuple[Bundle, Any], reads: Reads) -> None:
    window = SOUND[: 60 * ROW]
    rows, _ = reads.heard(window, TOKENS)
    audio = streaming[0].manifest.spec.audio
    assert audio is not None
    read = rows_of_window(audio, window)
    for at, place in ((30 - AHEAD, 30), (30 + BACK, 30)):
        changed = read.copy()
        changed[place] *= np.linspace(-1, 1, ROW, dtype=np.float32)
        others, _ = Reads(reads.runner).heard(changed.reshape(-1), TOKENS)
        differ = np.abs(others - rows).max(axis=1) > 0
        assert differ[at]
        assert not differ[: 30 - AHEAD].any()
        assert not differ[31 + BACK :].any()


def test_a_window_is_read_whole_after_a_failure(reads: Reads) -> None:
    reads.heard(SOUND[: 40 * ROW], TOKENS)
    reads.fails = True
    with pytest.raises(DeviceError):
        reads.heard(SOUND[: 50 * ROW], TOKENS)
    reads.fails = False
    reads.heard(SOUND[: 50 * ROW], TOKENS)
    assert reads.counts[-1] == 50


def test_the_longest_window_leaves_a_place_for_wrong_rows(streaming: tuple[Bundle, Any]) -> None:
    manifest = streaming[0].manifest
    audio = manifest.spec.audio
    assert audio is not None
    assert audio.positions < room_of(manifest)


def test_encoders_that_see_a_whole_clip_read_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make_moonshine(tmp_path / "model")
    bundle = compile_plain(tmp_path / "model", tmp_path / "bundle", "f32", CONTEXT)
    runner = ReferenceRunner(bundle, activation="float32")
    reads = Reads(runner)
    listener = Listener(reads, bundle.manifest)  # type: ignore[arg-type]
    for length in (8000, 8000, 12_000):
        listener.listen(SOUND[:length])
    assert reads.counts == [reads.counts[0], reads.counts[0], reads.counts[2]]
    assert reads.counts[2] > reads.counts[0]
