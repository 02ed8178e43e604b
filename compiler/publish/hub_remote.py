"""A repository on the Hugging Face Hub, by its own client. A site is one commit, so it appears at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..runtime.errors import OutputError
from .remote import SiteFile


class HubRemote:
    """``repository``: OWNER/NAME, a model repository, which is created with the first upload."""

    def __init__(self, repository: str) -> None:
        from huggingface_hub import HfApi

        self._repository, self._api = repository, HfApi()

    def __str__(self) -> str:
        return f"hf:{self._repository}"

    @property
    def address(self) -> str:
        return f"{self._api.endpoint}/{self._repository}/resolve/main/"

    def read(self, name: str) -> bytes | None:
        from huggingface_hub import hf_hub_download

        with self._reported():
            if name not in self._there():
                return None
            with open(hf_hub_download(self._repository, name), "rb") as file:
                return file.read()

    def lacks(self, files: Sequence[SiteFile]) -> list[SiteFile]:
        with self._reported():
            there = self._there()
        return [file for file in files if not is_same(file, there.get(file.name))]

    def upload(self, files: Sequence[SiteFile]) -> None:
        from huggingface_hub import CommitOperationAdd

        operations = [CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=str(file.path)) for file in files]
        with self._reported():
            self._api.create_repo(self._repository, exist_ok=True)
            self._api.create_commit(
                self._repository, operations, commit_message=f"Publish {len(files)} files with nearfar"
            )

    def _there(self) -> dict[str, Any]:
        """What the hub says of each file."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            info = self._api.model_info(self._repository, files_metadata=True)
        except RepositoryNotFoundError:
            return {}
        return {each.rfilename: each for each in info.siblings or []}

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # The client raises its own errors, those of its HTTP library, and OSError.
            summary = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
            raise OutputError(
                f"{self}: {summary}; log in with 'hf auth login' and a token that may write, and check the name and "
                "the network"
            ) from error


def is_same(file: SiteFile, there: Any) -> bool:
    """Whether the hub's file has the same bytes: by its SHA-256 if it is a large file (LFS), by git's id otherwise."""
    if there is None or there.size != file.size:
        return False
    return bool(file.sha256 == there.lfs.sha256 if there.lfs is not None else file.git_id == there.blob_id)
