"""nearfar rm: remove models from the store."""

from __future__ import annotations

from ..store.names import StoreName
from ..store.store import Store
from .options import Rm
from .output import megabytes, print_json


def run(options: Rm) -> None:
    """Raises UnknownModel before anything is removed."""
    store = Store.of_user()
    names = [each for each in options.models if not store.has(each)]
    for name in names:
        store.get(name)
    # "demo" and "demo:latest" are one model.
    each_once = {StoreName.parse(name).file: name for name in options.models}
    freed = {name: store.remove(name) for name in each_once.values()}
    if options.json:
        print_json({"removed": freed})
        return
    for name, size in freed.items():
        print(f"removed {name}  {megabytes(size)} freed")
