"""The disk tier alone: its budget, which all processes share, the order of eviction, keys, and private files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nearfar.compiler.runtime.errors import OutputError, RequestError
from nearfar.server_fallback.kv_tiers.chain import UnitName
from nearfar.server_fallback.kv_tiers.disk_tier import DiskTier
from nearfar.server_fallback.kv_tiers.host_tier import HostTier
from nearfar.server_fallback.kv_tiers.sealed import PlainSeal, open_seal

DATA = bytes(1000)
FILE_BYTES = len(DATA) + PlainSeal.extra_bytes


def name(number: int) -> UnitName:
    return UnitName(bytes([number]) * 32, 0)


def age(tier: DiskTier, *numbers: int) -> None:
    """Let files be used in this order, long ago."""
    for time, number in enumerate(numbers):
        os.utime(tier._path(name(number)), (1000 + time, 1000 + time))


def held(tier: DiskTier, count: int) -> list[int]:
    return [number for number in range(count) if tier.get(name(number)) is not None]


def test_two_processes_share_a_budget_and_the_files_not_used_for_longest_go(tmp_path: Path) -> None:
    first, second = (DiskTier(tmp_path, 10 * FILE_BYTES, PlainSeal(), model) for model in "ab")
    for number in range(6):
        assert first.put(name(number), DATA)
    for number in range(4):
        assert second.put(name(number), DATA)
    assert second.used_bytes == 10 * FILE_BYTES
    age(first, 3, 0, 1, 2, 4, 5)
    age(second, 0, 1, 2, 3)
    # It is used again.
    assert first.get(name(3)) == DATA
    assert first.put(name(6), DATA)
    # One more is removed than needed, so that it is rare.
    assert first.evictions == 2
    assert sorted(held(first, 7) + [10 + number for number in held(second, 4)]) == [1, 2, 3, 4, 5, 6, 11, 12, 13]
    assert first.used_bytes == 9 * FILE_BYTES
    # A file that no budget holds is left out.
    assert not first.put(name(9), bytes(10 * FILE_BYTES))
    # A smaller budget of a later process.
    third = DiskTier(tmp_path, 3 * FILE_BYTES, PlainSeal(), "a")
    assert third.used_bytes <= 3 * FILE_BYTES
    # A removed file is not missed, and a clear is for one model.
    second.clear()
    first.put(name(7), DATA)
    assert held(second, 4) == []
    first.clear()
    assert first.used_bytes == 0
    assert not list(tmp_path.rglob("*.kv"))


def test_the_usage_is_counted_again_when_it_was_lost(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 10 * FILE_BYTES, PlainSeal(), "a")
    for number in range(3):
        tier.put(name(number), DATA)
    (tmp_path / "usage").write_text("nonsense")
    assert DiskTier(tmp_path, 10 * FILE_BYTES, PlainSeal(), "a").used_bytes == 3 * FILE_BYTES


def test_what_was_never_completed_and_files_of_other_versions_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for file in ("v0/a/b.kv", "v1/plain/.x.kv.77.1", "v1/plain/note.txt", "videos/mine.kv", "mine.txt"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(bytes(2 * FILE_BYTES))
        os.utime(tmp_path / file, (1000, 1000))
    tier = DiskTier(tmp_path, 2 * FILE_BYTES, PlainSeal(), "a")
    assert tier.used_bytes == 2 * FILE_BYTES
    assert tier.put(name(0), DATA)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert [path for path in left if "plain/" not in path or "note" in path] == [
        "mine.txt",
        "usage",
        "v1/plain/note.txt",
        "videos/mine.kv",
    ]
    assert held(tier, 1) == [0]


def test_a_link_a_pipe_and_a_file_that_is_too_large_are_removed_unread(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "kv", 10 * FILE_BYTES, PlainSeal(), "a")
    for number in range(3):
        assert tier.put(name(number), DATA)
    link, pipe, large = (tier._path(name(number)) for number in range(3))
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    pipe.unlink()
    os.mkfifo(pipe)
    os.truncate(large, 1 << 40)
    # Whoever reads a pipe waits for its end.
    with open(os.open(pipe, os.O_RDWR), "wb"):
        assert held(tier, 3) == []
    assert (tier.damaged, [path for path in (link, pipe, large) if os.path.lexists(path)]) == (3, [])
    assert (tmp_path / "elsewhere").stat().st_size == FILE_BYTES


def test_only_this_user_can_read_the_folder(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "kv", 1 << 20, PlainSeal(), "a")
    tier.put(name(0), DATA)
    for path in [tmp_path / "kv", *(path for path in (tmp_path / "kv").rglob("*") if path.is_file())]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match=r"--kv-folder .*file.*: cannot be written: .*; name a folder that can"):
            DiskTier(folder, 1 << 20, PlainSeal(), "a")


def test_a_key_has_32_bytes(tmp_path: Path) -> None:
    file = tmp_path / "key"
    seals, key = [], bytes(range(32))
    for content in (key, key.hex().encode(), key.hex().upper().encode() + b"\r\n"):
        file.write_bytes(content)
        seals.append(open_seal(file))
    assert len({seal.fingerprint for seal in seals}) == 1
    assert seals[0].open(b"name", seals[1].seal(b"name", DATA)) == DATA
    assert seals[0].open(b"other", seals[1].seal(b"name", DATA)) is None
    for wrong in (b"", bytes(31), b"0" * 63, b"g" * 64):
        file.write_bytes(wrong)
        with pytest.raises(RequestError, match="is not a key of 32 bytes, or of 64 hexadecimal digits; make one with"):
            open_seal(file)
    with pytest.raises(RequestError, match=r"--kv-key-file .*none: cannot be read"):
        open_seal(tmp_path / "none")


def test_the_host_keeps_what_was_used_last() -> None:
    tier = HostTier(3000)
    for number in range(3):
        tier.put(name(number), DATA)
    assert tier.get(name(0)) == DATA
    tier.put(name(3), DATA)
    tier.put(name(4), bytes(3001))
    assert [number for number in range(5) if tier.has(name(number))] == [0, 2, 3]
    assert (tier.used_bytes, tier.evictions) == (3000, 1)
    tier.clear()
    assert (tier.used_bytes, tier.get(name(0))) == (0, None)
