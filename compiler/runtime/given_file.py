"""Reads a file that a user has named, such as a configuration or a text. It may be anything: a device never ends, and
the wrong file may be larger than the memory.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

# Of settings, keys and programs' own files.
MAX_BYTES = 64 << 20
# Of texts and records, which are read whole.
MAX_DATA_BYTES = 1 << 30
# Of pictures, sounds and videos.
MAX_MEDIA_BYTES = 4 << 30
# Without it, Windows changes ends of lines.
BINARY = getattr(os, "O_BINARY", 0)


def read_given(file: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file, or of a pipe, as shells make of <(COMMAND). Raises OSError, which says why it
    cannot be read, also for a device, a folder and more than ``max_bytes``.
    """
    with file.open("rb") as opened:
        status = os.fstat(opened.fileno())
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            raise OSError(errno.EINVAL, "it is not a file, but a device")
        content = b"" if status.st_size > max_bytes else opened.read(max_bytes + 1)
    if status.st_size > max_bytes or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MiB")
    return content


def read_own(file: Path, max_bytes: int) -> bytes:
    """The content of a file that the program itself wrote, into a folder in which others may write. Raises OSError,
    which says why it cannot be read, also for a link, a pipe, a device and more than ``max_bytes`` (EFBIG).
    """
    # Without O_NONBLOCK, a pipe would be waited for. Windows has neither flag.
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | BINARY)
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than {max_bytes:,}")
        return opened.read(max_bytes)


def read_given_text(file: Path, max_bytes: int = MAX_BYTES, encoding: str = "utf-8") -> str:
    """As `read_given`, with "\\n" at the end of each line. Raises UnicodeDecodeError, too."""
    return io.TextIOWrapper(io.BytesIO(read_given(file, max_bytes)), encoding=encoding).read()
