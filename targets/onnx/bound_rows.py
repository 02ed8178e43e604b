"""A run of rows whose inputs and outputs are bound to our memory, which ONNX Runtime reads and writes in place.

Keys and values are bound once. Small inputs stay bound while their shapes do not change, and logits while their rows do
not change, as in a decode; a call then only writes numbers. After a pass through the weights, which evicts everything
else from a core's caches, binding one array takes as long as scanning the logits of a large vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.runtime.batch import FloatArray

from .rows_graph import LENGTHS, ROWS, TOTAL
from .slot_states import Slots, SlotStates

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

TOKENS = "input_ids"
DTYPES = {TOKENS: np.int64, LENGTHS: np.int32, TOTAL: np.int32, ROWS: np.int64}


class BoundRows:
    """A session runs ``binding``. ``planes`` are those of `KvRows` by the graph's input, ``states`` those of all
    slots.
    """

    def __init__(
        self, session: InferenceSession, planes: Mapping[str, npt.NDArray[Any]], states: SlotStates, rows: range
    ) -> None:
        self.binding = session.io_binding()
        self._states = states
        self._bound_states: Sequence[Slots] | int | None = None
        self._inputs: dict[str, npt.NDArray[Any]] = {}
        self._memory_rows: range | None = None
        for name, plane in planes.items():
            values = plane[rows.start : rows.stop]
            where = ("cpu", 0, values.dtype, values.shape, values.ctypes.data)
            self.binding.bind_input(name, *where)
            self.binding.bind_output(name.replace("past_key_values", "present"), *where)

    def write(self, token_ids: Sequence[Sequence[int]], last_positions: Sequence[int], wanted: Sequence[int]) -> None:
        """New tokens (rows, n), the position of each row's last, and the indices, row by row, of the tokens whose
        logits are requested.
        """
        self._write(TOKENS, token_ids, (len(token_ids), len(token_ids[0])))
        self._write(LENGTHS, last_positions, (len(last_positions),))
        self._write(TOTAL, max(last_positions) + 1, ())
        self._write(ROWS, wanted, (len(wanted),))

    def bind_states(self, slots: Sequence[Slots]) -> None:
        """Bind the states of the rows of the next run."""
        self._bound_states = self._states.bind(self.binding, slots, self._bound_states)

    def read_into(self, logits: FloatArray, memory_rows: range | None) -> None:
        """Bind the logits (wanted, vocab) of the next run. Equal ``memory_rows`` always mean the same memory; None
        means memory for this run only.
        """
        if memory_rows is None or memory_rows != self._memory_rows:
            rows, columns = logits.shape
            self.binding.bind_output("logits", "cpu", 0, np.float32, (rows, 1, columns), logits.ctypes.data)
            self._memory_rows = memory_rows

    def _write(self, name: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> None:
        held = self._inputs.get(name)
        if held is None or held.shape != shape:
            held = self._inputs[name] = np.empty(shape, DTYPES[name])
            self.binding.bind_input(name, "cpu", 0, held.dtype, held.shape, held.ctypes.data)
        held[...] = values
