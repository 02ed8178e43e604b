"""Matrices that a checkpoint stores transposed, (K, N), with several codes in each word of 32 bits; rows of the weight
(N, K) are columns there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError
from .safetensors_file import SafetensorsTensor

Codes8 = npt.NDArray[np.uint8]


def unpack_stream(words: npt.NDArray[np.generic], bits: int) -> Codes8:
    """Codes (R, C) of rows that are streams of bits (R, C * bits / 32), the lowest first: a code may begin in one word
    and end in the next.
    """
    data = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return data
    single = np.unpackbits(data, axis=1, bitorder="little").reshape(len(data), -1, bits)
    codes: Codes8 = np.packbits(single, axis=2, bitorder="little")[..., 0]
    return codes


def stream_columns(tensor: SafetensorsTensor, bits: int, start: int, stop: int) -> Codes8:
    """Codes (R, stop - start) of a tensor whose rows are streams of bits."""
    # 32 codes fill complete words for any number of bits.
    first, last = start // 32, -(-stop // 32)
    codes = unpack_stream(tensor.columns(first * bits, min(last * bits, tensor.shape[1])), bits)
    return codes[:, start - first * 32 : stop - first * 32]


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
