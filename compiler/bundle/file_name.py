"""Checks the names of a bundle's files: they are plain, relative, and inside the folder.

A manifest may be untrusted, so its file names must not lead out of the bundle, whether by "..", by an absolute path or
by a link. The same names are valid in TypeScript, which uses them in addresses; `tests/conformance/file_names.json`
lists cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..runtime.errors import BundleError, CheckpointError

# Parts consist of letters, digits, "_", "-" and ".", and do not start with "." or "-". This excludes "..", schemes,
# drives and percent codes.
PLAIN_NAME = re.compile(r"(?=.{1,255}$)\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)


def is_plain_name(name: str) -> bool:
    """Whether a manifest may use this name for a file."""
    return PLAIN_NAME.fullmatch(name) is not None


def require_plain_name(name: str) -> str:
    if not is_plain_name(name):
        raise ValueError(f"{name[:80]!r} is not a plain name of a file in the folder")
    return name


def file_in(folder: Path, name: str) -> Path:
    """The path of a file that a manifest names. The file need not exist.

    Raises BundleError for a name that is not plain, and for a link that `leads_out`.
    """
    if not is_plain_name(name):
        raise BundleError(
            f"{folder}: the manifest lists the file {name!r}; a name must be relative, inside the folder, "
            "and consist of letters, digits, '_', '-' and '.'; compile the bundle again",
            file=name,
        )  # fmt: skip
    path = folder / name
    if leads_out(path, folder):
        raise BundleError(
            f"{path}: is a link to {path.resolve()}, outside of the bundle; replace it with a copy of the file",
            file=name,
        )
    return path


def leads_out(path: Path, folder: Path) -> bool:
    """Whether a path in the folder is, or goes through, a link to something outside of it.

    Hugging Face's cache stores each file once, in "blobs" beside "snapshots", and a snapshot's files are links to it.
    huggingface_hub makes these links itself, so they do not count.
    """
    target, root = path.resolve(), folder.resolve()
    return not target.is_relative_to(root) and target.parent != _blobs_of(root)


def require_inside(folder: Path, names: Iterable[str]) -> None:
    """Raises CheckpointError for a file of a checkpoint's folder that `leads_out`: who wrote the folder could make the
    contents of any file of this machine part of a model.
    """
    for name in names:
        path = folder / name
        if leads_out(path, folder):
            raise CheckpointError(
                f"{path}: is a link to {path.resolve()}, outside of the folder; if you trust it, replace it with a "
                "copy of the file",
                file=str(path),
            )


def _blobs_of(folder: Path) -> Path | None:
    """The folder with the files of a snapshot in Hugging Face's cache; None if ``folder`` is not in a snapshot.

    The folder of a snapshot is models--OWNER--NAME/snapshots/REVISION.
    """
    for snapshot in (folder, *folder.parents):
        repository = snapshot.parent.parent
        if snapshot.parent.name == "snapshots" and repository.name.startswith("models--"):
            return repository / "blobs"
    return None
