"""The files of slots, in one folder: their names are names alone, and each is written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from nearfar.compiler.runtime.errors import RequestError, Unavailable, reason_of
from nearfar.compiler.runtime.given_file import read_own

FLAG = "--slot-save-path"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,126}")


class SlotFiles:
    """``folder`` exists, and its files take at most ``size_bytes``. Raises RequestError for another folder."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise RequestError(f"{FLAG} {folder}: is not a folder that this user can write to; make it first")
        self._folder, self._size_bytes = folder, size_bytes

    def path(self, name: str) -> Path:
        """Raises RequestError for a name that could be a path, or hidden."""
        if not NAME.fullmatch(name):
            raise RequestError(
                f"filename {name[:100]!r} is not the name of a slot's file; write up to 127 letters, digits, '_', '-' "
                "and '.', of which '-' and '.' are not the first",
                param="filename",
                code="invalid_filename",
            )
        return self._folder / name

    def write(self, path: Path, data: bytes) -> None:
        """Replace a file. Raises RequestError if all files would take too much, Unavailable if it cannot be written."""
        others = sum(size for name, size in self._sizes() if name != path.name)
        if others + len(data) > self._size_bytes:
            raise RequestError(
                f"{path.name}: takes {len(data):,} bytes, and the other files of slots {others:,}; at most "
                f"{self._size_bytes:,} are allowed for all (--slot-save-size); save under a name that exists, or "
                "remove files",
                param="filename",
                code="slot_files_full",
            )
        temporary: str | None = None
        try:
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".slot-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # This replaces a link itself, not what it points to.
            os.replace(temporary, path)
        except OSError as error:
            if temporary is not None:
                with suppress(OSError):
                    os.unlink(temporary)
            raise Unavailable(
                f"{path.name}: cannot be written: {reason_of(error)}", code="slot_file_not_written"
            ) from error

    def read(self, path: Path, most_bytes: int) -> bytes:
        """Raises RequestError for a file that is missing, a link, or larger than ``most_bytes``."""
        try:
            return read_own(path, most_bytes)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise RequestError(
                    f"{path.name}: {reason_of(error)}, which no slot of this model has",
                    param="filename",
                    code="slot_file_too_large",
                ) from error
            raise RequestError(
                f"{path.name}: cannot be read: {reason_of(error)}; save a slot under this name first",
                param="filename",
                code="slot_file_not_found",
            ) from error

    def _sizes(self) -> list[tuple[str, int]]:
        with os.scandir(self._folder) as entries:
            return [
                (entry.name, entry.stat(follow_symlinks=False).st_size)
                for entry in entries
                if entry.is_file(follow_symlinks=False)
            ]
