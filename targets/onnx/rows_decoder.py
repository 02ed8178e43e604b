"""One call of the decoder's graph on a run of rows, with everything bound to our memory: only logits that are out of
order are copied.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.runner import Limits

from .bound_rows import BoundRows
from .session import open_session
from .slot_states import PREFIXES, Slots, SlotStates

# The number of cached runs of rows: binding the keys and values of all layers takes longer than the rest of a call's
# preparation.
KEPT_BINDINGS = 64


class RowsDecoder:
    """``logits`` (limits.rows, vocab): the rows that calls write, each at its own indices. ``cache_shapes``: kv_heads
    and head_dim of each plane of keys and values. Raises the errors of `open_session`, and MemoryError.
    """

    def __init__(self, bundle: ExportBundle, threads: int, limits: Limits) -> None:
        self._session = open_session(bundle, threads)
        inputs = {each.name: each.shape for each in self._session.get_inputs()}
        self._caches = [name for name in inputs if name.startswith("past_key_values.")]
        self.cache_shapes: list[tuple[int, int]] = [(inputs[name][1], inputs[name][3]) for name in self._caches]
        states = {name: tuple(shape[1:]) for name, shape in inputs.items() if name.startswith(PREFIXES)}
        self._states = SlotStates(states, limits.states or 0, limits.sequences)
        # The operating system allocates memory on the first write.
        self.logits = np.empty((limits.rows, bundle.manifest.spec.vocab_size), np.float32)
        self._bound: OrderedDict[range, BoundRows] = OrderedDict()

    def run(
        self,
        planes: Sequence[npt.NDArray[Any]],
        rows: range,
        token_ids: Sequence[Sequence[int]],
        last_positions: Sequence[int],
        samples: Mapping[int, int],
        slots: Sequence[Slots],
    ) -> None:
        """Compute new tokens (rows, n) that end at positions (rows,). ``samples``: maps indices in ``logits`` to new
        tokens, counted row by row. ``slots``: those of each row's states.

        Raises DeviceError.
        """
        bound, indices = self._bind(planes, rows), list(samples)
        bound.write(token_ids, last_positions, list(samples.values()))
        together = range(indices[0], indices[0] + len(indices)) if indices else range(0)
        in_order = indices == list(together)
        result = (
            self.logits[together.start : together.stop]
            if in_order
            else np.empty((len(indices), self.logits.shape[1]), np.float32)
        )
        bound.read_into(result, together if in_order else None)
        bound.bind_states(slots)
        try:
            self._session.run_with_iobinding(bound.binding)
        except Exception as error:
            raise DeviceError(f"ONNX Runtime failed: {error}") from error
        self._states.write_back(slots)
        if not in_order:
            self.logits[indices] = result

    def close(self) -> None:
        self._bound.clear()
        del self._session

    def _bind(self, planes: Sequence[npt.NDArray[Any]], rows: range) -> BoundRows:
        bound = self._bound.pop(rows, None) or BoundRows(
            self._session, dict(zip(self._caches, planes, strict=True)), self._states, rows
        )
        self._bound[rows] = bound
        if len(self._bound) > KEPT_BINDINGS:
            self._bound.popitem(last=False)
        return bound
