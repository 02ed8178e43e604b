"""The memory of a bundle's weights: copied into pages of 2 MB, or mapped from their files in pages of 4 kB.

With pages of 4 kB, a CPU that streams through weights spends a tenth of its time on address lookups. But the system
can drop mapped pages when it needs memory, and processes that run one bundle share them; copies have neither property.
So weights are copied by default only if they fill at most half of the available memory. Those of experts stay mapped:
a page of an expert is read from the file when a token first chooses the expert, and a mixture may be larger than the
memory.
"""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.bundle.entries import PlaneEntry
from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.runtime.errors import BundleError, DeviceError, RequestError

from ..host_memory import available_bytes

WEIGHTS_VARIABLE = "NEARFAR_WEIGHTS"
COPIED, MAPPED = "copied", "mapped"
# The share of the available memory that copies may fill.
COPIED_SHARE = 0.5
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_PAGE = 2 << 20
# Planes start at a cache line, and vectors may extend beyond the last element of a plane.
ALIGNMENT = 64
READING_THREADS = 2

Planes = Mapping[str, npt.NDArray[Any]]


def weight_planes(bundle: Bundle) -> Planes:
    """The bytes of every plane, by the names of the weight and the plane with a dot between them. Raises RequestError
    for a wrong NEARFAR_WEIGHTS.
    """
    manifest = bundle.manifest
    shards = [np.memmap(bundle.file(shard.file), np.uint8, "r") for shard in manifest.shards]
    mapped = {
        f"{name}.{plane.name}": shards[plane.shard][plane.offset : plane.offset + plane.size]
        for name, weight in manifest.weights.items()
        for plane in weight.planes
    }
    wanted = requested_memory()
    streamed = streamed_planes(manifest, experts=wanted == COPIED)
    size = sum(aligned_size(plane.size) for plane in streamed.values())
    return {**mapped, **copied_planes(bundle, streamed, size)} if copies(size, wanted) else mapped


def requested_memory() -> str:
    """COPIED or MAPPED as NEARFAR_WEIGHTS requests; "" if it is not set. Raises RequestError for another value."""
    wanted = os.environ.get(WEIGHTS_VARIABLE, "")
    if wanted not in ("", COPIED, MAPPED):
        raise RequestError(f"{WEIGHTS_VARIABLE}={wanted}: must be {COPIED} or {MAPPED}")
    return wanted


def copies(size: int, wanted: str) -> bool:
    """Whether ``size`` bytes of weights are copied: as requested, or if there are huge pages and enough memory."""
    if wanted:
        return wanted == COPIED
    return has_huge_pages() and size <= COPIED_SHARE * available_bytes()


def has_huge_pages() -> bool:
    """Whether the system gives huge pages to programs that request them."""
    return HUGE_PAGES.is_file() and "[never]" not in HUGE_PAGES.read_text()


def streamed_planes(manifest: Manifest, *, experts: bool) -> dict[str, PlaneEntry]:
    """The planes that a batch reads completely, and those of ``experts``, of which it reads some. Of a table that only
    embeds tokens, it reads a few rows.
    """
    read = {
        name
        for plan in manifest.plans.values()
        for step in plan.steps
        if step.op != "embed"
        for name in step.inputs.values()
    }
    read -= set() if experts else manifest.expert_weights
    return {
        f"{name}.{plane.name}": plane
        for name, weight in manifest.weights.items()
        if name in read
        for plane in weight.planes
    }


def copied_planes(bundle: Bundle, planes: Mapping[str, PlaneEntry], size: int) -> dict[str, npt.NDArray[Any]]:
    """Read planes into one region of huge pages. ``size`` is the sum of their `aligned_size`. Raises BundleError for a
    file that is too short, and DeviceError without enough memory.
    """
    try:
        # Shared memory, the default of the module mmap, seldom gets huge pages.
        region = mmap.mmap(-1, -(-(size + ALIGNMENT) // HUGE_PAGE) * HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise DeviceError(
            f"{bundle.path}: no memory for {size / 1e6:,.0f} MB of weights; set {WEIGHTS_VARIABLE}={MAPPED}"
        ) from error
    region.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(region, np.uint8)
    copies, start = {}, 0
    of_shard: dict[int, list[tuple[int, npt.NDArray[Any]]]] = defaultdict(list)
    for name, plane in planes.items():
        copies[name] = memory[start : start + plane.size]
        of_shard[plane.shard].append((plane.offset, copies[name]))
        start += aligned_size(plane.size)
    files = [(bundle.file(bundle.manifest.shards[shard].file), parts) for shard, parts in of_shard.items()]
    with ThreadPoolExecutor(READING_THREADS) as pool:
        list(pool.map(lambda each: read_parts(*each), files))
    return copies


def read_parts(file: Path, parts: Iterable[tuple[int, npt.NDArray[Any]]]) -> None:
    """Fill arrays with the bytes of a file from an offset on."""
    with file.open("rb") as opened:
        for offset, part in parts:
            opened.seek(offset)
            if opened.readinto(part.data) != part.nbytes:
                raise BundleError(f"{file}: is shorter than the manifest states; copy or compile the bundle again")


def aligned_size(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
