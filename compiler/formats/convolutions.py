"""Weights of convolutions as matrices of projections, whose inputs are what a filter reads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .checkpoint import Derived


@dataclass(frozen=True, slots=True)
class FlatMatrix(Derived):
    """The weights of a convolution (outputs, channels, height, width) as the matrix of a projection of patches."""

    @property
    def shape(self) -> tuple[int, ...]:
        outputs, *rest = self.stored.shape
        return outputs, math.prod(rest)

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return self.stored.rows(start, stop).reshape(stop - start, -1)


@dataclass(frozen=True, slots=True)
class ChannelsFirst(Derived):
    """The weights of a convolution that MLX stores as (outputs, ..., height, width, channels), in the order (outputs,
    channels, ..., height, width).
    """

    @property
    def shape(self) -> tuple[int, ...]:
        outputs, *sides, channels = self.stored.shape
        return outputs, channels, *sides

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return np.moveaxis(self.stored.rows(start, stop), -1, 1)


@dataclass(frozen=True, slots=True)
class ChannelsLast(Derived):
    """The reverse of `ChannelsFirst`."""

    @property
    def shape(self) -> tuple[int, ...]:
        outputs, channels, *sides = self.stored.shape
        return outputs, *sides, channels

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return np.moveaxis(self.stored.rows(start, stop), 1, -1)


@dataclass(frozen=True, slots=True)
class TransposedMatrix(Derived):
    """A tensor with its dimensions in the order ``axes``, all but the last one joined."""

    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        *rows, columns = (self.stored.shape[axis] for axis in self.axes)
        return math.prod(rows), columns

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        complete = self.stored.rows(0, self.stored.shape[0]).transpose(self.axes)
        return np.ascontiguousarray(complete.reshape(self.shape)[start:stop])


@dataclass(frozen=True, slots=True)
class FrameSum(Derived):
    """The weights of a convolution (outputs, channels, frames, height, width) for a picture that is all of its frames,
    as those of a convolution without frames.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        outputs, channels, _, *sides = self.stored.shape
        return outputs, channels, *sides

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        summed: npt.NDArray[np.float32] = self.stored.rows(start, stop).sum(axis=2)
        return summed


@dataclass(frozen=True, slots=True)
class FrameDifference(FrameSum):
    """What the weights of the first of two frames have more than those of the second."""

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        first, second = self.stored.rows(start, stop).swapaxes(0, 2)
        found: npt.NDArray[np.float32] = (first - second).swapaxes(0, 1)
        return found


@dataclass(frozen=True, slots=True)
class ConvolutionMatrix(Derived):
    """The weights of a convolution (outputs, inputs, size) as the matrix of a projection of the ``size`` rows that a
    filter reads, one behind the other (`near_rows` in `ir/ops/encoders.py`). A projection can apply the filter at
    ``times`` places at once, each ``stride`` rows after the one before: its matrix is a stack of ``times`` copies, each
    shifted by as many rows more. With ``columns``, zeros fill up the matrix to so many.
    """

    times: int = 1
    stride: int = 1
    columns: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        outputs, inputs, size = self.stored.shape
        return self.times * outputs, self.columns or ((self.times - 1) * self.stride + size) * inputs

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        outputs, inputs, size = self.stored.shape
        matrix = np.zeros((stop - start, self.shape[1]), np.float32)
        for time in range(self.times):
            first = time * outputs
            low, high = max(start, first), min(stop, first + outputs)
            if low < high:
                filters = self.stored.rows(low - first, high - first).swapaxes(1, 2)
                columns = slice(time * self.stride * inputs, (time * self.stride + size) * inputs)
                matrix[low - start : high - start, columns] = filters.reshape(high - low, -1)
        return matrix
