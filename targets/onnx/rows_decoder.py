"""One call of the decoder's graph on a run of rows, with everything bound to memory of ours: nothing is copied but logits out of order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.batch import FloatArray
from nearfar.compiler.bundle import ExportBundle
from nearfar.compiler.errors import DeviceError

from .rows_graph import LENGTHS, ROWS, TOTAL
from .session import open_session

if TYPE_CHECKING:
    from onnxruntime import IOBinding

# Bindings of keys and values that are kept, by rows: to bind all layers takes longer than the rest of a call's preparation.
KEPT_BINDINGS = 64


class RowsDecoder:
    """Raises what `open_session` raises."""

    def __init__(self, bundle: ExportBundle, threads: int) -> None:
        self._session = open_session(bundle, threads)
        self._bindings: OrderedDict[range, IOBinding] = OrderedDict()

    def run(
        self,
        planes: Sequence[npt.NDArray[Any]],
        rows: range,
        token_ids: npt.NDArray[np.int64],
        last_positions: npt.NDArray[np.int32],
        samples: Mapping[int, int],
        logits: FloatArray,
    ) -> None:
        """Compute new tokens (rows, n) that end at positions (rows,). ``samples``: which new token, row after row, by place in ``logits``.

        Raises DeviceError.
        """
        binding = self._binding(planes, rows)
        wanted, places = np.array(list(samples.values()), np.int64), list(samples)
        in_order = places == list(range(places[0], places[0] + len(places))) if places else False
        result = logits[places[0] : places[-1] + 1] if in_order else np.empty((len(wanted), logits.shape[1]), np.float32)
        total = np.array(int(last_positions.max()) + 1, np.int32)
        for name, values in (("input_ids", token_ids), (LENGTHS, last_positions), (TOTAL, total), (ROWS, wanted)):
            binding.bind_input(name, "cpu", 0, values.dtype, values.shape, values.ctypes.data)
        binding.bind_output("logits", "cpu", 0, np.float32, (len(wanted), 1, logits.shape[1]), result.ctypes.data)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise DeviceError(f"ONNX Runtime failed: {error}") from error
        if places and not in_order:
            logits[places] = result

    def close(self) -> None:
        self._bindings.clear()
        del self._session

    def _binding(self, planes: Sequence[npt.NDArray[Any]], rows: range) -> IOBinding:
        """With past and present of the rows bound to the same memory."""
        binding = self._bindings.pop(rows, None)
        if binding is None:
            binding = self._session.io_binding()
            for index, plane in enumerate(planes):
                values, name = plane[rows.start : rows.stop], f"{index // 2}.{('key', 'value')[index % 2]}"
                where = ("cpu", 0, values.dtype, values.shape, values.ctypes.data)
                binding.bind_input(f"past_key_values.{name}", *where)
                binding.bind_output(f"present.{name}", *where)
        self._bindings[rows] = binding
        if len(self._bindings) > KEPT_BINDINGS:
            self._bindings.popitem(last=False)
        return binding
