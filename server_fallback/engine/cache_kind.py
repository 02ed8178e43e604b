"""The interface of a cache kind: one kind of memory that a model keeps of each sequence from step to step.

Scheduler and prefix cache have a list of kinds and treat them alike. `Pages` is the kind of keys and values, of layers
with or without a window.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol

Key = tuple[int, ...]
# (source, destination) pairs.
Copies = list[tuple[int, int]]


class PageTable:
    """The pages of one sequence, in the order of the positions they hold. The first ``dead`` were given back because
    they lie behind the window: their entries are 0, and are never read.
    """

    __slots__ = ("dead", "pages")

    def __init__(self) -> None:
        self.pages = array("i")
        self.dead = 0

    @property
    def live(self) -> Items[int]:
        """The pages that the sequence holds."""
        return self.pages[self.dead :]


class Holder(Protocol):
    """A sequence, or its draft: ``tables`` are what it holds of each kind."""

    tables: list[PageTable]


class Node:
    """The tokens of a page in the prefix cache, which follow those of ``parent``, and by kind the snapshot at their
    end; None without it. ``siblings`` all follow ``parent``.
    """

    __slots__ = ("children", "key", "parent", "siblings", "snapshots")

    def __init__(self, key: Key, parent: Node | None, siblings: dict[Key, Node], num_kinds: int) -> None:
        self.key, self.parent, self.siblings = key, parent, siblings
        self.children: dict[Key, Node] = {}
        self.snapshots: list[int | None] = [None] * num_kinds
        siblings[key] = self

    @property
    def is_removed(self) -> bool:
        return self.siblings.get(self.key) is not self


class Prefix(NamedTuple):
    """The first ``length`` tokens of a sequence are computed already. They are in the nodes of ``path``, or if there is
    a ``leader``, in what it holds.
    """

    length: int
    path: list[Node]
    leader: Holder | None = None


class CacheKind(Protocol):
    """A unit is a page, or a copy of a state. ``length`` counts the first tokens of a holder. ``copies``: units to copy
    on the device before the next step. ``idle``: the nodes by their snapshot, if only the prefix cache uses that; the
    one not used for longest is first. ``is_chain``: a prefix needs the snapshots of all its nodes; otherwise only the
    last ones are read.
    """

    size: int
    copies: Copies
    idle: OrderedDict[int, Node]
    is_chain: bool

    @property
    def free(self) -> int:
        """How many units have no user."""

    def unread(self, length: int) -> int:
        """How many nodes at the start of a prefix are not read by a sequence that continues after ``length`` tokens."""

    def growth(self, holder: Holder, length: int) -> int:
        """How many more units a holder can need for ``length`` tokens."""

    def admission(self, prefix: Prefix, length: int) -> int:
        """The same for a sequence that starts from a prefix, with the units that must not be evicted for it."""

    def missing(self, holder: Holder, start: int, length: int) -> int:
        """How many units `reserve` allocates."""

    def reserve(self, holder: Holder, start: int, length: int) -> None:
        """Let a holder write its positions from ``start`` up to ``length``. The units must be free."""

    def is_writable(self, holder: Holder, start: int, known: int) -> bool:
        """Whether neither `trim` nor `reserve` of the next position would change anything."""

    def trim(self, holder: Holder, length: int) -> None:
        """Release what no position from ``length`` on reads."""

    def can_fork(self, holder: Holder, length: int) -> bool: ...

    def fork(self, holder: Holder, other: Holder, length: int) -> None:
        """Let ``other``, which holds nothing, continue after the first tokens of a holder, which goes on too."""

    def rewind(self, holder: Holder, length: int) -> int:
        """Take back what follows ``length`` tokens. Returns how many of these need not be computed again."""

    def drop(self, holder: Holder) -> None:
        """Release everything."""

    def snapshot(self, holder: Holder, node: Node, index: int) -> None:
        """Retain the holder's page ``index`` in a node. If the node has a snapshot already, the holder uses that."""

    def restore(self, holder: Holder, prefix: Prefix) -> None:
        """Let a holder of fewer tokens continue after a prefix in the cache."""

    def node_of(self, holder: Holder, index: int) -> Node | None:
        """The node that shares the holder's page ``index``."""

    def forget(self, node: Node) -> None:
        """Remove a node's snapshot, if it has one."""
