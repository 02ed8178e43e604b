"""Memory in pages of 2 MB: with pages of 4 kB, a CPU that streams through weights spends a tenth of its time on address
lookups.

numpy requests huge pages from Linux, ONNX Runtime does not. So the memory that a call allocates is moved into huge
pages afterwards, as far as they are available. Only Linux supports this, from 6.1 on; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAPS = Path("/proc/self/maps")
HUGE_PAGE = 2 << 20
# From linux/mman.h; the module mmap does not define it.
MADV_COLLAPSE = 25

# From its first byte to the one after its last.
Region = tuple[int, int]


@contextmanager
def huge_pages() -> Iterator[None]:
    """Move memory that is allocated in this context into huge pages."""
    if not sys.platform.startswith("linux"):
        yield
        return
    before = anonymous_regions(MAPS.read_text())
    yield
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, stop in new_pages(before, anonymous_regions(MAPS.read_text())):
        # One at a time, because an empty page is an error that ends the call. A failed call changes nothing.
        for page in range(start, stop, HUGE_PAGE):
            madvise(page, HUGE_PAGE, MADV_COLLAPSE)


def anonymous_regions(maps: str) -> list[Region]:
    """The writable regions without a file in the text of /proc/self/maps, in order."""
    lines = [line.split() for line in maps.splitlines()]
    spans = [fields[0].split("-") for fields in lines if fields[1] == "rw-p" and fields[5:] in ([], ["[heap]"])]
    return [(int(start, 16), int(stop, 16)) for start, stop in spans]


def new_pages(before: list[Region], after: list[Region]) -> list[Region]:
    """Complete huge pages in regions of ``after`` that no region of ``before`` touches."""
    found = []
    for start, stop in after:
        old = [region for region in before if region[0] < stop and start < region[1]]
        cuts = [start, *(bound for region in old for bound in region), stop]
        for left, right in zip(cuts[::2], cuts[1::2], strict=True):
            first, last = -(-left // HUGE_PAGE) * HUGE_PAGE, right // HUGE_PAGE * HUGE_PAGE
            if first < last:
                found.append((first, last))
    return found
