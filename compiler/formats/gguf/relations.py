"""Which tensors of a GGUF file hold which tensors of a checkpoint, and in what order: for reading and for writing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Axes:
    """An order of rows, of a vector's elements, or of columns. From ``start`` on, those of the checkpoint are an array
    of ``shape``; the file stores its axes in the order ``axes``.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    start: int = 0

    def in_file(self, rows: Rows) -> Rows:
        """The indices in the file of rows of the checkpoint."""
        return self._moved(rows, self.shape, self.axes)

    def in_checkpoint(self, rows: Rows) -> Rows:
        """Where rows of the file are in the checkpoint."""
        shape = tuple(self.shape[axis] for axis in self.axes)
        return self._moved(rows, shape, tuple(self.axes.index(axis) for axis in range(len(shape))))

    def _moved(self, rows: Rows, shape: tuple[int, ...], axes: tuple[int, ...]) -> Rows:
        index = np.unravel_index(np.maximum(rows - self.start, 0), shape)
        places = np.ravel_multi_index([index[axis] for axis in axes], [shape[axis] for axis in axes])
        moved: Rows = np.where(rows < self.start, rows, places + self.start)
        return moved


def interleaved(heads: int, head_dim: int) -> Axes:
    """llama.cpp rotates neighbouring elements in some architectures, and stores elements i and i + D/2 of a head side
    by side.
    """
    return Axes((heads, 2, head_dim // 2), (0, 2, 1))


# What a file stores of a value w: w, w + 1, or -exp(w).
Values = Literal["same", "plus_one", "negative_exp"]


@dataclass(frozen=True, slots=True)
class Relation:
    """The rows of ``files``, one after the other, are the rows of ``tensors`` in the order ``rows``; those of vectors
    are their elements. All files have the same shape, and so have all tensors. Columns are in the order ``columns``.

    ``first``: the size of one more axis that the files have in front, such as the number of experts; None for no such
    axis.
    """

    files: tuple[str, ...]
    tensors: tuple[str, ...]
    first: int | None = None
    rows: Axes | None = None
    columns: Axes | None = None
    values: Values = "same"

    def of_layer(self, layer: int, layers: str = "model.layers") -> Relation:
        return self.within(f"blk.{layer}.", f"{layers}.{layer}.")

    def within(self, file: str, module: str) -> Relation:
        """The relation of tensors whose names begin with those of the ``file`` and the checkpoint's ``module``."""
        files, tensors = (file + name for name in self.files), (module + name for name in self.tensors)
        return replace(self, files=tuple(files), tensors=tuple(tensors))


def same_names(file: str, module: str, kinds: Iterable[str] = ("weight", "bias")) -> Iterator[Relation]:
    """The weight and the bias of a module."""
    for kind in kinds:
        yield Relation((f"{file}.{kind}",), (f"{module}.{kind}",))


def stacked_experts(file: str, tensor: str, experts: int) -> Relation:
    """Experts with tensors of their own, whose number "{}" stands for."""
    return Relation((f"{file}.weight",), tuple(tensor.format(expert) for expert in range(experts)), experts)


def halves_of_experts(
    tensor: str, experts: int, size: int, *, alternate: bool = False, kind: str = "weight"
) -> Relation:
    """A stack of experts whose matrices hold the gates and what they gate: one after the other, or in ``alternate``
    rows.
    """
    order = Axes((experts, size, 2), (2, 0, 1)) if alternate else Axes((experts, 2, size), (1, 0, 2))
    return Relation((f"ffn_gate_exps.{kind}", f"ffn_up_exps.{kind}"), (tensor,), experts, order)
