"""The keys to ignore (``--ignore-key``) of a command with several models: each ignores those that its file has."""

from __future__ import annotations

from collections.abc import Iterable

from ..runtime.errors import RequestError
from . import load
from .checkpoint import Checkpoint


class IgnoredKeys:
    """Keys that at least one model must have."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = tuple(dict.fromkeys(keys))
        self._missing: dict[str, RequestError] = {}
        self._found: set[str] = set()

    def load(self, model: str) -> Checkpoint:
        """Raises as `formats.load` does, but not for a key that the model does not have."""
        own = self.keys
        while True:
            try:
                checkpoint = load(model, own)
            except RequestError as error:
                own = self.without_missing(own, error)
            else:
                self.found(own)
                return checkpoint

    def without_missing(self, keys: tuple[str, ...], error: RequestError) -> tuple[str, ...]:
        """The keys without the one that a model does not have according to the error. Raises any other error."""
        key = error.details.get("missing_key")
        if key not in keys:
            raise error
        self._missing.setdefault(str(key), error)
        return tuple(each for each in keys if each != key)

    def found(self, keys: Iterable[str]) -> None:
        self._found.update(keys)

    def require_found(self) -> None:
        """Raises RequestError for a key that no model has."""
        for key in self.keys:
            if key not in self._found:
                raise self._missing.get(key) or RequestError(
                    f"--ignore-key {key}: is for models, and all of these are bundles; remove the option"
                )
