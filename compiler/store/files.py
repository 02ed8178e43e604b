"""The files of stored models, in one folder for each set of files, and as blobs that other models share."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from ..bundle.file_name import is_plain_name
from ..bundle.folder import sha256_of
from ..bundle.new_folder import discard_partial, rename_durably, reported
from ..runtime.errors import CheckpointError, reason_of
from .blobs import Blobs, is_plain_file
from .model import Files, StoredFile

# Digits of a hash in the name of a folder.
DIGEST_DIGITS = 24
CHUNK_BYTES = 4 << 20
_INCOMING = ".incoming-"


@dataclass(frozen=True, slots=True)
class FileStore:
    """``folder`` has a folder for each `Files`."""

    folder: Path
    blobs: Blobs

    def path(self, files: Files) -> Path:
        """The folder, or the file in it that is the model.

        Raises CheckpointError if one of the files is missing, is a link, or has another size than the record says.
        """
        folder = self.folder / files.folder
        for name, entry in files.files.items():
            path = folder / name
            if not is_plain_file(path) or path.resolve() != self.folder.resolve() / files.folder / name:
                raise damaged(path, "is missing or a link")
            if (size := path.stat().st_size) != entry.size:
                raise damaged(path, f"has {size:,} bytes instead of {entry.size:,}")
        return folder if files.file is None else folder / files.file

    def verify(self, files: Files) -> None:
        """Compare the hash of each file with the record's. Raises CheckpointError."""
        self.path(files)
        for name, entry in files.files.items():
            if sha256_of(self.folder / files.folder / name) != entry.sha256:
                raise damaged(self.folder / files.folder / name, "has other bytes than the record says")

    def copy(
        self,
        sources: Mapping[str, Path],
        name: str,
        *,
        file: str | None = None,
        move: bool = False,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> Files:
        """Store files under their names in a folder of this ``name``, both plain. ``move``: they are the store's own
        downloads. ``progress`` is called with the bytes that are copied and all bytes. Raises CheckpointError for
        another name of a file, and OutputError.
        """
        for each in sources:
            if not is_plain_name(each):
                raise CheckpointError(
                    f"{sources[each]}: a stored file's name consists of letters, digits, '_', '-' and '.'; rename it"
                )
        done, total = 0, sum(source.stat().st_size for source in sources.values() if source.is_file())

        def copied(size: int) -> None:
            nonlocal done
            done += size
            progress(done, max(done, total))

        with self._incoming() as incoming:
            found: dict[str, StoredFile] = {}
            for each, source in sources.items():
                target = incoming / each
                target.parent.mkdir(parents=True, exist_ok=True)
                digest = sha256_of(source) if move else _copied(source, target, copied)
                if move:
                    source.replace(target)
                found[each] = StoredFile(sha256=digest, size=target.stat().st_size)
                self.blobs.add(target, digest)
            files = Files(folder=f"{_digest_of(found)}/{name}", files=found, file=file)
            self._publish(incoming, files)
        return files

    def listed(self, folder: str, file: str | None = None) -> Files:
        """The record of a folder that was written here, whose blobs others share from now on."""
        found: dict[str, StoredFile] = {}
        root = self.folder / folder
        for path in sorted(root.rglob("*")):
            if is_plain_file(path):
                digest = sha256_of(path)
                found[path.relative_to(root).as_posix()] = StoredFile(sha256=digest, size=path.stat().st_size)
                self.blobs.add(path, digest)
        return Files(folder=folder, files=found, file=file)

    def remove_others(self, used: Collection[str]) -> None:
        """Remove the folders that no model uses, and what broken downloads and killed processes left, unless another
        process writes it.
        """
        for path in self.folder.glob(f"{_INCOMING}*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob("[!.]*/*"):
            if path.name.startswith(".") and path.name.endswith(".partial"):
                discard_partial(path.with_name(path.name[1:].removesuffix(".partial")))
            elif path.relative_to(self.folder).as_posix() not in used:
                shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                path.parent.rmdir()  # Unless others are in it.

    def _publish(self, incoming: Path, files: Files) -> None:
        """Move files to their folder. If it has them already, that folder stays: another process may read it."""
        final = self.folder / files.folder
        final.parent.mkdir(exist_ok=True)
        if self._has(files):
            return
        shutil.rmtree(final, ignore_errors=True)
        try:
            rename_durably(incoming, final)
        except OSError:
            # Another process may have stored the same files meanwhile.
            if not self._has(files):
                raise

    def _has(self, files: Files) -> bool:
        """Whether all files are stored and undamaged."""
        try:
            self.verify(files)
        except CheckpointError:
            return False
        return True

    @contextmanager
    def _incoming(self) -> Iterator[Path]:
        with reported(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            incoming = Path(mkdtemp(prefix=_INCOMING, dir=self.folder))
            try:
                yield incoming
            finally:
                shutil.rmtree(incoming, ignore_errors=True)


def damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: {what}; pull or create the model again", file=path.name)


def _digest_of(found: Mapping[str, StoredFile]) -> str:
    listed = "".join(f"{name} {each.sha256}\n" for name, each in sorted(found.items()))
    return hashlib.sha256(listed.encode()).hexdigest()[:DIGEST_DIGITS]


def _copied(source: Path, target: Path, copied: Callable[[int], None]) -> str:
    """Copy a file. Returns the SHA-256 of the bytes that were copied. ``copied`` receives the size of each part."""
    digest = hashlib.sha256()
    try:
        reading = source.open("rb")
    except OSError as error:
        raise CheckpointError(f"{source}: cannot be read: {reason_of(error)}") from error
    with reading, target.open("xb") as writing:
        while data := reading.read(CHUNK_BYTES):
            digest.update(data)
            writing.write(data)
            copied(len(data))
        writing.flush()
        os.fsync(writing.fileno())
    return digest.hexdigest()
