"""A cache kind: one kind of memory that a model keeps of each sequence from step to step.

Scheduler and prefix cache have a list of kinds, treat them alike, and use only the methods that all kinds have
(`CacheKind`). `Pages` are keys and values, of layers with or without a window; `States` are what a recurrent layer has
made of all tokens so far. A unit of a kind (a page, a state's slot) is free, or has users: the sequences that hold it,
and the prefix cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

Key = tuple[int, ...]
# (source, destination) pairs.
Copies = list[tuple[int, int]]


class Holder(Protocol):
    """A sequence, or its draft. ``tables``: what it holds of each kind, as the kind's ``table`` made it."""

    tables: list[Any]


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
    a ``leader``, in what it holds. ``known``: how many tokens have nodes, of which the last may lack snapshots.
    """

    length: int
    path: list[Node]
    leader: Holder | None = None
    known: int = 0


class CacheKind(Protocol):
    """``is_chain``: a prefix needs the snapshots of all its nodes; otherwise only the last ones are read. ``is_exact``:
    a prefix ends only where a snapshot was made, not within a page.

    ``nodes``: by unit, those of the prefix cache; ``idle``: those of them whose unit nobody else uses, the one not used
    for longest first. ``copies``: pages to copy on the device before the next step. ``forgotten`` is called with a unit
    that the prefix cache gives up; it keeps its contents until the next step.
    """

    is_chain: bool
    is_exact: bool
    copies: Copies
    forgotten: Callable[[int], None] | None
    index: int
    idle: OrderedDict[int, Node]

    @property
    def free(self) -> int:
        """How many units can be reserved without eviction."""

    def table(self) -> Any:
        """What a holder of nothing holds."""

    def unread(self, length: int) -> int:
        """How many nodes at the start of a prefix are not read by a sequence that continues after ``length`` tokens."""

    def growth(self, holder: Holder, length: int) -> int:
        """How many more units a holder can need for ``length`` tokens."""

    def admission(self, prefix: Prefix, length: int) -> int:
        """The same for a sequence that starts from a prefix, with the units that must not be evicted for it."""

    def missing(self, holder: Holder, start: int, length: int, known: int) -> int:
        """How many units `reserve` takes."""

    def reserve(self, holder: Holder, start: int, length: int, known: int) -> None:
        """Let a holder compute its positions from ``start`` up to ``length``; those from ``known`` on are drafts, which
        `rewind` may take back. The units must be free.
        """

    def is_writable(self, holder: Holder, start: int, known: int) -> bool:
        """Whether neither `trim` nor `reserve` of the next position would change anything."""

    def trim(self, holder: Holder, length: int) -> None:
        """Release what no position from ``length`` on reads."""

    def can_fork(self, holder: Holder, length: int) -> bool:
        """Whether another sequence can start from what a holder has of its first ``length`` tokens."""

    def rewind(self, holder: Holder, length: int) -> int:
        """Take back what follows ``length`` tokens, as drafts were refused. Returns how many of these need not be
        computed again.
        """

    def drop(self, holder: Holder) -> None:
        """Release everything."""

    def snapshot(self, holder: Holder, node: Node, index: int) -> None:
        """Retain in a node what the holder has of its page ``index``."""

    def restore(self, holder: Holder, prefix: Prefix) -> None:
        """Let a holder of fewer tokens continue after a prefix, together with its other users."""

    def node_of(self, holder: Holder, index: int) -> Node | None:
        """The node whose snapshot keeps the holder from writing to its page ``index`` in place."""

    def forget(self, node: Node) -> None:
        """Remove a node's snapshot, if it has one."""


class Units:
    """``size`` units of the kind ``index``, and the number of ``users`` of each."""

    def __init__(self, index: int, size: int) -> None:
        self.index, self.size = index, size
        self.users = [0] * size
        self.idle: OrderedDict[int, Node] = OrderedDict()
        self.nodes: dict[int, Node] = {}
        self.copies: Copies = []
        self.forgotten: Callable[[int], None] | None = None
        # A stack: the unit freed last is allocated first.
        self._free = list(range(size - 1, -1, -1))

    def forget(self, node: Node) -> None:
        unit, node.snapshots[self.index] = node.snapshots[self.index], None
        if unit is not None:
            if self.forgotten is not None:
                self.forgotten(unit)
            del self.nodes[unit]
            self.idle.pop(unit, None)
            self._release(unit)

    def _allocate(self) -> int:
        """A free unit, for one user. There must be one."""
        unit = self._free.pop()
        self.users[unit] = 1
        return unit

    def _use(self, unit: int) -> None:
        """Add a user to a unit that has one."""
        assert self.users[unit] > 0, f"unit {unit} of kind {self.index} has no user"
        self.users[unit] += 1
        self.idle.pop(unit, None)

    def _cache(self, unit: int, node: Node) -> None:
        """Make a unit that has a user the snapshot of a node."""
        self.users[unit] += 1
        self.nodes[unit] = node
        node.snapshots[self.index] = unit

    def _release(self, unit: int) -> None:
        """Remove a user; the unit is free when it was the last one."""
        users = self.users[unit] - 1
        assert users >= 0, f"unit {unit} of kind {self.index} has no user"
        self.users[unit] = users
        if users == 0:
            self._free.append(unit)
        elif users == 1 and unit in self.nodes:
            self.idle[unit] = self.nodes[unit]
