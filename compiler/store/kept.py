"""What stays of a model that was removed from the store, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..formats.hub import hub_model
from .blobs import Blobs, is_plain_file
from .model import Demo, Files, HubFiles, StoredModel

SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class Kept:
    """``files`` of the model's files, of ``size_bytes`` together, stay. ``files`` is None for all of them in the hub's
    cache. ``used_by`` are the models that use them, none if ``reason`` is another one.
    """

    files: int | None
    size_bytes: int
    used_by: tuple[str, ...] = ()
    reason: str = ""

    @property
    def why(self) -> str:
        if not self.used_by:
            return self.reason
        names = [*self.used_by[:SHOWN_NAMES]]
        if len(self.used_by) > SHOWN_NAMES:
            names.append(f"{len(self.used_by) - SHOWN_NAMES} more")
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"{listed} {'uses' if len(names) == 1 else 'use'} {'it' if self.files == 1 else 'them'}"


def kept_of(removed: StoredModel, others: Sequence[StoredModel], blobs: Blobs) -> Kept | None:
    """None if nothing stays. ``others`` are all models that the store has now."""
    source = removed.source
    if isinstance(source, Demo):
        return Kept(None, source.size_bytes, reason="they come with nearfar")
    if isinstance(source, HubFiles):
        used_by = _users_of_repository(source, others)
        if used_by or not source.fetched:
            return Kept(None, source.size_bytes, used_by, "they were in the hub's cache before")
    return _shared(removed, others, blobs)


def _users_of_repository(source: HubFiles, others: Sequence[StoredModel]) -> tuple[str, ...]:
    found = hub_model(source.model)
    own = None if found is None else found.repository
    hub = [
        (each.name, each.source, hub_model(each.source.model)) for each in others if isinstance(each.source, HubFiles)
    ]
    return tuple(
        name for name, other, model in hub if other == source or (model is not None and model.repository == own)
    )


def _shared(removed: StoredModel, others: Sequence[StoredModel], blobs: Blobs) -> Kept | None:
    """Files whose bytes other models have, too. On a file system without links, there are no blobs, and each model in
    another folder has files of its own.
    """
    kept, users = dict[str, int](), list[str]()
    own = {each.sha256: (part.folder, each.size) for part in _parts(removed) for each in part.files.values()}
    for other in others:
        for part in _parts(other):
            for each in part.files.values():
                folder, size = own.get(each.sha256, ("", 0))
                if folder and (folder == part.folder or is_plain_file(blobs.path(each.sha256))):
                    kept[each.sha256] = size
                    users.append(other.name)
    return Kept(len(kept), sum(kept.values()), tuple(dict.fromkeys(users))) if kept else None


def _parts(model: StoredModel) -> list[Files]:
    return [part for part in (model.source, model.adapter) if isinstance(part, Files)]
