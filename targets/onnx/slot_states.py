"""The slots that hold the states of recurrent layers, which the engine numbers; see `ir/ops/states.py`.

The graph has one state for each row of a batch. A single row reads and writes its slots in place. The states of several
rows are gathered, and written back after the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nearfar.compiler.runtime.batch import FloatArray

PREFIXES = ("past_conv.", "past_recurrent.", "past_ssm.")
# The slots that a row reads and writes; it starts from zeros if it reads None. A filler has no slots.
Slots = tuple[int | None, int] | None


class SlotStates:
    """``shapes``: those of one row of each state, by the graph's input. ``rows``: the most in a call."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], slots: int, rows: int) -> None:
        # The operating system allocates memory on the first write.
        self.planes = {name: np.zeros((slots, *shape), np.float32) for name, shape in shapes.items()}
        self._zeros = {name: np.zeros((1, *shape), np.float32) for name, shape in shapes.items()}
        self._gathered = {name: np.zeros((rows, *shape), np.float32) for name, shape in shapes.items()}

    def bind(self, binding: Any, slots: Sequence[Slots], bound: Sequence[Slots] | int | None) -> Sequence[Slots] | int:
        """Bind the states of a call's rows, unless ``bound``, the result of the binding's previous call, says that they
        are bound. The kernels allow a state to be read and written in the same memory.
        """
        if len(slots) == 1 and (own := slots[0]) is not None:
            read, write = own
            if bound != slots:
                for name, plane in self.planes.items():
                    before = self._zeros[name] if read is None else plane[read : read + 1]
                    bind(binding, name, before, plane[write : write + 1])
            return slots
        count = len(slots)
        for name, plane in self.planes.items():
            gathered = self._gathered[name][:count]
            for row, own in enumerate(slots):
                gathered[row] = 0 if own is None or own[0] is None else plane[own[0]]
            if bound != count:
                bind(binding, name, gathered, gathered)
        return count

    def write_back(self, slots: Sequence[Slots]) -> None:
        """Write the states of several rows after their call."""
        if len(slots) == 1 and slots[0] is not None:
            return
        for name, plane in self.planes.items():
            for row, own in enumerate(slots):
                if own is not None:
                    plane[own[1]] = self._gathered[name][row]


def bind(binding: Any, name: str, past: FloatArray, present: FloatArray) -> None:
    binding.bind_input(name, "cpu", 0, past.dtype, past.shape, past.ctypes.data)
    binding.bind_output(name.replace("past", "present"), "cpu", 0, present.dtype, present.shape, present.ctypes.data)
