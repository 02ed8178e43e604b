"""A page table: the pages of one sequence in one pool, in the order of the positions they hold."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from .page_pool import PagePool


class PageTable:
    """The first ``dead`` pages were given back because they lie behind the window: their entries are 0, and are never
    read.
    """

    __slots__ = ("dead", "pages", "pool")

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.pages = array("i")
        self.dead = 0

    @property
    def live(self) -> Sequence[int]:
        """The pages that the sequence holds."""
        return self.pages[self.dead :]

    def give_back(self, position: int) -> None:
        """Give back the pages that neither this position nor later ones read."""
        self._give_back(min(self.pool.dead_pages(position), len(self.pages)))

    def extend(self, pages: Sequence[int], dead: int) -> None:
        """Continue with the pages of a longer prefix, as another user of them; its first ``dead`` entries are given
        back.
        """
        held = len(self.pages)
        self._give_back(min(dead, held))
        self.dead = max(dead, self.dead)
        self.pages.extend(pages[held:])
        for page in pages[max(held, dead) :]:
            self.pool.share(page)

    def allocate(self, count: int) -> None:
        """Append new pages, which must be free in the pool."""
        self.pages.extend([self.pool.allocate() for _ in range(count)])

    def clear(self) -> None:
        """Release all pages."""
        for page in self.live:
            self.pool.release(page)
        del self.pages[:]
        self.dead = 0

    def _give_back(self, count: int) -> None:
        for index in range(self.dead, count):
            self.pool.release(self.pages[index])
            self.pages[index] = 0
        self.dead = max(count, self.dead)
