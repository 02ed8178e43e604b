"""Bundle: a folder of data that every runtime of its target can load. Read here, written by `compile.py`.

A bundle with a plan of ours:

manifest.json            everything a runtime must know; see `manifest.py`
kernels/<name>.<suffix>  one readable source file a kernel, or for CPUs one shared library
weights/<number>.bin     shards: planes of packed weights, each at an offset that is a multiple of 256 bytes
tokenizer.json           as it came with the checkpoint

An export, written by `export.py`: manifest.json beside the files that its framework's own tools load.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import quant
from ..errors import BundleError, reason_of
from ..formats.checkpoint import TokenizerFiles
from ..ir.ops import Array
from ..nearest import did_you_mean_folder
from ..quant.base import FloatArray
from ..quant.layout import rows_per_tile, stored_rows
from .check import parse_manifest
from .file_name import file_in
from .manifest import MANIFEST_FILE, Description, ExportManifest, FileEntry, Manifest, TokenizerEntry
from .signature import TrustedKey, verify_signature


@dataclass(frozen=True, slots=True)
class Folder:
    """A bundle on disk, its manifest checked."""

    path: Path
    manifest: Description

    def file(self, name: str) -> Path:
        """The path of a file that the manifest names. Raises BundleError for one that leads out of the folder."""
        return file_in(self.path, name)

    def hashes(self) -> list[tuple[str, str]]:
        """Of every file beside the manifest: its place in the bundle, and its SHA-256."""
        return [(entry.file, entry.sha256) for entry in self.manifest.files]

    def tokenizer_files(self) -> TokenizerFiles:
        entry = self.manifest.tokenizer
        special = entry.model_dump(exclude={"file"})
        return TokenizerFiles(tokenizer_json=self.file(entry.file), **special)

    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def verify(self) -> None:
        """Compare every file's hash with the manifest's. Raises BundleError for the first that differs."""
        for file, expected in self.hashes():
            path = self.file(file)
            if not path.is_file():
                raise BundleError(f"{path}: is missing; compile the bundle again", file=file)
            found = sha256_of(path)
            if found != expected:
                raise BundleError(
                    f"{path}: is corrupt (SHA-256 {found[:12]}..., the manifest says {expected[:12]}...); copy or compile the bundle again",
                    file=file, found=found, expected=expected,
                )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bundle(Folder):
    """A bundle with a plan and kernels. Weights are read when asked for."""

    manifest: Manifest

    def hashes(self) -> list[tuple[str, str]]:
        kernels = [(entry.file, entry.sha256) for entry in self.manifest.kernels.values()]
        return kernels + [(entry.file, entry.sha256) for entry in (*self.manifest.shards, *self.manifest.files)]

    def kernel_file(self, name: str) -> bytes:
        """A file with kernels, its hash compared. Raises BundleError."""
        path = self.file(name)
        expected = next(kernel.sha256 for kernel in self.manifest.kernels.values() if kernel.file == name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BundleError(
                f"{path}: cannot be read: {reason_of(error)}; copy or compile the bundle again", file=name
            ) from error
        if hashlib.sha256(data).hexdigest() != expected:
            raise BundleError(f"{path}: is not the file of the manifest; copy or compile the bundle again", file=name)
        return data

    def plane(self, weight: str, plane: str, start: int = 0, stop: int | None = None) -> Array:
        """Rows [start, stop) of one plane of a weight, in its stored dtype, whatever their layout."""
        whole = self.manifest.weights[weight]
        entry = next(entry for entry in whole.planes if entry.name == plane)
        file = self.file(self.manifest.shards[entry.shard].file)
        stop = whole.shape[0] if stop is None else stop
        tile = rows_per_tile(whole.layout)
        first, last = start // tile, -(-stop // tile)
        size = math.prod(entry.shape[1:])
        offset = entry.offset + first * size * np.dtype(entry.dtype).itemsize
        stored = np.fromfile(file, entry.dtype, (last - first) * size, offset=offset).reshape(
            last - first, *entry.shape[1:]
        )
        return stored_rows(whole.layout, stored)[start - first * tile : stop - first * tile]

    def weight(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """Rows [start, stop) of a weight as the float32 that their stored form means: (N, K), or (N,) for a vector."""
        entry = self.manifest.weights[name]
        planes = {plane.name: self.plane(name, plane.name, start, stop) for plane in entry.planes}
        if entry.quantization is None:
            return planes["w"]
        return quant.by_name(entry.quantization).unpack(planes, entry.shape[1])


@dataclass(frozen=True, slots=True)
class ExportBundle(Folder):
    """A bundle in a framework's own form."""

    manifest: ExportManifest


def open_bundle(path: Path) -> Bundle:
    """A bundle with a plan: its manifest, the presence and sizes of its shards. Raises BundleError, for an export too."""
    bundle = open_any(path)
    if isinstance(bundle, ExportBundle):
        raise BundleError(
            f"{path}: is an {bundle.manifest.target} bundle, without a plan; compile one with --target webgpu, cpu or cuda"
        )
    return bundle


def open_any(path: Path, trust: Sequence[TrustedKey] = ()) -> Bundle | ExportBundle:
    """Read and check a bundle's manifest and the presence and sizes of its large files. Raises BundleError.

    ``trust``: one of these keys must have signed the manifest, which is checked before anything in it is read; none takes any bundle.
    """
    file = path / MANIFEST_FILE
    if not _exists(file):
        if not _exists(path):
            advice = did_you_mean_folder(path) or f"; make it with 'nearfar compile MODEL -o {path}'"
            raise BundleError(f"{path}: does not exist{advice}")
        if (path / "config.json").is_file():
            raise BundleError(
                f"{path}: is a checkpoint, not a bundle; make one of it with 'nearfar compile {path} -o BUNDLE'"
            )
        raise BundleError(
            f"{path}: is not a bundle (no {MANIFEST_FILE}); make one with 'nearfar compile MODEL -o {path}'"
        )
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BundleError(f"{file}: cannot be read: {reason_of(error)}; compile the bundle again") from error
    if trust:
        verify_signature(path, data, trust)
    manifest = parse_manifest(data, file)
    bundle: Bundle | ExportBundle = (
        Bundle(path, manifest) if isinstance(manifest, Manifest) else ExportBundle(path, manifest)
    )
    for entry in bundle.manifest.files if isinstance(bundle, ExportBundle) else bundle.manifest.shards:
        require_size(path, entry)
    return bundle


def _exists(path: Path) -> bool:
    """False for a path that the system refuses, such as one with a NUL byte or a name that is too long."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def require_size(folder: Path, entry: FileEntry) -> None:
    """Raises BundleError."""
    path = file_in(folder, entry.file)
    size = path.stat().st_size if path.is_file() else None
    if size != entry.size:
        found = "is missing" if size is None else f"has {size:,} bytes, the manifest says {entry.size:,}"
        raise BundleError(f"{path}: {found}; copy or compile the bundle again", file=entry.file)


def file_entry(folder: Path, file: str) -> FileEntry:
    """The size and hash of a file that has been written."""
    path = folder / file
    return FileEntry(file=file, size=path.stat().st_size, sha256=sha256_of(path))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tokenizer_entry(files: TokenizerFiles) -> TokenizerEntry:
    return TokenizerEntry(
        file="tokenizer.json",
        chat_template=files.chat_template,
        bos_token=files.bos_token,
        eos_token=files.eos_token,
        pad_token=files.pad_token,
        unk_token=files.unk_token,
        add_bos_token=files.add_bos_token,
    )
