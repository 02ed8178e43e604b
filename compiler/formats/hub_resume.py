"""Downloads the large files of a repository on the Hugging Face Hub into the hub's cache. A process that was killed
leaves the first part of a file there, and the next one requests only the rest.

huggingface_hub gives every download a new temporary name, so it starts a file again. It reuses complete blobs, which
are named by their SHA-256; this module makes those. It uses plain HTTP, because hf_xet cannot continue a file either.
https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..runtime.errors import CheckpointError

# The hub serves larger files only to hf_xet.
LARGEST_BYTES = 50_000_000_000


def fetch_large_files(
    repository: str, allowed: Sequence[str], ignored: Sequence[str], progress: Callable[[int, int], None]
) -> None:
    """Fetch the files that match the patterns, are stored as large files (LFS) and are not in the cache.

    ``progress`` is called with the bytes of a file that are there, and all its bytes. Without a connection, nothing is
    fetched. Raises the client's errors, OSError, and CheckpointError for a file with
    other bytes than the hub announced.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.file_download import are_symlinks_supported, repo_folder_name
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    try:
        files = HfApi().model_info(repository, files_metadata=True).siblings or []
    except Exception:
        # `snapshot_download` then reports what is wrong, or finds all files in the cache.
        return
    cache, name = Path(constants.HF_HUB_CACHE), repo_folder_name(repo_id=repository, repo_type="model")
    large = [each for each in files if each.lfs is not None and each.lfs.size <= LARGEST_BYTES]
    wanted = filter_repo_objects(
        large, allow_patterns=list(allowed), ignore_patterns=list(ignored), key=lambda each: each.rfilename
    )
    # Without links, the client moves a blob to the file's own place.
    if not are_symlinks_supported(cache):
        return
    for each in wanted:
        _fetch(repository, each.rfilename, each.lfs, cache / name / "blobs", cache / ".locks" / name, progress)


def _fetch(
    repository: str,
    file_name: str,
    stored: Any,
    blobs: Path,
    locks: Path,
    progress: Callable[[int, int], None],
) -> None:
    """``stored``: the size and the SHA-256 of the file, a BlobLfsInfo."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers  # type: ignore[attr-defined]

    digest = stored.sha256
    blob, partial = blobs / digest, blobs / f"{digest}.partial"
    if blob.exists():
        return
    for folder in (blobs, locks):
        folder.mkdir(parents=True, exist_ok=True)
    # The lock that the client itself holds while it downloads this file.
    with WeakFileLock(locks / f"{digest}.lock"):
        if blob.exists():
            return
        with partial.open("ab") as file:
            http_get(
                hf_hub_url(repository, file_name),
                _Reporting(file, stored.size, progress),  # type: ignore[arg-type]
                resume_size=file.tell(),
                headers=build_hf_headers(),
                expected_size=stored.size,
                displayed_filename=file_name,
            )
        with partial.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            partial.unlink()
            raise CheckpointError(
                f"{repository}: {file_name} was downloaded with other bytes than the hub announced (SHA-256 {found}, "
                f"not {digest}); run the command again, which downloads it from the start",
                model=repository,
                file=file_name,
            )
        partial.replace(blob)


class _Reporting:
    """A file that reports how much of it was written."""

    def __init__(self, file: Any, size: int, progress: Callable[[int, int], None]) -> None:
        self._file, self._size, self._progress = file, size, progress

    def write(self, data: bytes) -> int:
        written: int = self._file.write(data)
        self._progress(self._file.tell(), self._size)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
