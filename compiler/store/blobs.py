"""Blobs: one name for each content, so that bundles and models share equal files.

A blob, `blobs/sha256-HEX`, is a hard link to the files of bundles and models that have its bytes. If only the blob's
own name is left, nobody uses it. On a file system without links, files are copied, and nothing is shared.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..bundle.folder import sha256_of

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Blobs:
    folder: Path

    def path(self, sha256: str) -> Path:
        assert _SHA256.fullmatch(sha256), "hashes of manifests and records are checked when they are read"
        return self.folder / f"sha256-{sha256}"

    def place(self, sha256: str, target: Path) -> bool:
        """Make ``target``, a new file, have these bytes. False if the store does not have them. A blob with other bytes
        than its name says is removed.
        """
        blob = self.path(sha256)
        if not is_plain_file(blob):
            return False
        try:
            link_or_copy(blob, target)
        except FileNotFoundError:
            return False  # It was collected meanwhile.
        if sha256_of(target) == sha256:
            return True
        target.unlink()
        with suppress(FileNotFoundError):
            blob.unlink()
        return False

    def add(self, file: Path, sha256: str) -> None:
        """Let other models share a file, whose bytes were compared with the hash. If the store has them already, the
        file becomes a link to them.
        """
        blob = self.path(sha256)
        if not is_plain_file(file):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, blob)
        except FileExistsError:
            self._replace(file, sha256)
        except OSError:
            return  # The file system has no links, or no more of this file.

    def share(self, folder: Path, hashes: Iterable[tuple[str, str]]) -> None:
        """Add the files of a bundle that was just written: names and hashes."""
        for name, sha256 in hashes:
            self.add(folder / name, sha256)

    def collect(self) -> int:
        """Remove the blobs that nothing uses. Returns their bytes."""
        freed = 0
        for blob in self.folder.glob("sha256-*"):
            with suppress(FileNotFoundError):
                status = blob.lstat()
                if not stat.S_ISREG(status.st_mode):
                    blob.unlink()
                elif status.st_nlink == 1:
                    blob.unlink()
                    freed += status.st_size
        return freed

    def _replace(self, file: Path, sha256: str) -> None:
        if os.path.samestat(file.lstat(), self.path(sha256).lstat()):
            return
        shared = file.with_name(f".{file.name}.shared")
        shared.unlink(missing_ok=True)
        if self.place(sha256, shared):
            shared.replace(file)
        else:
            with suppress(OSError):
                os.link(file, self.path(sha256))


def is_plain_file(path: Path) -> bool:
    """Whether a path is a file itself, and not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file another name, which no file has yet. Raises OSError."""
    try:
        os.link(source, target)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        shutil.copyfile(source, target)


def disk_bytes(folders: Iterable[Path]) -> int:
    """The bytes that folders take on the disk: a file that several of them have counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for folder in folders:
        # Unlike `rglob`, it leaves out folders that another process removes meanwhile.
        for root, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError):
                    status = os.lstat(os.path.join(root, name))
                    if stat.S_ISREG(status.st_mode):
                        sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())
