"""The pool of KV pages. A page is free, or has users: the sequences that hold it, and the prefix cache."""

from __future__ import annotations

from collections.abc import Callable

from nearfar.compiler.runtime.page_groups import PageGroup, dead_pages


class PagePool:
    """The pages of a group, all free at first. ``users`` is the number of users of each page, including the prefix
    cache; only the pool changes it. ``idle`` counts the pages that only the prefix cache uses; ``on_idle`` is called
    with a page that becomes idle.
    """

    __slots__ = ("_cached", "_free", "_page_size", "idle", "on_idle", "size", "users", "window")

    def __init__(self, group: PageGroup, page_size: int) -> None:
        self.size, self.window, self._page_size = group.pages, group.window, page_size
        self.idle = 0
        self.on_idle: Callable[[int], None] = lambda _: None
        self.users = [0] * self.size
        self._cached = bytearray(self.size)
        # A stack: the page freed last is allocated first.
        self._free = list(range(self.size - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many pages have no user."""
        return len(self._free)

    @property
    def available(self) -> int:
        """How many pages are free or can be evicted from the prefix cache."""
        return len(self._free) + self.idle

    def dead_pages(self, position: int) -> int:
        """The number of pages at the start of a sequence that neither this position nor later ones read."""
        return dead_pages(self.window, position, self._page_size)

    def allocate(self) -> int:
        """A free page, for one user. There must be one."""
        page = self._free.pop()
        self.users[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add a user to a page that has one."""
        users = self.users[page]
        assert users > 0, f"page {page} has no user"
        self.users[page] = users + 1
        if users == 1 and self._cached[page]:
            self.idle -= 1

    def release(self, page: int) -> None:
        """Remove a user; the page is free when it was the last one."""
        users = self.users[page] - 1
        assert users >= 0, f"page {page} has no user"
        self.users[page] = users
        if users == 0:
            self._free.append(page)
        elif users == 1 and self._cached[page]:
            self.idle += 1
            self.on_idle(page)

    def retain(self, page: int) -> None:
        """Add the prefix cache to the users of a page that a sequence holds."""
        self.share(page)
        self._cached[page] = True

    def drop(self, page: int) -> None:
        """Remove the prefix cache from the users of a page."""
        self._cached[page] = False
        if self.users[page] == 1:
            self.idle -= 1
        self.release(page)
