"""nearfar prune: free the space of files that no model needs, and of bundles beyond a limit."""

from __future__ import annotations

from ..store.bundles import limit_bytes
from ..store.store import Store
from .options import Prune
from .output import megabytes, print_json


def run(options: Prune) -> None:
    """Raises RequestError for a limit that is not a size."""
    store = Store.of_user()
    freed = store.prune(options.max_size or limit_bytes())
    size = store.size_bytes()
    if options.json:
        print_json({"freed_bytes": freed, "size_bytes": size, "folder": str(store.folder)})
        return
    print(f"{megabytes(freed)} freed; {store.folder} has {megabytes(size)}")
