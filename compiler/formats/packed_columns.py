"""Matrices that a checkpoint stores transposed, (K, N), with several codes in each word of 32 bits; rows of the weight
(N, K) are columns there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..quant import Codes
from ..runtime.errors import CheckpointError, QuantizationError, UnsupportedModel
from .safetensors_file import SafetensorsTensor

Codes8 = npt.NDArray[np.uint8]


def unpack_stream(words: npt.NDArray[np.generic], bits: int, count: int | None = None) -> Codes8:
    """Codes (R, C) of rows that are streams of bits (R, ceil(C * bits / 32)), the lowest first: a code may begin in one
    word and end in the next. ``count``: C, None if the codes fill the words.
    """
    data = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return data[:, :count]
    if 8 % bits == 0:
        codes = np.empty((*data.shape, 8 // bits), np.uint8)
        for place in range(8 // bits):
            codes[..., place] = data >> np.uint8(place * bits) & np.uint8((1 << bits) - 1)
        return codes.reshape(len(data), -1)[:, :count]
    # 8 codes take as many bytes as a code has bits.
    if missing := -data.shape[1] % bits:
        data = np.pad(data, ((0, 0), (0, missing)))
    parts = data.reshape(len(data), -1, bits)
    wide: type[np.unsignedinteger[Any]] = np.uint32 if bits <= 4 else np.uint64
    joined = parts[..., 0].astype(wide)
    for place in range(1, bits):
        joined |= parts[..., place].astype(wide) << wide(8 * place)
    codes = np.empty((*joined.shape, 8), np.uint8)
    for place in range(8):
        codes[..., place] = joined >> wide(place * bits) & wide((1 << bits) - 1)
    return codes.reshape(len(data), -1)[:, :count]


@dataclass(frozen=True, slots=True)
class Packing:
    """How integers of ``bits`` bits fill words of 32 bits, from the lowest: as a stream, or 32 // bits in each word."""

    bits: int
    is_stream: bool

    @staticmethod
    def of(bits: int, count: int, words: int) -> Packing | None:
        """The packing in which ``count`` integers take ``words``. None if neither fits, or if both fit and differ."""
        fitting = [each for each in (Packing(bits, True), Packing(bits, False)) if each.words(count) == words]
        are_equal = 32 % bits == 0 or count <= 32 // bits
        return fitting[0] if len(fitting) == 1 or (fitting and are_equal) else None

    def words(self, count: int) -> int:
        return -(-count * self.bits // 32) if self.is_stream else -(-count // (32 // self.bits))

    def unpack(self, words: npt.NDArray[np.generic], count: int) -> Codes8:
        """Codes (R, count) of rows (R, W)."""
        if self.is_stream:
            return unpack_stream(words, self.bits, count)
        shifts = np.arange(32 // self.bits, dtype=np.uint32) * np.uint32(self.bits)
        codes = np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts & np.uint32((1 << self.bits) - 1)
        return codes.astype(np.uint8).reshape(len(words), -1)[:, :count]

    def unpack_columns(self, tensor: SafetensorsTensor, start: int, stop: int, count: int) -> Codes8:
        """Codes (stop - start, C) of a tensor (W, C) whose columns hold ``count`` integers each."""
        codes, words = (32, self.bits) if self.is_stream else (32 // self.bits, 1)
        first, last = start // codes, min(-(-stop // codes) * codes, count)
        stored = tensor.integers(first * words, self.words(last))
        begin = first * codes
        return self.unpack(stored.T, last - begin)[:, start - begin : stop - begin].T


def stream_columns(tensor: SafetensorsTensor, bits: int, start: int, stop: int) -> Codes8:
    """Codes (R, stop - start) of a tensor whose rows are streams of bits."""
    # 32 codes fill complete words for any number of bits.
    first, last = start // 32, -(-stop // 32)
    codes = unpack_stream(tensor.columns(first * bits, min(last * bits, tensor.shape[1])), bits)
    return codes[:, start - first * 32 : stop - first * 32]


def column_groups(
    order: SafetensorsTensor | None, columns: int, group: int, where: str
) -> npt.NDArray[np.int64] | None:
    """The group of each column; None if groups are consecutive columns, also if there is no tensor or if it holds -1.

    Raises CheckpointError for a group that does not exist.
    """
    if order is None:
        return None
    require(order, (columns,), ("I32",), where)
    groups_of: npt.NDArray[np.int64] = order.integers(0, columns).astype(np.int64)
    groups = -(-columns // group)
    if (groups_of == -1).all() or (groups_of == np.arange(columns) // group).all():
        return None
    if groups_of.min() < 0 or groups_of.max() >= groups:
        raise CheckpointError(
            f"{order.path}: tensor {order.name} has groups from {groups_of.min()} to {groups_of.max()}, and there are "
            f"{groups}; download the checkpoint again",
            tensor=order.name,
        )
    return groups_of


def modules_of(tensors: Mapping[str, SafetensorsTensor], kind: str) -> set[str]:
    """The modules with a tensor of this kind, such as "qweight"."""
    return {name.removesuffix(f".{kind}") for name in tensors if name.endswith(f".{kind}")}


def require(tensor: SafetensorsTensor, shape: tuple[int, ...], dtypes: tuple[str, ...], where: str) -> None:
    """Raises CheckpointError unless the tensor has this shape and one of these dtypes."""
    if tensor.shape != shape or tensor.dtype not in dtypes:
        raise CheckpointError(
            f"{tensor.path}: tensor {tensor.name} has dtype {tensor.dtype} and shape {list(tensor.shape)}; expected "
            f"{' or '.join(dtypes)} of {list(shape)} ({where}); download the checkpoint again",
            tensor=tensor.name,
        )


def codes_of(bits: int, group: int, offset: str, scale: str = "float32", *, where: str, module: str) -> Codes:
    """The format of a module's matrix. Raises UnsupportedModel for groups that no kernel reads."""
    try:
        return Codes(bits, group, offset, scale)
    except QuantizationError as error:
        raise UnsupportedModel(f"{where}: {module}: {error.message}", key="group_size", module=module) from error


def part(module: str, kind: str, tensors: Mapping[str, SafetensorsTensor], where: str) -> SafetensorsTensor:
    """A tensor of a quantized module. Raises CheckpointError if it is missing."""
    found = tensors.get(f"{module}.{kind}")
    if found is None:
        raise CheckpointError(
            f"{where}: tensor {module}.{kind} is missing; without it the weights are unknown, so download the "
            "checkpoint again",
            tensor=f"{module}.{kind}",
        )
    return found
