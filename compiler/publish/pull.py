"""Downloads a bundle of a published site. Every byte is checked: the manifest by the catalog's hash, the other files by
the manifest's. A lost connection, or a later run, continues where it stopped.

The files come into a folder beside the bundle's, which is locked, and renamed at the end (new_folder.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from ..bundle.check import parse_manifest
from ..bundle.file_name import is_plain_name
from ..bundle.folder import Bundle, ExportBundle, open_any, sha256_of
from ..bundle.manifest import MANIFEST_FILE
from ..bundle.new_folder import new_folder
from ..bundle.signature import SIGNATURE_FILE, TrustedKey, verify_signature
from ..runtime.errors import BundleError, RequestError
from ..store.blobs import Blobs
from .bundle_copy import files_in, hashes_at, link
from .catalog import CATALOG_FILE, Catalog, CatalogBundle, read_catalog
from .fetch import CHUNK_BYTES, continue_file, other_bytes, read_all

MAX_CATALOG_BYTES = 16 << 20
MAX_MANIFEST_BYTES = 256 << 20
HUB = "https://huggingface.co"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Pulled:
    """``kept_bytes`` were in the folder before, or came in an earlier run."""

    bundle: Bundle | ExportBundle
    new_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class ListedFile:
    """``size`` in bytes; None for kernels, of which a manifest has the hashes only."""

    sha256: str
    size: int | None


def catalog_address(place: str) -> str:
    """The address of a catalog: that of a file or of a web server, or of "hf:OWNER/NAME". Raises RequestError."""
    if place.startswith("hf:"):
        endpoint = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
        return f"{endpoint}/{place.removeprefix('hf:')}/resolve/main/{CATALOG_FILE}"
    if place.startswith(("https://", "http://")):
        try:
            urlsplit(place)
        except ValueError as error:
            raise RequestError(f"{place}: is not an address ({error})") from error
        return place if place.endswith(".json") else urljoin(f"{place.rstrip('/')}/", CATALOG_FILE)
    path = Path(place)
    return (path / CATALOG_FILE if path.is_dir() else path).resolve().as_uri()


def fetch_catalog(place: str) -> tuple[Catalog, str]:
    """The catalog, and its address. Raises BundleError, or Unavailable if it cannot be read."""
    address = catalog_address(place)
    return read_catalog(read_all(address, MAX_CATALOG_BYTES), address), address


def pull(
    entry: CatalogBundle,
    address: str,
    output: Path,
    trust: Sequence[TrustedKey] = (),
    progress: Progress = lambda *_: None,
    blobs: Blobs | None = None,
) -> Pulled:
    """Download a bundle into ``output``, which is new or an older version of it. Files that the older version has are
    links to them, and so are those that the store has as ``blobs``, to which the others are added.

    Raises BundleError for bytes with another hash, OutputError, and Unavailable if the server cannot be reached.
    """
    base = urljoin(address, f"{entry.folder}/")
    with new_folder(output, force=True, resume=True) as partial:
        former = Path(os.path.realpath(output))
        data = read_all(urljoin(base, MANIFEST_FILE), MAX_MANIFEST_BYTES)
        found = hashlib.sha256(data).hexdigest()
        if found != entry.manifest_sha256:
            raise BundleError(
                f"{base}{MANIFEST_FILE}: has SHA-256 {found[:12]}..., but the catalog says "
                f"{entry.manifest_sha256[:12]}...; the site is being changed, or someone else changed it; try again, "
                "or ask its owner",
                file=MANIFEST_FILE,
            )
        files = listed(data, f"{base}{MANIFEST_FILE}")
        known = hashes_at(former)
        # Nothing says how large the kernels are.
        total = sum(each.size or 0 for each in files.values())
        new_bytes = kept_bytes = done = 0
        for file, wanted in files.items():
            target = checked_path(partial, file)
            started = target.stat().st_size if target.is_file() else 0
            # A damaged file is not linked: it would be mended in place, where a program may be reading it.
            if not started and known.get(file) == wanted.sha256 and has_hash(former / file, wanted.sha256):
                target.unlink(missing_ok=True)
                link(former / file, target)
            elif not started and blobs is not None:
                target.unlink(missing_ok=True)
                blobs.place(wanted.sha256, target)
            new, kept = fetch(urljoin(base, file), target, wanted)
            new_bytes, kept_bytes = new_bytes + new, kept_bytes + kept
            done += wanted.size or 0
            progress(done, total)
        if entry.signed_by is not None:
            (partial / SIGNATURE_FILE).write_bytes(read_all(urljoin(base, SIGNATURE_FILE), CHUNK_BYTES))
        if trust:
            verify_signature(partial, data, trust)
        parse_manifest(data, partial / MANIFEST_FILE)
        (partial / MANIFEST_FILE).write_bytes(data)
        drop_others(partial, files)
        if blobs is not None:
            blobs.share(partial, [(file, wanted.sha256) for file, wanted in files.items()])
    return Pulled(open_any(output), new_bytes + len(data), kept_bytes)


def listed(manifest: bytes, address: str) -> dict[str, ListedFile]:
    """The files that a manifest lists, by name. Raises BundleError."""
    try:
        entries = files_in(json.loads(manifest))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{address}: is not JSON ({error}); ask the owner of the site", file=MANIFEST_FILE) from error
    return {
        file: ListedFile(str(entry["sha256"]), size if isinstance(size := entry.get("size"), int) else None)
        for file, entry in entries.items()
    }


def checked_path(folder: Path, file: str) -> Path:
    if not is_plain_name(file):
        raise BundleError(f"the manifest lists the file {file[:80]!r}, which is not a plain name; do not use this site")
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def has_hash(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of(path) == digest


def fetch(address: str, path: Path, wanted: ListedFile) -> tuple[int, int]:
    """Complete a file. Returns the bytes that came, and those that were there. A file with other bytes is fetched once
    more from its start. Raises BundleError and Unavailable.
    """
    kept = path.stat().st_size if path.is_file() else 0
    if kept and has_hash(path, wanted.sha256):
        return 0, kept
    for start in (kept, 0) if 0 < kept < (wanted.size or kept) else (0,):
        size = continue_file(address, path, start, wanted.size)
        if has_hash(path, wanted.sha256):
            return size - start, start
    path.unlink()
    raise other_bytes(address, path)


def drop_others(folder: Path, files: Iterable[str]) -> None:
    """Remove what an earlier run left of another version."""
    keep = {folder / file for file in (*files, MANIFEST_FILE, SIGNATURE_FILE)}
    for path in folder.rglob("*"):
        if path.is_file() and path not in keep:
            path.unlink()
