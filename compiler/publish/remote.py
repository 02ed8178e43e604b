"""Uploads a site to where it is served: a repository on the Hugging Face Hub, or a bucket with S3's API.

Only files that the remote does not have yet are uploaded, those that others name last: manifests after their files, the
catalog after everything. So what is there loads at every moment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1, sha256
from pathlib import Path
from typing import Protocol

from ..bundle.manifest import MANIFEST_FILE
from ..bundle.signature import SIGNATURE_FILE
from ..runtime.errors import RequestError
from .catalog import CATALOG_FILE

_HUB = re.compile(r"hf:([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)", re.ASCII)
_BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", re.ASCII)
CHUNK_BYTES = 1 << 22


# Not frozen, because its hashes are computed when a remote asks for them.
@dataclass
class SiteFile:
    """A file of a site, at ``name`` below its address."""

    name: str
    path: Path

    @cached_property
    def size(self) -> int:
        return self.path.stat().st_size

    @cached_property
    def sha256(self) -> str:
        return self._hex(sha256())

    @cached_property
    def git_id(self) -> str:
        """The id that git gives to these bytes (git hash-object)."""
        return self._hex(sha1(f"blob {self.size}\0".encode(), usedforsecurity=False))

    def _hex(self, digest: Digest) -> str:
        with self.path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class Remote(Protocol):
    """Its methods raise OutputError if the service refuses."""

    @property
    def address(self) -> str | None:
        """Where pages find the site; None if that is not known."""

    def read(self, name: str) -> bytes | None:
        """A file; None if it does not exist."""

    def lacks(self, files: Sequence[SiteFile]) -> list[SiteFile]:
        """The files that are not there with these bytes."""

    def upload(self, files: Sequence[SiteFile]) -> None:
        """In this order."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    files: int
    bytes: int
    kept_files: int
    kept_bytes: int


def upload_site(folder: Path, remote: Remote) -> Uploaded:
    """Raises OutputError."""
    files = site_files(folder)
    missing = remote.lacks(files)
    if missing:
        remote.upload(missing)
    size, missing_size = (sum(file.size for file in each) for each in (files, missing))
    return Uploaded(len(missing), missing_size, len(files) - len(missing), size - missing_size)


def site_files(folder: Path) -> list[SiteFile]:
    """All files of a site, in the order in which they may appear. Hidden files (.git, .env) are not the site's."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder) for path in paths]
    files = [
        SiteFile(name.as_posix(), path)
        for name, path in zip(names, paths, strict=True)
        if not any(part.startswith(".") for part in name.parts)
    ]
    return sorted(files, key=lambda file: order_of(file.path.name))


def order_of(name: str) -> int:
    """A signature belongs to the manifest that follows it: with the former one, a runtime refuses the bundle."""
    last = (SIGNATURE_FILE, MANIFEST_FILE, CATALOG_FILE)
    return last.index(name) + 1 if name in last else 0


def open_remote(place: str) -> Remote:
    """The remote of "hf:OWNER/NAME" or "s3://BUCKET/PREFIX". Raises RequestError, and ToolError without its client."""
    if (hub := _HUB.fullmatch(place)) is not None:
        from .hub_remote import HubRemote

        return HubRemote(hub[1])
    if (bucket := _BUCKET.fullmatch(place)) is not None:
        from .s3_remote import S3Remote

        return S3Remote(bucket[1], (bucket[2] or "").strip("/"))
    raise RequestError(f"--to {place}: is neither hf:OWNER/NAME nor s3://BUCKET/PREFIX")
