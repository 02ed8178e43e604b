"""The host tier: pages and states in this process's memory, those used last."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from .chain import UnitName


class HostTier:
    """At most ``budget_bytes`` of data. Callable from any thread."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._lock = Lock()
        # The one not used for longest is first.
        self._units: OrderedDict[UnitName, bytes] = OrderedDict()
        self.used_bytes = self.evictions = 0

    def has(self, name: UnitName) -> bool:
        return name in self._units

    def get(self, name: UnitName) -> bytes | None:
        with self._lock:
            data = self._units.get(name)
            if data is not None:
                self._units.move_to_end(name)
            return data

    def put(self, name: UnitName, data: bytes) -> None:
        """A unit that is larger than the budget is left out."""
        with self._lock:
            if name in self._units or len(data) > self._budget:
                return
            self._units[name] = data
            self.used_bytes += len(data)
            while self.used_bytes > self._budget:
                self.used_bytes -= len(self._units.popitem(last=False)[1])
                self.evictions += 1

    def clear(self) -> None:
        with self._lock:
            self._units.clear()
            self.used_bytes = 0
