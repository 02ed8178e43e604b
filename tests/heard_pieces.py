"""A runner that records the rows of sound that it reads, and what they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nearfar.compiler.runtime.audio.listener import Listener
from nearfar.compiler.runtime.batch import Batch, Chunk, FloatArray, make_batch
from nearfar.compiler.runtime.errors import DeviceError


class Reads:
    """``counts``: the rows of each batch of sound. A runner as `Listener` needs it."""

    def __init__(self, runner: Any) -> None:
        self.runner, self.manifest = runner, runner.manifest
        self.counts: list[int] = []
        self.fails = False
        self._rows: FloatArray = np.zeros((0, 0), np.float32)
        self._listener = Listener(self, self.manifest)  # type: ignore[arg-type]

    def listen(self, batch: Batch) -> FloatArray:
        if self.fails:
            raise DeviceError("the device was lost")
        found: FloatArray = self.runner.listen(batch)
        assert batch.source is not None
        slots, places = batch.source.slots, batch.source.positions
        self.counts.append(len(found))
        rows = np.zeros((places[-1] + 1, found.shape[1]), np.float32)
        if len(self._rows):
            rows[: len(self._rows)] = self._rows[: len(rows)]
        kept = slots == places
        rows[places[kept]] = found[kept]
        self._rows = rows
        return found

    def heard(self, window: FloatArray, tokens: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """The rows of a window, and the logits of tokens that attend to them."""
        source, size = self._listener.listen(window), self.manifest.page_size
        chunk = Chunk(tokens, 0, range(self.manifest.pages_for(len(tokens))), range(len(tokens)), source=source)
        logits = self.runner.forward(make_batch([chunk], size)).logits
        return self._rows, logits
