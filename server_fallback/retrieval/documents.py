"""The documents of a folder, and a process that reads them with limits of time and memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from nearfar.compiler.bundle.file_name import leads_out

from ..processes.worker import WorkerEnded, WorkerLimits, WorkerProcess
from . import file_kinds
from .document_worker import HTML, PDF, TEXT, WORD, Unreadable
from .store import Document

SUFFIXES = (*TEXT, *HTML, *WORD, *PDF, *file_kinds.SUFFIXES)
MAX_BYTES = 50_000_000
READ_SECONDS = 30.0
MEMORY_BYTES, KEPT_BYTES = 1 << 30, 256 << 20


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files to index by their paths in the folder, in order. Hidden files and links out of the folder are left
    out.
    """
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if name.startswith(".") or path.suffix.lower() not in SUFFIXES or not path.is_file():
                continue
            if path.is_symlink() and leads_out(path, folder):
                continue
            yield path.relative_to(folder).as_posix(), path


def document_of(name: str, path: Path, known: Document | None) -> Document:
    """The document of a file. The file is only read if its size or time differ from those of ``known``. Raises
    OSError.
    """
    status = path.stat()
    if known is not None and (known.size, known.modified_ns) == (status.st_size, status.st_mtime_ns):
        return known
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Document(0 if known is None else known.id, name, status.st_size, status.st_mtime_ns, digest)


class DocumentReader:
    """Used from one event loop, by one caller at a time. A document that hangs or needs too much memory ends its
    process, and another one starts.
    """

    def __init__(self, seconds: float = READ_SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self._seconds = seconds
        limits = WorkerLimits(memory_bytes, KEPT_BYTES, int(seconds) + 10, niceness=0)
        self._process = WorkerProcess(f"{__package__}.document_worker", limits)

    async def read(self, path: Path) -> str | Unreadable:
        if path.stat().st_size > MAX_BYTES:
            return Unreadable(f"it has more than {MAX_BYTES / 1e6:.0f} MB; add a part of it")
        try:
            text = await self._process.call(path, self._seconds)
        except WorkerEnded as ended:
            limit = f"takes more than {self._seconds:g} s to read" if ended.timed_out else "needs too much memory"
            return Unreadable(f"it {limit}; add a part of it")
        assert isinstance(text, str | Unreadable)
        return text

    def close(self) -> None:
        self._process.close()
