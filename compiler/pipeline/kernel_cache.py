"""The cache of compiled kernels: the results of TVM, LLVM and NVRTC, so that compiling the same model again takes
seconds.

The key of a result is a hash of everything that its compiler reads, so an edited template, other options and another
version of a compiler never find it. The cache is in the folder "kernels" of nearfar's cache folder, or in
NEARFAR_KERNEL_CACHE. It may be deleted at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

from ..store.place import cache_folder

KERNELS_VARIABLE = "NEARFAR_KERNEL_CACHE"
# The kernels of a bundle take 0.5 to 5 MB.
MAX_BYTES = 1 << 30
# Files are in this many folders, by the first digit of their keys, and each has an equal share of the bytes.
FOLDERS = 16
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class KernelCache:
    """Files by key; each starts with the SHA-256 of its contents. The files that were used last are kept.

    Several processes may use a folder at once. A folder that cannot be written is an empty cache.
    """

    folder: Path
    max_bytes: int = MAX_BYTES

    @classmethod
    def of_user(cls) -> KernelCache:
        chosen = os.environ.get(KERNELS_VARIABLE)
        return cls(Path(chosen).expanduser() if chosen else cache_folder() / "kernels")

    def kept(self, key: Iterable[str | bytes], compile_now: Callable[[], bytes]) -> bytes:
        """The result of ``compile_now()`` for the parts of this key, now or earlier."""
        digest = sha256()
        for part in key:
            data = part.encode() if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little") + data)
        name = digest.hexdigest()
        file = self.folder / name[0] / name[1:]
        found = intact(file)
        if found is None:
            found = compile_now()
            with suppress(OSError):
                self._write(file, found)
        return found

    def _write(self, file: Path, contents: bytes) -> None:
        """Write a file that appears complete or not at all, and then delete the oldest ones beyond the limit."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=file.parent, delete=False) as unfinished:
            try:
                unfinished.write(sha256(contents).digest() + contents)
                unfinished.close()
                Path(unfinished.name).replace(file)
            except BaseException:
                Path(unfinished.name).unlink()
                raise
        files = sorted(((each.stat(), each) for each in file.parent.iterdir()), key=lambda pair: -pair[0].st_mtime_ns)
        total = 0
        for status, each in files:
            total += status.st_size
            if total > self.max_bytes // FOLDERS:
                each.unlink(missing_ok=True)


def intact(file: Path) -> bytes | None:
    """The contents of a file, or None if it is missing or damaged. Reading it marks it as recently used."""
    try:
        data = file.read_bytes()
        os.utime(file)
    except OSError:
        return None
    contents = data[DIGEST_BYTES:]
    return contents if sha256(contents).digest() == data[:DIGEST_BYTES] else None
