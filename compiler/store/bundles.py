"""Compiled and downloaded bundles: the folder of each, found from what it was made from, and which of them are kept.

A bundle is found again as long as nothing that it was made from has changed: the contents of the checkpoint's small
files; the names, sizes, times and headers of its weight files (reading gigabytes to be sure would take longer than
compiling); the options; and the compiler's own files. The bundles that were used last are kept, within a limit.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from time import time

from ..bundle.manifest import MANIFEST_FILE
from ..formats.origin import model_name
from ..formats.tokenizer_files import VOCABULARIES
from ..options import size_bytes
from ..pipeline.options import CompileOptions
from ..runtime.errors import RequestError
from .blobs import disk_bytes
from .place import cache_folder

ROOT = Path(__file__).parents[2]
KEY_DIGITS = 16
LIMIT_VARIABLE = "NEARFAR_CACHE_LIMIT"
LIMIT_BYTES = 50 * 10**9
# A bundle that was used a moment ago may be opened now.
RECENT_SECONDS = 60.0


def bundles_folder() -> Path:
    return cache_folder() / "bundles"


def limit_bytes() -> int:
    """How many bytes bundles may take. Raises RequestError for a limit that is not a size."""
    text = os.environ.get(LIMIT_VARIABLE)
    try:
        return size_bytes(text) if text else LIMIT_BYTES
    except ValueError as error:
        raise RequestError(f"{LIMIT_VARIABLE}: {error}") from error


def bundle_path(checkpoint: Path, options: CompileOptions) -> Path:
    """The folder of a bundle that is compiled from a checkpoint's folder or GGUF file, compiled or not."""
    digest = sha256(json.dumps([version("nearfar"), asdict(options)], default=str, sort_keys=True).encode())
    for part in (*checkpoint_parts(checkpoint), *compiler_parts(options.target)):
        digest.update(part)
    name = f"{model_name(checkpoint)}-{options.target}-{options.quantization or 'default'}"
    return bundles_folder() / f"{name}-{digest.hexdigest()[:KEY_DIGITS]}"


def note_source(bundle: Path, checkpoint: Path) -> None:
    """Record what a bundle was compiled from, so that it can be removed with its model."""
    bundle.with_name(f"{bundle.name}.from").write_text(
        str(checkpoint.resolve()), encoding="utf-8", errors="surrogateescape"
    )


def compiled_from(checkpoint: Path) -> list[Path]:
    """The bundles that were compiled from a checkpoint."""
    wanted = str(checkpoint.resolve())
    found = list[Path]()
    for note in bundles_folder().glob("*.from"):
        # Another process may remove a bundle at any time.
        with suppress(OSError):
            if note.read_text(encoding="utf-8", errors="surrogateescape") == wanted:
                found.append(note.with_suffix(""))
    return [bundle for bundle in found if bundle.is_dir()]


def is_bundle(path: Path) -> bool:
    return (path / MANIFEST_FILE).is_file()


def mark_used(bundle: Path) -> None:
    with suppress(OSError):
        os.utime(bundle)


class HeldBundle:
    """A bundle that is not evicted until this is closed, because an engine that fails opens it again."""

    def __init__(self, bundle: Path) -> None:
        mark_used(bundle)
        self._descriptor: int | None = None
        with suppress(ImportError, OSError):
            import fcntl  # Windows does not have this module, and does not remove files that are open.

            self._descriptor = os.open(bundle, os.O_RDONLY)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def evict_bundles(max_bytes: int) -> list[Path]:
    """Remove the bundles that were not used for the longest time, until the others take ``max_bytes`` on the disk. One
    that is held, is being written or was used within the last minute stays. Returns the removed ones.
    """
    folder = bundles_folder()
    times = dict[Path, float]()
    for path in folder.glob("[!.]*"):
        # Another process may remove a bundle at any time.
        with suppress(OSError):
            if path.is_dir():
                times[path] = path.stat().st_mtime
    kept, removed = list(times), list[Path]()
    for oldest in sorted(times, key=lambda path: times[path]):
        if disk_bytes(kept) <= max_bytes:
            break
        if time() - times[oldest] > RECENT_SECONDS and remove_bundle(oldest):
            kept.remove(oldest)
            removed.append(oldest)
    return removed


def remove_bundle(bundle: Path) -> bool:
    """False if it is held or being written."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(bundle.with_name(f"{bundle.name}.lock"), blocking=False), _unused(bundle):
            leaving = bundle.with_name(f".{bundle.name}.evicted")
            bundle.rename(leaving)
            bundle.with_name(f"{bundle.name}.from").unlink(missing_ok=True)
            shutil.rmtree(leaving, ignore_errors=True)
    except (Timeout, OSError):
        return False
    return True


class _unused:
    """Raises BlockingIOError if an engine holds the bundle."""

    def __init__(self, bundle: Path) -> None:
        self._bundle = bundle
        self._descriptor: int | None = None

    def __enter__(self) -> None:
        with suppress(ImportError):
            import fcntl

            self._descriptor = os.open(self._bundle, os.O_RDONLY)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def checkpoint_parts(checkpoint: Path) -> Iterator[bytes]:
    """The bytes that distinguish one checkpoint from another: a folder, or a GGUF file. A folder's subfolders are those
    of sentence-transformers, which are small.
    """
    if checkpoint.is_file():
        status = checkpoint.stat()
        yield b"%d %d" % (status.st_size, status.st_mtime_ns)
    for path in sorted([*checkpoint.glob("*"), *checkpoint.glob("*/*.json")]):
        name = path.relative_to(checkpoint).as_posix().encode()
        if path.suffix in (".safetensors", ".bin"):
            status = path.stat()
            yield b"%b %d %d " % (name, status.st_size, status.st_mtime_ns)
            if path.suffix == ".safetensors":
                yield safetensors_header(path)
        elif path.suffix in (".json", ".jinja") or path.name in VOCABULARIES:
            yield name + b" " + sha256(path.read_bytes()).digest()


def safetensors_header(path: Path) -> bytes:
    """The hash of a safetensors header. The format: eight bytes with the header's length, little-endian, then the
    header.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        # An invalid length is reported when the file is opened.
        return sha256(file.read(min(length, 100 << 20))).digest()


def compiler_parts(target: str) -> Iterator[bytes]:
    shared = (ROOT / "targets").glob("*")
    for paths in (shared, *(folder.rglob("*") for folder in (ROOT / "compiler", ROOT / "targets" / target))):
        for path in sorted(path for path in paths if path.suffix in (".py", ".c", ".cuh")):
            status = path.stat()
            yield f"{path.relative_to(ROOT).as_posix()} {status.st_size} {status.st_mtime_ns}".encode()
