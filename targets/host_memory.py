"""The memory of this machine."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
# The two versions of Linux control groups.
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def host_memory_bytes() -> int:
    """The machine's memory, or the limit of this process's container."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in CONTAINER_LIMITS:
        # The file contains "max" if there is no limit.
        with suppress(OSError, ValueError):
            sizes.append(int(file.read_text()))
    return min(sizes)


def available_bytes() -> int:
    """The memory that programs can allocate without swapping, at most that of this process's container; all of it if
    the system does not report it.
    """
    total = host_memory_bytes()
    with suppress(OSError):
        match = re.search(r"^MemAvailable: +(\d+) kB$", MEMINFO.read_text(), re.MULTILINE)
        if match is not None:
            return min(total, int(match[1]) * 1024)
    return total
