"""The order of rows that a checkpoint for the interleaved form of rotary position embedding stores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .expr import Count


@dataclass(frozen=True, slots=True)
class RotaryPairs:
    """A tensor's rows are heads of ``head_dim`` rows, of which the first ``rotary_dim`` are pairs (2i, 2i + 1).

    The interleaved form (GPT-J, Wang and Komatsuzaki 2021) rotates these pairs; the rotate-half form, which our ops
    compute, rotates the pairs (i, i + rotary_dim / 2). Both give the same scores if the rows of queries and keys are
    read in the order of the second.
    """

    head_dim: Count
    rotary_dim: Count

    def stored_rows(self, start: int, stop: int) -> npt.NDArray[np.intp]:
        """The rows of the tensor that are rows [start, stop) in the order of the rotate-half form."""
        rows = np.arange(start, stop)
        element, half = rows % self.head_dim, self.rotary_dim // 2
        stored = np.where(element < self.rotary_dim, 2 * (element % half) + element // half, element)
        return rows - element + stored

    def read_rows(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """The inverse of `stored_rows`: where rows of the tensor are in the order of the rotate-half form."""
        element, half = rows % self.head_dim, self.rotary_dim // 2
        read: npt.NDArray[np.intp] = np.where(element < self.rotary_dim, element // 2 + half * (element % 2), element)
        return rows - element + read

    def heads(self, start: int, stop: int) -> tuple[int, int]:
        """The first and last row of the complete heads that contain rows [start, stop)."""
        return start // self.head_dim * self.head_dim, -(-stop // self.head_dim) * self.head_dim
