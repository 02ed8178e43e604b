"""nearfar rm: remove models from the store."""

from __future__ import annotations

from ..store.store import Store
from .options import Rm
from .output import megabytes, print_json


def run(options: Rm) -> None:
    """Raises UnknownModel before anything is removed."""
    store = Store.of_user()
    names = [each for each in options.models if not store.has(each)]
    for name in names:
        store.get(name)
    freed = {name: store.remove(name) for name in dict.fromkeys(options.models)}
    if options.json:
        print_json({"removed": freed})
        return
    for name, size in freed.items():
        print(f"removed {name}  {megabytes(size)} freed")
