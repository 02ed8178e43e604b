"""The stacks of experts in a checkpoint, as matrices: (E, N, K) becomes (E * N, K), and the biases (E, N) become
(E * N,).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .checkpoint import Derived, Tensor
from .pytorch_file import PytorchTensor
from .safetensors_file import SafetensorsTensor

# The families that store (E, K, N): each expert's matrix transposed.
TRANSPOSED = ("gpt_oss", "openai_privacy_filter")
STACK = re.compile(r".*\.(?:experts\.\w+|block_sparse_moe\.(?:input|output)_linear\.weight)")


def with_matrices(tensors: Mapping[str, Tensor], model_type: str) -> Mapping[str, Tensor]:
    """The tensors, with every stack of experts as one matrix or vector."""
    return {
        name: as_matrix(tensor, model_type in TRANSPOSED) if STACK.fullmatch(name) else tensor
        for name, tensor in tensors.items()
    }


def as_matrix(tensor: Tensor, transposed: bool) -> Tensor:
    if isinstance(tensor, SafetensorsTensor | PytorchTensor):
        if len(tensor.shape) == 3 and transposed:
            return TransposedStack(tensor)
        if len(tensor.shape) == 3:
            return reshaped(tensor, (tensor.shape[0] * tensor.shape[1], tensor.shape[2]))
        if len(tensor.shape) == 2 and tensor.name.endswith("_bias"):
            return reshaped(tensor, (math.prod(tensor.shape),))
    return tensor


def reshaped(tensor: SafetensorsTensor | PytorchTensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements in the same order."""
    if isinstance(tensor, PytorchTensor):
        return replace(tensor, shape=shape, value=tensor.value.reshape(shape))
    return replace(tensor, shape=shape)


@dataclass(frozen=True, slots=True)
class TransposedStack(Derived):
    """A stack (E, K, N) as the matrix (E * N, K). Reading some rows of an expert reads all of it."""

    @property
    def shape(self) -> tuple[int, ...]:
        experts, columns, rows = self.stored.shape
        return experts * rows, columns

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        rows = self.stored.shape[2]
        parts = []
        for expert in range(start // rows, -(-stop // rows)):
            (matrix,) = self.stored.rows(expert, expert + 1)
            first = expert * rows
            parts.append(matrix.T[max(start - first, 0) : stop - first])
        return np.ascontiguousarray(np.concatenate(parts)) if parts else np.empty((0, self.shape[1]), np.float32)
