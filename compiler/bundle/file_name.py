"""Names of a bundle's files: plain, relative, and inside the folder.

A manifest may come from somebody else, so a name that it gives must not lead out of the bundle: not by "..", not by an absolute path, not
by a link. The same names are valid in TypeScript, where they become parts of addresses; `tests/conformance/file_names.json` lists cases.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import BundleError

# Parts of letters, digits, "_", "-" and ".", none of which starts with "." or "-". So there is no "..", scheme, drive or percent code.
PLAIN_NAME = re.compile(r"(?=.{1,255}$)\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)


def is_plain_name(name: str) -> bool:
    """Whether a manifest may name a file so."""
    return PLAIN_NAME.fullmatch(name) is not None


def file_in(folder: Path, name: str) -> Path:
    """The path of a file that a manifest names. The file need not exist.

    A link is followed if it stays inside the folder. Hugging Face's cache keeps each file once, in "blobs" beside "snapshots", and a
    snapshot's files are links to it. huggingface_hub makes these links itself, so they are followed too. Raises BundleError for a name that
    is not plain and for a link that leads anywhere else.
    """
    if not is_plain_name(name):
        raise BundleError(
            f"{folder}: the manifest names the file {name!r}; a name must be relative, inside the folder, of letters, digits, '_', '-' and "
            "'.' only; compile the bundle again",
            file=name,
        )  # fmt: skip
    path = folder / name
    found, root = path.resolve(), folder.resolve()
    if found.is_relative_to(root) or found.parent == blobs_of(root):
        return path
    raise BundleError(
        f"{path}: is a link to {found}, outside of the bundle; replace it with a copy of the file", file=name
    )


def blobs_of(folder: Path) -> Path | None:
    """Where the files of a snapshot in Hugging Face's cache lie: models--OWNER--NAME/snapshots/REVISION is such a snapshot, or holds it."""
    for snapshot in (folder, *folder.parents):
        repository = snapshot.parent.parent
        if snapshot.parent.name == "snapshots" and repository.name.startswith("models--"):
            return repository / "blobs"
    return None
