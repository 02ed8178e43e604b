"""Makes renamed files survive a loss of power. A file system may store a rename before the bytes that it publishes, so
a complete name would then stand for empty files.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The disk stores several small files in the time of one, if it gets them together.
NUM_THREADS = 16


def rename_durably(source: Path, path: Path) -> None:
    """Rename a file or folder to ``path`` after all of its bytes are on the disk, and return when the name is too.

    An existing file or empty folder at ``path`` is replaced. On a virtual disk in a cloud, it took 0.5 s for a folder
    of 1 GiB that was just written, and 15 ms for one of 60 kernels. Raises OSError.
    """
    folders = [Path(folder) for folder, _, _ in os.walk(source)]
    files = [path for path in source.rglob("*") if path.is_file()] if folders else [source]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(flush, files))
        list(pool.map(flush, folders))
    source.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Wait until the disk has a file's bytes, or a folder's names. Raises OSError."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder, and stores its names with the rename.
    # Windows flushes only files that are open for writing.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
