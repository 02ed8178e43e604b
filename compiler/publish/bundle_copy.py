"""Copies a bundle into a site, so that versions can follow each other at one address.

Shards, kernels and the tokenizer get names with the start of their hash. A file of a former version never changes, so a
page that has read the former manifest loads complete, servers may cache these files forever, and an upload sends only
those that are new. An export keeps its names, which the framework's own tools read, and so does a bundle that is signed
if there is no key to sign it again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from ..bundle.folder import Bundle, ExportBundle, open_any
from ..bundle.manifest import MANIFEST_FILE
from ..bundle.signature import SIGNATURE_FILE, sign
from ..runtime.errors import RequestError

# Digits of a hash in a name.
HASH_DIGITS = 12


@dataclass(frozen=True, slots=True)
class CopiedBundle:
    """``addressed``: its files have names with their hashes. ``new_bytes`` were written, ``kept_bytes`` are those of a
    former version. ``signed_by``: the id of the key that signed it, if it is signed.
    """

    bundle: Bundle | ExportBundle
    manifest_sha256: str
    addressed: bool
    new_bytes: int
    kept_bytes: int
    signed_by: str | None


def copy_bundle(
    bundle: Bundle | ExportBundle, folder: Path, former: Path | None, key: Path | None, *, move: bool
) -> CopiedBundle:
    """Copy a bundle, whose hashes were verified, to a new folder; ``former`` has an earlier version of it, of which
    equal files are linked. ``move``: the bundle's own files may be moved.

    Raises OSError, what signing raises, and RequestError if only the earlier version is signed.
    """
    data = (bundle.path / MANIFEST_FILE).read_bytes()
    signature = bundle.path / SIGNATURE_FILE
    if key is None and not signature.is_file() and former is not None and (former / SIGNATURE_FILE).is_file():
        # Whoever trusts only this key could not load the new version.
        raise RequestError(
            f"{former}: is signed by {signer_of(former)}, and the new version would not be; pass --key, or remove the "
            f"folder's {SIGNATURE_FILE} first"
        )
    keeps_names = isinstance(bundle, ExportBundle) or (signature.is_file() and key is None)
    names = {} if keeps_names else new_names(bundle)
    if names:
        data = renamed(data, names)
    folder.mkdir(parents=True)
    known = {} if former is None else hashes_at(former)
    new_bytes = kept_bytes = 0
    for file, digest in dict(bundle.hashes()).items():
        name = names.get(file, file)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        size = bundle.file(file).stat().st_size
        if former is not None and known.get(name) == digest and size_at(former / name) == size:
            link(former / name, target)
            kept_bytes += size
            continue
        if move:
            shutil.move(bundle.file(file), target)  # Temporary files may be on another file system.
        else:
            shutil.copyfile(bundle.file(file), target)
        new_bytes += size
    (folder / MANIFEST_FILE).write_bytes(data)
    signed_by = None
    if key is not None:
        signed_by = sign(folder, data, key)
    elif signature.is_file():
        shutil.copyfile(signature, folder / SIGNATURE_FILE)
        signed_by = signer_of(folder)
    return CopiedBundle(
        open_any(folder), sha256(data).hexdigest(), bool(names), new_bytes, kept_bytes, signed_by
    )  # fmt: skip


def new_names(bundle: Bundle | ExportBundle) -> Mapping[str, str]:
    """The names with hashes, by those of the bundle. Files that runtimes find by their names keep them."""
    manifest: Any = bundle.manifest
    hashes = dict(bundle.hashes())
    files = [*(entry.file for entry in manifest.shards), *(kernel.file for kernel in manifest.kernels.values())]
    return {file: addressed_name(file, hashes[file]) for file in [*files, manifest.tokenizer.file]}


def addressed_name(file: str, digest: str) -> str:
    """The name with the hash, which that of a published bundle has."""
    path, mark = PurePosixPath(file), f"-{digest[:HASH_DIGITS]}"
    stem, dot, suffix = path.name.partition(".")
    return str(path.with_name(f"{stem.removesuffix(mark)}{mark}{dot}{suffix}"))


def renamed(manifest: bytes, names: Mapping[str, str]) -> bytes:
    """The manifest with other names of files, and nothing else changed."""
    data = json.loads(manifest)
    entries = [*data["shards"], *data["files"], *data["kernels"].values(), data["tokenizer"]]
    for entry in entries:
        entry["file"] = names.get(entry["file"], entry["file"])
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def hashes_at(folder: Path) -> dict[str, str]:
    """The hashes of the files of a bundle, by its manifest; empty without a manifest that can be read."""
    try:
        return hashes_in(json.loads((folder / MANIFEST_FILE).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return {}


def hashes_in(manifest: Any) -> dict[str, str]:
    """By file, in a manifest that may be of another release."""
    return {file: str(entry["sha256"]) for file, entry in files_in(manifest).items()}


def files_in(manifest: Any) -> dict[str, Mapping[str, Any]]:
    """The entries of files, each with ``sha256``, in a manifest that may be of another release."""
    if not isinstance(manifest, dict):
        return {}
    tables = [manifest.get("shards"), manifest.get("files")]
    kernels = manifest.get("kernels")
    entries = [entry for table in tables if isinstance(table, list) for entry in table]
    entries += list(kernels.values()) if isinstance(kernels, dict) else []
    return {
        str(entry["file"]): entry for entry in entries if isinstance(entry, dict) and {"file", "sha256"} <= entry.keys()
    }


def size_at(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def link(source: Path, target: Path) -> None:
    """A second name of a file that no program changes; a copy if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def signer_of(folder: Path) -> str | None:
    try:
        key = json.loads((folder / SIGNATURE_FILE).read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return key if isinstance(key, str) else None
