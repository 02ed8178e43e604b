"""KvTierOptions: what keeps pages and states that the device evicts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from nearfar.compiler.options import File, Flag, SizeBytes, options
from nearfar.compiler.runtime.errors import RequestError


@options
class KvTierOptions:
    host_memory_bytes: Annotated[SizeBytes | None, Flag(("--kv-host-memory",), key="kv_host_memory")] = None
    """memory of each model for pages that its device evicts, such as 8GB (default: none)"""
    disk_bytes: Annotated[SizeBytes | None, Flag(("--kv-disk",), key="kv_disk")] = None
    """disk space for pages, which all models and servers of this machine share and which a restart does not lose
    (default: none)"""
    folder: Annotated[Path | None, Flag(("--kv-folder",), metavar="FOLDER", key="kv_folder")] = None
    """the folder of --kv-disk (default: "kv" in nearfar's cache folder)"""
    key_file: Annotated[File | None, Flag(("--kv-key-file",), key="kv_key_file")] = None
    """encrypt the files of --kv-disk with the key in this file: 32 bytes, or 64 hexadecimal digits"""

    @property
    def any(self) -> bool:
        return self.host_memory_bytes is not None or self.disk_bytes is not None

    def require_consistent(self) -> None:
        """Raise RequestError for an option without the one that it is about."""
        if self.disk_bytes is not None:
            return
        for name, value in (("--kv-folder", self.folder), ("--kv-key-file", self.key_file)):
            if value is not None:
                raise RequestError(f"{name} is about --kv-disk, which is not given; add --kv-disk SIZE")
