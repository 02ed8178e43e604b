"""Reads PyTorch's .bin files with torch itself, which refuses everything but tensors (``weights_only``). Tensors are
mapped from disk.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.errors import CheckpointError, UnsupportedModel, reason_of
from .json_file import read_json_object

SINGLE_FILE = "pytorch_model.bin"
INDEX_FILE = "pytorch_model.bin.index.json"
FLOATS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class PytorchTensor:
    name: str
    shape: tuple[int, ...]
    dtype: str
    path: Path
    value: Any = field(repr=False)

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows start to stop of the first axis; a scalar counts as one row. Raises UnsupportedModel for a dtype that is
        not FLOATS, and IndexError for rows that the tensor does not have.
        """
        count = self.shape[0] if self.shape else 1
        if not 0 <= start <= stop <= count:
            raise IndexError(f"rows {start} to {stop} of tensor {self.name!r}, which has {count}")
        if self.dtype not in FLOATS:
            raise UnsupportedModel(
                f"{self.path}: tensor {self.name!r} has dtype {self.dtype}, which is not supported; supported: "
                f"{', '.join(FLOATS)}",
                file=str(self.path), tensor=self.name,
            )  # fmt: skip
        part = self.value[start:stop] if self.shape else self.value.reshape(1)
        return np.ascontiguousarray(part.float().numpy())


def has_pytorch_files(folder: Path) -> bool:
    return (folder / SINGLE_FILE).is_file() or (folder / INDEX_FILE).is_file()


def read_pytorch(folder: Path) -> Mapping[str, PytorchTensor]:
    """The tensors of a folder's pytorch_model.bin, or of all files of its index. Raises CheckpointError."""
    if (folder / SINGLE_FILE).is_file():
        return _read_file(folder / SINGLE_FILE)
    index = folder / INDEX_FILE
    names = read_json_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(each, str) for each in names.values()):
        raise CheckpointError(
            f"{index}: 'weight_map' must map tensor names to files; download it again", file=str(index)
        )
    tensors: dict[str, PytorchTensor] = {}
    for file in sorted(set(names.values())):
        if Path(file).name != file or not (folder / file).is_file():
            raise CheckpointError(f"{folder}: {file} is missing, though {INDEX_FILE} lists it; download it", file=file)
        for name, tensor in _read_file(folder / file).items():
            if name in tensors:
                raise CheckpointError(
                    f"{folder}: tensor {name!r} is in both {tensors[name].path.name} and {file}; download the "
                    "checkpoint again",
                    tensor=name,
                )
            tensors[name] = tensor
    if missing := sorted(names.keys() - tensors.keys()):
        raise CheckpointError(
            f"{folder}: {INDEX_FILE} lists tensor {missing[0]!r} in {names[missing[0]]}, which does not contain it; "
            "download both again",
            tensor=missing[0],
        )
    return tensors


def _read_file(path: Path) -> dict[str, PytorchTensor]:
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(
            f"{path}: reading PyTorch's files needs torch: pip install torch; or load the model with transformers and "
            "write model.safetensors with save_pretrained(folder)",
            file=str(path),
        ) from error
    try:
        values = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: contains more than tensors, such as code, which is not run; if you trust the file, load it with "
            "transformers and write model.safetensors with save_pretrained(folder)",
            file=str(path),
        ) from error
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise CheckpointError(
            f"{path}: cannot be read: {reason_of(error)}; download it again, or, if torch before 1.6 wrote it, load it "
            "with transformers and write model.safetensors with save_pretrained(folder)",
            file=str(path),
        ) from error
    if not isinstance(values, dict) or not all(isinstance(value, torch.Tensor) for value in values.values()):
        raise CheckpointError(f"{path}: is not a table of tensors by name; pass a folder of model weights")
    return {
        str(name): PytorchTensor(
            str(name), tuple(value.shape), str(value.dtype).removeprefix("torch."), path, value.detach()
        )
        for name, value in values.items()
    }
