"""nearfar rm: remove models from the store."""

from __future__ import annotations

from ..runtime.errors import CheckpointError
from ..store.kept import Kept, kept_of
from ..store.model import StoredModel
from ..store.names import StoreName
from ..store.store import Store
from .options import Rm
from .output import megabytes, print_json


def run(options: Rm) -> None:
    """Raises UnknownModel before anything is removed."""
    store = Store.of_user()
    # "demo" and "demo:latest" are one model.
    each_once = {StoreName.parse(name).file: name for name in options.models}
    models = {name: _record(store, name) for name in each_once.values()}
    freed = {name: store.remove(name) for name in models}
    left = store.models()
    kept = {
        name: found
        for name, model in models.items()
        if model is not None and (found := kept_of(model, left, store.blobs)) is not None
    }
    if options.json:
        print_json({"removed": freed, "kept": {name: _json(each) for name, each in kept.items()}})
        return
    for name, size in freed.items():
        print(f"removed {name}  {megabytes(size)} freed")
        if name in kept:
            print(f"  {_line(kept[name])}")


def _record(store: Store, name: str) -> StoredModel | None:
    """None for a damaged one, which can be removed, too. Raises UnknownModel."""
    try:
        return store.get(name)
    except CheckpointError:
        return None


def _line(kept: Kept) -> str:
    if kept.files is None:
        return f"its files ({megabytes(kept.size_bytes)}) stay, because {kept.why}"
    files = "1 of its files" if kept.files == 1 else f"{kept.files} of its files"
    return f"{files} ({megabytes(kept.size_bytes)}) {'stays' if kept.files == 1 else 'stay'}, because {kept.why}"


def _json(kept: Kept) -> dict[str, object]:
    return {"files": kept.files, "bytes": kept.size_bytes, "used_by": list(kept.used_by), "reason": kept.why}
