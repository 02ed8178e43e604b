"""The pool of KV pages. A page is free, or has users: the sequences that hold it, and the prefix cache."""

from __future__ import annotations


class PagePool:
    """``size`` pages, all free at first. ``users`` says how many users each page has, including the prefix cache; only
    the pool changes it. ``idle`` counts the pages that only the prefix cache uses.
    """

    __slots__ = ("_cached", "_free", "idle", "size", "users")

    def __init__(self, size: int) -> None:
        self.size = size
        self.idle = 0
        self.users = [0] * size
        self._cached = bytearray(size)
        # A stack: the page freed last is allocated first.
        self._free = list(range(size - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many pages have no user."""
        return len(self._free)

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

    def release(self, page: int) -> int:
        """Remove a user; the page is free when it was the last one. Returns how many are left."""
        users = self.users[page] - 1
        assert users >= 0, f"page {page} has no user"
        self.users[page] = users
        if users == 0:
            self._free.append(page)
        elif users == 1 and self._cached[page]:
            self.idle += 1
        return users

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
