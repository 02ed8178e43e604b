"""The pool of KV pages: who uses which. A page is free, or has one or more users: sequences, and the prefix cache, which is one of them."""

from __future__ import annotations


class PagePool:
    """``size`` pages, all free at the start. ``idle`` counts those that nobody but the prefix cache uses."""

    __slots__ = ("_cached", "_free", "_users", "idle", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.idle = 0
        self._users = [0] * size
        self._cached = bytearray(size)
        # The last one freed is the first one taken again.
        self._free = list(range(size - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many pages nobody uses."""
        return len(self._free)

    def users(self, page: int) -> int:
        """How many use a page, the cache included."""
        return self._users[page]

    def take(self) -> int:
        """A free page, which then has one user. There must be one."""
        page = self._free.pop()
        self._users[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more user for a page that has one."""
        users = self._users[page]
        assert users > 0, f"page {page} has no user"
        self._users[page] = users + 1
        if users == 1 and self._cached[page]:
            self.idle -= 1

    def release(self, page: int) -> int:
        """One user less; without users the page is free. How many are left."""
        users = self._users[page] - 1
        assert users >= 0, f"page {page} has no user"
        self._users[page] = users
        if users == 0:
            self._free.append(page)
        elif users == 1 and self._cached[page]:
            self.idle += 1
        return users

    def keep(self, page: int) -> None:
        """The prefix cache becomes a user of a page that a sequence uses."""
        self.share(page)
        self._cached[page] = True

    def drop(self, page: int) -> None:
        """The prefix cache is a user no more."""
        self._cached[page] = False
        if self._users[page] == 1:
            self.idle -= 1
        self.release(page)
