"""Only memory that is allocated meanwhile moves into huge pages, and it keeps its contents."""

from __future__ import annotations

import mmap

import numpy as np

from nearfar.targets.onnx.huge_pages import HUGE_PAGE, anonymous_regions, huge_pages, new_pages

MAPS = """55a000000000-55a000800000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
7f0000800000-7f0000900000 r-xp 00000000 fe:00 123                        /usr/lib/libc.so.6
7f0000900000-7f0000a00000 rw-p 00000000 fe:00 123                        /usr/lib/libc.so.6
7f0000a00000-7f0000b00000 ---p 00000000 00:00 0
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
"""


def test_memory_of_programs_stacks_and_guards_is_left_alone() -> None:
    assert anonymous_regions(MAPS) == [(0x55A000000000, 0x55A000800000), (0x7F0000000000, 0x7F0000800000)]


def test_pages_are_complete_and_new() -> None:
    page = HUGE_PAGE
    # A region that grew at both ends, an unchanged one, a new one that is not aligned, and one that is too small.
    before = [(10 * page, 11 * page + 1), (20 * page, 22 * page)]
    after = [
        (8 * page - 1, 14 * page),
        (20 * page, 22 * page),
        (30 * page + 1, 33 * page - 1),
        (40 * page + 1, 41 * page),
    ]
    assert new_pages(before, after) == [(8 * page, 10 * page), (12 * page, 14 * page), (31 * page, 32 * page)]


def test_memory_that_moves_to_huge_pages_keeps_its_contents() -> None:
    with huge_pages():
        memory = mmap.mmap(-1, 4 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        values = np.frombuffer(memory, np.uint32)
        # The second half is not written yet.
        values[: len(values) // 2] = np.arange(len(values) // 2)
    assert np.array_equal(values[: len(values) // 2], np.arange(len(values) // 2))
    assert not values[len(values) // 2 :].any()
