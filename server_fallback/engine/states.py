"""States: a cache kind for what recurrent layers have made of all tokens so far, in one slot for a sequence.

A state cannot go back, so a prefix is usable only where a snapshot of its state was kept. Nothing is copied for one: a
row reads one slot and may write another, and the slot that it has read is the snapshot then, which no row writes. A
running sequence holds a slot of its own, and at most one snapshot: the state from which it began, that of the last page
border, or that before its drafts. The slots beyond one for each sequence are the budget of snapshots; those that only
the prefix cache uses are evicted, the one not used for longest first.
"""

from __future__ import annotations

from .cache_kind import Holder, Node, Prefix, Units


class StateTable:
    """``slot``: the sequence's own slot, -1 for none. ``source``: its snapshot, of the state after ``length`` tokens;
    both are -1 for none.
    """

    __slots__ = ("length", "slot", "source")

    def __init__(self) -> None:
        self.slot = self.source = self.length = -1

    def pair(self, start: int) -> tuple[int, int]:
        """The slots that the row at position ``start`` reads and writes. At position 0, none is read."""
        return self.source if start == self.length else self.slot, self.slot


class States(Units):
    """``size`` slots, the cache kind ``index``; see `CacheKind`. A unit is a slot.

    ``made`` counts the snapshots that the prefix cache was given, ``hits`` the sequences that continued after one.
    """

    is_chain, is_exact = False, True
    table = StateTable

    def __init__(self, index: int, size: int, max_sequences: int, page_size: int) -> None:
        super().__init__(index, size)
        self.made = self.hits = 0
        self._max_sequences, self._page_size = max_sequences, page_size
        # How many slots are the own ones of sequences.
        self._owned = 0

    @property
    def free(self) -> int:
        """How many more snapshots there may be, beside a slot for each sequence."""
        return len(self._free) + self._owned - self._max_sequences

    def unread(self, length: int) -> int:
        """Only the state at the end is read."""
        return max(0, -(-length // self._page_size) - 1)

    def growth(self, holder: Holder, length: int) -> int:
        """None: each sequence has a slot of its own."""
        return 0

    def admission(self, prefix: Prefix, length: int) -> int:
        return 0

    def missing(self, holder: Holder, start: int, length: int, known: int) -> int:
        table = self._table(holder)
        return int(self._keeps(table, start, drafts=length > known) and not self._is_alone(table))

    def reserve(self, holder: Holder, start: int, length: int, known: int) -> None:
        table = self._table(holder)
        if self._keeps(table, start, drafts=length > known):
            self._keep(table, start)
        elif table.length != start and not self._is_private(table):
            self._release_source(table)
        if table.slot < 0:
            table.slot = self._allocate()
            self._owned += 1

    def is_writable(self, holder: Holder, start: int, known: int) -> bool:
        table: StateTable = holder.tables[self.index]
        return start % self._page_size > 0 and table.slot >= 0 and (table.source < 0 or self._is_private(table))

    def trim(self, holder: Holder, length: int) -> None:
        """All of a state is read."""

    def can_fork(self, holder: Holder, length: int) -> bool:
        """A sequence has a state only of all its tokens, and another one must compute at least its last token."""
        return False

    def rewind(self, holder: Holder, length: int) -> int:
        """The sequence continues after the state before its drafts."""
        return max(0, self._table(holder).length)

    def drop(self, holder: Holder) -> None:
        table = self._table(holder)
        self._release_source(table)
        if table.slot >= 0:
            self._release(table.slot)
            table.slot = -1
            self._owned -= 1

    def snapshot(self, holder: Holder, node: Node, index: int) -> None:
        """A sequence that goes on keeps its snapshot to itself; see `share`."""
        if self._table(holder).slot < 0:
            self.share(holder, node, index * self._page_size + len(node.key))

    def share(self, holder: Holder, node: Node, length: int) -> None:
        """Retain the holder's snapshot in a node that ends after ``length`` tokens, if it is one of that state."""
        table = self._table(holder)
        is_new = node.snapshots[self.index] is None and table.source not in self.nodes
        if table.length == length and is_new and not node.is_removed:
            self._cache(table.source, node)
            self.made += 1

    def kept(self, holder: Holder) -> int:
        """The number of tokens whose state is the holder's snapshot; -1 for none."""
        return self._table(holder).length

    def own(self, holder: Holder) -> int:
        """The slot that the holder writes; -1 for none."""
        return self._table(holder).slot

    def settle(self, holder: Holder, length: int) -> bool:
        """Make the last state of a holder, which stops after ``length`` tokens, its snapshot. False if one must be
        evicted first.
        """
        table = self._table(holder)
        if table.slot < 0 or table.length == length or length == 0:
            return True
        if self.free <= 0 and not self._is_alone(table):
            return False
        self._keep(table, length)
        return True

    def restore(self, holder: Holder, prefix: Prefix) -> None:
        if not prefix.path:
            return
        table, slot = self._table(holder), prefix.path[-1].snapshots[self.index]
        assert slot is not None, "the prefix has no state"
        self._use(slot)
        self._release_source(table)
        table.source, table.length = slot, prefix.length
        self.hits += 1

    def node_of(self, holder: Holder, index: int) -> Node | None:
        """None: a sequence writes to its own slot."""
        return None

    def _table(self, holder: Holder) -> StateTable:
        table: StateTable = holder.tables[self.index]
        return table

    def _keeps(self, table: StateTable, start: int, *, drafts: bool) -> bool:
        """Whether a row leaves the state before it as a snapshot: before drafts, and at a page border if there is room
        for one.
        """
        if table.slot < 0 or start in (0, table.length):
            return False
        at_border = start % self._page_size == 0
        return drafts or (at_border and (self.free > 0 or bool(self.idle) or self._is_alone(table)))

    def _keep(self, table: StateTable, position: int) -> None:
        self._release_source(table)
        table.source, table.slot, table.length = table.slot, -1, position
        self._owned -= 1

    def _is_alone(self, table: StateTable) -> bool:
        """Whether nobody else uses the sequence's snapshot, so that the next one replaces it."""
        return table.source >= 0 and self.users[table.source] == 1

    def _is_private(self, table: StateTable) -> bool:
        """Whether the snapshot is that of a page border that is not in the prefix cache. It is retained for the cache
        until the sequence stops or comes to the next border.
        """
        return table.length % self._page_size == 0 and table.source not in self.nodes

    def _release_source(self, table: StateTable) -> None:
        if table.source >= 0:
            self._release(table.source)
            table.source = table.length = -1
