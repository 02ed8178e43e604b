"""Bundle: a folder of data that every runtime of its target can load. This file reads it; `compile.py` writes it.

A bundle with our own plans:

manifest.json            everything that a runtime must know; see `manifest.py`
kernels/<name>.<suffix>  one readable source file per kernel, or one shared library for CPUs
weights/<number>.bin     shards: planes of packed weights, each at an offset that is a multiple of 256 bytes
tokenizer.json           the file of the checkpoint
probe.json               what measures whether the model will run on a device, before the download; see `probe.py`

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
from ..ir.ops import Array
from ..nearest import did_you_mean_folder
from ..quant.base import FloatArray
from ..quant.layout import rows_per_tile, stored_rows
from ..runtime.errors import BundleError, reason_of
from ..runtime.text.chat_template import ChatTemplate
from ..runtime.text.tokenizer_files import TokenizerFiles
from ..runtime.text.tool_formats import tool_format
from .check import parse_manifest
from .digest import text_sha256
from .entries import ChatTreeEntry, FileEntry, TokenizerEntry
from .file_name import file_in
from .manifest import MANIFEST_FILE, Description, ExportManifest, Manifest
from .signature import TrustedKey, verify_signature


@dataclass(frozen=True, slots=True)
class Folder:
    """A bundle on disk whose manifest has been checked."""

    path: Path
    manifest: Description

    def file(self, name: str) -> Path:
        """The path of a file that the manifest lists. Raises BundleError for a path that leads out of the folder."""
        return file_in(self.path, name)

    def hashes(self) -> list[tuple[str, str]]:
        """The path in the bundle and the SHA-256 of every file except the manifest."""
        return [(entry.file, entry.sha256) for entry in self.manifest.files]

    def tokenizer_files(self) -> TokenizerFiles:
        entry = self.manifest.tokenizer
        special = entry.model_dump(exclude={"file", "tools", "chat_tree"})
        return TokenizerFiles.at(self.file(entry.file), **special)

    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def verify(self) -> None:
        """Compare every file's hash with the manifest's. Raises BundleError for the first that differs."""
        for file, expected in self.hashes():
            path = self.file(file)
            if not path.is_file():
                raise BundleError(f"{path}: is missing; compile the bundle again", file=file)
            actual = sha256_of(path)
            if actual != expected:
                raise BundleError(
                    f"{path}: is corrupt (its SHA-256 is {actual[:12]}..., the manifest has {expected[:12]}...); "
                    "copy or compile the bundle again",
                    file=file, found=actual, expected=expected,
                )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bundle(Folder):
    """A bundle with plans and kernels. Weights are read on request."""

    manifest: Manifest

    def hashes(self) -> list[tuple[str, str]]:
        kernels = [(entry.file, entry.sha256) for entry in self.manifest.kernels.values()]
        return kernels + [(entry.file, entry.sha256) for entry in (*self.manifest.shards, *self.manifest.files)]

    def kernel_file(self, name: str) -> bytes:
        """The content of a file with kernels or their source. Raises BundleError if its hash is wrong or unknown."""
        path = self.file(name)
        expected = next((sha256 for file, sha256 in self.hashes() if file == name), None)
        if expected is None:
            raise BundleError(f"{path}: the manifest has no hash of it; compile the bundle again", file=name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BundleError(
                f"{path}: cannot be read: {reason_of(error)}; copy or compile the bundle again", file=name
            ) from error
        if hashlib.sha256(data).hexdigest() != expected:
            raise BundleError(f"{path}: does not match the manifest; copy or compile the bundle again", file=name)
        return data

    def plane(self, weight: str, plane: str, start: int = 0, stop: int | None = None) -> Array:
        """Rows [start, stop) of one plane of a weight, in its stored dtype, independent of the layout."""
        weight_entry = self.manifest.stored_weights[weight]
        entry = next(entry for entry in weight_entry.planes if entry.name == plane)
        file = self.file(self.manifest.shards[entry.shard].file)
        stop = weight_entry.shape[0] if stop is None else stop
        tile = rows_per_tile(weight_entry.layout)
        first, last = start // tile, -(-stop // tile)
        size = math.prod(entry.shape[1:])
        offset = entry.offset + first * size * np.dtype(entry.dtype).itemsize
        stored = np.fromfile(file, entry.dtype, (last - first) * size, offset=offset).reshape(
            last - first, *entry.shape[1:]
        )
        return stored_rows(weight_entry.layout, stored)[start - first * tile : stop - first * tile]

    def weight(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """Rows [start, stop) of a weight, unpacked to float32: (N, K), or (N,) for a vector."""
        entry = self.manifest.stored_weights[name]
        planes = {plane.name: self.plane(name, plane.name, start, stop) for plane in entry.planes}
        if entry.quantization is None:
            return planes["w"]
        return quant.form_by_name(entry.quantization).unpack(planes, entry.shape[1])


@dataclass(frozen=True, slots=True)
class ExportBundle(Folder):
    """A bundle in a framework's own format."""

    manifest: ExportManifest


def open_bundle(path: Path) -> Bundle:
    """Open a bundle with plans: check its manifest and its shards' sizes. Raises BundleError, also for an export."""
    bundle = open_any(path)
    if isinstance(bundle, ExportBundle):
        raise BundleError(
            f"{path}: is an {bundle.manifest.target} bundle, which has no plans; "
            "compile one with --target webgpu, cpu or cuda"
        )
    return bundle


def open_any(path: Path, trust: Sequence[TrustedKey] = ()) -> Bundle | ExportBundle:
    """Open any bundle: check its manifest and the sizes of its large files. Raises BundleError.

    ``trust``: one of these keys must have signed the manifest. The signature is checked before the manifest is parsed.
    Without keys, any bundle is accepted.
    """
    file = path / MANIFEST_FILE
    if not _exists(file):
        if not _exists(path):
            advice = did_you_mean_folder(path) or f"; create it with 'nearfar compile MODEL -o {path}'"
            # It may be a name in the store, which has several bundles of a model.
            named = (
                f"; of a model of the store, 'nearfar show {path}' prints the bundles" if path.name == str(path) else ""
            )
            raise BundleError(f"{path}: does not exist{advice}{named}")
        if (path / "config.json").is_file():
            raise BundleError(
                f"{path}: is a checkpoint, not a bundle; compile it with 'nearfar compile {path} -o BUNDLE'"
            )
        raise BundleError(
            f"{path}: is not a bundle (no {MANIFEST_FILE}); create one with 'nearfar compile MODEL -o {path}'"
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
    """Whether a path exists. False for a path that the system refuses, such as one with a NUL byte or a name that is
    too long.
    """
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def require_size(folder: Path, entry: FileEntry) -> None:
    """Raises BundleError if a file is missing or has another size than its entry."""
    path = file_in(folder, entry.file)
    size = path.stat().st_size if path.is_file() else None
    if size != entry.size:
        problem = "is missing" if size is None else f"has {size:,} bytes, the manifest says {entry.size:,}"
        raise BundleError(f"{path}: {problem}; copy or compile the bundle again", file=entry.file)


def file_entry(folder: Path, file: str) -> FileEntry:
    """The size and hash of a file that has been written."""
    path = folder / file
    return FileEntry(file=file, size=path.stat().st_size, sha256=sha256_of(path))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tokenizer_entry(files: TokenizerFiles) -> TokenizerEntry:
    """Raises CheckpointError if the chat template is not valid Jinja."""
    template = None if files.chat_template is None else ChatTemplate(files.chat_template, files.special_tokens)
    return TokenizerEntry(
        file="tokenizer.json",
        chat_template=files.chat_template,
        chat_tree=None if template is None else chat_tree_entry(template),
        bos_token=files.bos_token,
        eos_token=files.eos_token,
        pad_token=files.pad_token,
        unk_token=files.unk_token,
        add_bos_token=files.add_bos_token,
        tools=tool_format(files.chat_template),
    )


def chat_tree_entry(template: ChatTemplate) -> ChatTreeEntry | None:
    tree = template.tree()
    if tree.unsupported:
        return None
    return ChatTreeEntry(tree=tree.data, template_sha256=text_sha256(template.source), content=template.content_form)
