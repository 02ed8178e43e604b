"""Files of sound become one channel at 16 kHz, or are refused by name."""

from __future__ import annotations

import io
import random
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from sounds import wav

from nearfar.compiler.runtime.audio.sound import read_sound, read_sound_file
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import RequestError, ToolError

SAMPLES = (np.sin(np.arange(1600) / 7) * 0.8).astype(np.float32)


def integers(bits: int) -> bytes:
    """The samples as integers."""
    scaled = np.rint(SAMPLES.astype(np.float64) * (2 ** (bits - 1) - 1)).astype("<i4")
    if bits == 8:
        return bytes((scaled + 128).astype(np.uint8))
    return bytes(scaled.view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes())


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_integers_are_numbers_from_minus_one_to_one(bits: int) -> None:
    found = read_sound(wav(integers(bits), 1, bits), "a.wav")
    assert np.abs(found - SAMPLES).max() < 1.6 / 2 ** (min(bits, 24) - 1)
    assert found.dtype == np.float32


@pytest.mark.parametrize("bits", [32, 64])
def test_floats_are_read_as_they_are(bits: int) -> None:
    assert np.array_equal(read_sound(wav(SAMPLES.astype(f"<f{bits // 8}").tobytes(), 3, bits), "a.wav"), SAMPLES)


def test_an_extensible_format_names_its_kind_behind_the_others() -> None:
    more = struct.pack("<HHIH", 22, 16, 0, 1) + bytes(14)
    assert len(read_sound(wav(integers(16), 0xFFFE, 16, more=more), "a.wav")) == len(SAMPLES)


def test_channels_are_averaged() -> None:
    channels = np.stack([SAMPLES * factor for factor in (1, 0, 0, 0.5, 0, 0, 0, 0.5)], axis=1)
    found = read_sound(wav(channels.astype("<f4").tobytes(), 3, 32, channels=8), "a.wav")
    assert np.allclose(found, SAMPLES / 4, atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_another_rate_is_converted(rate: int) -> None:
    """A tone stays the same tone: away from the ends, the result is that of the tone's formula."""
    pytest.importorskip("soxr")
    tone = np.sin(2 * np.pi * 440 * np.arange(2 * rate) / rate).astype("<f4")
    found = read_sound(wav(tone.tobytes(), 3, 32, rate=rate), "a.wav")
    assert abs(len(found) - 32000) <= 1
    expected = np.sin(2 * np.pi * 440 * np.arange(len(found)) / 16000)
    assert np.abs(found - expected)[1000:-1000].max() < 1e-3


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3"])
def test_other_formats_are_read(kind: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    tone = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000) * 0.5
    soundfile.write(file, np.stack([tone, tone], axis=1), 16000, format=kind)
    found = read_sound(file.getvalue(), "a")
    # The other two lose some, and MP3 adds silence before.
    assert len(found) == 16000 if kind == "FLAC" else len(found) >= 16000
    assert np.sqrt(np.mean(found**2)) == pytest.approx(0.354, rel=0.05)


def damaged(data: bytes, start: int, size: int, value: int) -> bytes:
    return data[:start] + value.to_bytes(size, "little") + data[start + size :]


GOOD = wav(integers(16), 1, 16)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a: is empty"),
        (b"hello, this is no sound at all", "a: is no sound in a known format"),
        (GOOD[:12], "a: is a WAV file without samples"),
        (GOOD[:40], "a: is a WAV file without samples"),
        (wav(b"", 1, 16), "a: has no samples"),
        (damaged(GOOD, 22, 2, 0), "0 channels"),
        (damaged(GOOD, 24, 4, 0), "0 Hz"),
        (damaged(GOOD, 20, 2, 2), "encoding 2 with 16 bits, which is not supported; convert it to 16-bit PCM"),
        (damaged(GOOD, 34, 2, 12), "encoding 1 with 12 bits"),
        (wav(integers(16), 1, 16, rate=100), "has 100 samples a second; supported: 1000 to 768000"),
        (wav(np.array([0, np.nan], "<f4").tobytes(), 3, 32), "samples that are not finite"),
        (wav(np.array([0, np.inf], "<f8").tobytes(), 3, 64), "samples that are not finite"),
        (wav(np.array([0, 1e300], "<f8").tobytes(), 3, 64), "samples that are not finite"),
        (wav(np.full(64, 3e38, "<f4").tobytes(), 3, 32, channels=2), "samples that are not finite"),
        (wav(np.array([0, -1e30], "<f4").tobytes(), 3, 32), "samples beyond 2^31"),
    ],
)
def test_what_is_no_sound_is_refused(data: bytes, message: str) -> None:
    pytest.importorskip("soundfile")
    with pytest.raises(RequestError) as caught:
        read_sound(data, "a")
    assert message in caught.value.message


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "AIFF"])
def test_damaged_files_are_read_or_refused(kind: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    file, chance = io.BytesIO(), random.Random(kind)
    soundfile.write(file, np.stack([SAMPLES, SAMPLES], axis=1), 16000, format=kind)
    refused: list[str] = []
    for _ in range(150):
        data = bytearray(file.getvalue())
        for _ in range(3):
            data[chance.randrange(min(len(data), 200))] = chance.randrange(256)
        try:
            assert np.isfinite(read_sound(bytes(data[: chance.randrange(1, len(data))]), "a", 60)).all()
        except RequestError as error:
            refused.append(error.message)
    assert refused
    assert all(message.startswith("a: ") for message in refused)


def test_a_file_that_was_cut_is_read_as_far_as_it_goes() -> None:
    assert len(read_sound(GOOD[:-101], "a")) == len(SAMPLES) - 51


def test_sound_that_is_too_long_is_refused_before_it_is_read_completely() -> None:
    with pytest.raises(RequestError, match=r"a: is longer than 0\.05 seconds; send parts of it"):
        read_sound(GOOD, "a", 0.05)
    assert len(read_sound(GOOD, "a", 0.1)) == len(SAMPLES)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("soundfile", "soxr"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ToolError, match=r"pip install 'nearfar\[audio\]', or convert the file to WAV"):
        read_sound(b"fLaC....", "a")
    with pytest.raises(ToolError, match=r"has 8000 samples a second, and soxr"):
        read_sound(wav(integers(16), 1, 16, rate=8000), "a")
    assert len(read_sound(GOOD, "a")) == len(SAMPLES)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"nothing\.wav: cannot be read: No such file"):
        read_sound_file(tmp_path / "nothing.wav")


def test_long_sound_takes_memory_for_its_result_only() -> None:
    """An hour is read in blocks: six seconds stand for it, with blocks of a second."""
    from nearfar.compiler.runtime.audio import wav as module

    stored: FloatArray = np.tile(SAMPLES, 60)
    opened = module.read_wav(wav(stored.astype("<f4").tobytes(), 3, 32), "a")
    blocks = list(opened.blocks(16000))
    assert [len(block) for block in blocks] == [16000] * 6
    assert np.array_equal(np.concatenate(blocks)[:, 0], stored)
