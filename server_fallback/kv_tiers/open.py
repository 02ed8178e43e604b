"""Opens the tiers of a model as the options ask for them."""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.compiler.store.place import cache_folder

from .chain import model_root
from .disk_tier import DiskTier
from .host_tier import HostTier
from .options import KvTierOptions
from .sealed import open_seal
from .tiers import Tiers, UnitKind


def open_tiers(
    options: KvTierOptions, bundle: str, activation: str, kinds: Sequence[UnitKind], page_size: int
) -> Tiers | None:
    """None if the options ask for none. ``bundle`` is the bundle's id. Raises RequestError for a key, ToolError without
    the library of ciphers, and OutputError for a folder that cannot be written.
    """
    options.require_consistent()
    if not options.any:
        return None
    root = model_root(bundle, activation, page_size)
    host = None if options.host_memory_bytes is None else HostTier(options.host_memory_bytes)
    disk: DiskTier | None = None
    if options.disk_bytes is not None:
        folder = options.folder or cache_folder() / "kv"
        disk = DiskTier(folder.expanduser(), options.disk_bytes, open_seal(options.key_file), root.hex())
    return Tiers(host, disk, root, kinds, page_size)
