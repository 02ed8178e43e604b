"""The disk tier: a file for each page or state, in a folder that all models, engines and servers of a machine share.

    FOLDER/usage                                       the bytes of all files, which is also the lock for changing them
    FOLDER/v1/SEAL/MODEL/NAME[:2]/NAME.kv              SEAL: "plain", or the fingerprint of the key

Files appear under their names when they are complete, and what reads one checks it. A file's time is that of its last
use. If the budget is full, the files not used for longest are removed, whoever wrote them.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Lock

from nearfar.compiler.runtime.errors import OutputError, reason_of
from nearfar.compiler.runtime.given_file import read_own

from ..log_event import log_event
from .chain import UnitName
from .sealed import EncryptedSeal, PlainSeal

VERSION, SUFFIX, USAGE = "v1", ".kv", "usage"
# When the budget is full, files are removed until this share of it is free, so that this is rare.
FREED_SHARE = 0.1
# After a failure to write, nothing is written for this time.
PAUSE_SECONDS = 30.0
# No page or state is as large.
MAX_FILE_BYTES = 1 << 30
# What `read_own` raises for a link, another thing than a file, and one that is larger.
NOT_OURS = (errno.ELOOP, errno.EINVAL, errno.EFBIG)
# What a process that ended in the middle of a file has left is removed after this time.
STALE_SECONDS = 3600.0


class DiskTier:
    """``model`` names the model's part of the folder. Callable from any thread. Raises OutputError for a folder that
    cannot be written.
    """

    def __init__(self, folder: Path, budget_bytes: int, seal: PlainSeal | EncryptedSeal, model: str) -> None:
        self._folder, self._budget, self._seal = folder, budget_bytes, seal
        self._own = folder / VERSION / seal.fingerprint / seal.file_name(model.encode())[:32]
        self._lock = Lock()
        self._count = count()
        self.used_bytes = self.evictions = self.damaged = self.failures = 0
        self._paused_until = 0.0
        try:
            # The pages of prompts are private.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked() as usage:
                self._free(usage, 0)
        except OSError as error:
            raise OutputError(
                f"--kv-folder {folder}: cannot be written: {reason_of(error)}; name a folder that can"
            ) from error

    def has(self, name: UnitName) -> bool:
        return self._path(name).exists()

    def get(self, name: UnitName) -> bytes | None:
        """None if there is no such file, or it is damaged; then it is removed."""
        path = self._path(name)
        try:
            sealed = read_own(path, min(self._budget, MAX_FILE_BYTES))
            data = self._seal.open(full_name(name), sealed)
        except OSError as error:
            if error.errno not in NOT_OURS:
                return None
            data = None
        if data is None:
            self.damaged += 1
            log_event("kv_file_damaged", logging.WARNING, file=str(path))
            self._remove(path)
            return None
        with suppress(OSError):
            os.utime(path)
        return data

    def put(self, name: UnitName, data: bytes) -> bool:
        """False if it cannot be written now. A full disk, for example, is reported once and tried again later."""
        path = self._path(name)
        if self.is_paused:
            return False
        if path.exists():
            return True
        size = len(data) + self._seal.extra_bytes
        if size > self._budget:
            return False
        part = path.with_name(f".{path.name}.{os.getpid()}.{next(self._count)}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked() as usage:
                if usage.total + size > self._budget:
                    self._free(usage, size)
                usage.total += size
            try:
                write_private(part, self._seal.seal(full_name(name), data))
                os.replace(part, path)
            except OSError:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
                with suppress(OSError), self._locked() as usage:
                    usage.total -= size
                raise
        except OSError as error:
            self.failures += 1
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            log_event("kv_disk_failed", logging.ERROR, folder=str(self._folder), error=reason_of(error))
            return False
        return True

    def clear(self) -> None:
        """Remove all files of this model with this key, for every process."""
        with suppress(OSError):
            shutil.rmtree(self._own, ignore_errors=True)
            with self._locked() as usage:
                self._free(usage, 0)

    def _path(self, name: UnitName) -> Path:
        file = self._seal.file_name(full_name(name))
        return self._own / file[:2] / f"{file}{SUFFIX}"

    def _remove(self, path: Path) -> None:
        with suppress(OSError), self._locked() as usage:
            size = path.lstat().st_size
            path.unlink()
            usage.total -= size

    @property
    def is_paused(self) -> bool:
        """Whether nothing is written, after a failure."""
        return time.monotonic() < self._paused_until

    @contextmanager
    def _locked(self) -> Iterator[Usage]:
        """The usage of the folder, which no other thread or process changes meanwhile. Raises OSError."""
        with self._lock, locked_usage(self._folder / USAGE) as usage:
            yield usage
            self.used_bytes = usage.total

    def _free(self, usage: Usage, needed: int) -> None:
        """Count all files, and if ``needed`` bytes do not fit, remove those not used for longest."""
        # Files of other versions, which nobody uses, are the first to go.
        files = sorted(file for version in self._folder.glob("v[0-9]*") for file in files_of(version))
        usage.total = sum(size for _, size, _ in files)
        if usage.total + needed <= self._budget:
            return
        most = max(0, int(self._budget * (1 - FREED_SHARE)) - needed)
        for _, size, path in files:
            if usage.total <= most:
                return
            with suppress(OSError):
                os.unlink(path)
                usage.total -= size
                self.evictions += 1


class Usage:
    """The bytes of all files."""

    def __init__(self, total: int) -> None:
        self.total = total


@contextmanager
def locked_usage(file: Path) -> Iterator[Usage]:
    """The content of a file, which nobody else has until it is written again. Raises OSError."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(ImportError):
            import fcntl  # Windows does not have this module; there, processes may exceed the budget together.

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        text = os.read(descriptor, 32)
        usage = Usage(int(text) if text.strip().isdigit() else 0)
        yield usage
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, b"%-31d" % max(0, usage.total))
    finally:
        os.close(descriptor)


def files_of(folder: Path) -> Iterator[tuple[float, int, str]]:
    """Time of the last use, size and path of each file of pages. What is left of files that were never completed is
    removed.
    """
    pending = [str(folder)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                        continue
                    found = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(SUFFIX):
                        yield found.st_mtime, found.st_size, entry.path
                    elif f"{SUFFIX}." in entry.name and found.st_mtime < time.time() - STALE_SECONDS:
                        os.unlink(entry.path)


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only this user may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)


def full_name(name: UnitName) -> bytes:
    return name.chain + bytes([name.kind])
