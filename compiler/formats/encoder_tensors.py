"""The tensors of an encoder by the names that its model has without a head, those of the dense layers that follow it,
and its tokenizer without what sentence-transformers does itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..runtime.errors import CheckpointError
from ..runtime.text.tokenizer_files import TokenizerFiles
from .checkpoint import Tensor, put_renamed
from .convolutions import ConvolutionMatrix
from .pytorch_file import has_pytorch_files, read_pytorch
from .safetensors_file import read_safetensors

# The names that LayerNorms had in TensorFlow.
OLD_NAMES = ((re.compile(r"\.gamma$"), ".weight"), (re.compile(r"\.beta$"), ".bias"))
# Buffers with the numbers from 0 on, which old checkpoints hold.
BUFFERS = re.compile(r"embeddings\.(?:position_ids|token_type_ids)")
WEIGHTS_FILE = "model.safetensors"


def encoder_tensors(tensors: Mapping[str, Tensor], prefix: str | tuple[str, ...]) -> dict[str, Tensor]:
    """The tensors without the ``prefix``, or one of several, that a model with a head puts in front of the names of its
    encoder.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found = next((each for each in ((prefix,) if isinstance(prefix, str) else prefix) if name.startswith(each)), "")
        short = name.removeprefix(found)
        for old, new in OLD_NAMES:
            short = old.sub(new, short)
        if not BUFFERS.fullmatch(short):
            is_kernel = len(tensor.shape) == 3 and short.endswith("conv.weight")
            put_renamed(renamed, short, name, ConvolutionMatrix(tensor) if is_kernel else tensor)
    return renamed


def dense_tensors(path: Path, folders: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of dense layers, each in its folder. Raises CheckpointError."""
    found: dict[str, Tensor] = {}
    for folder in folders:
        file = path / folder / WEIGHTS_FILE
        tensors: Mapping[str, Tensor]
        if file.is_file():
            tensors = read_safetensors(file)
        elif has_pytorch_files(path / folder):
            tensors = read_pytorch(path / folder)
        else:
            raise CheckpointError(f"{path / folder}: has no {WEIGHTS_FILE}; download it too", file=str(path / folder))
        found |= {f"{folder}.{name}": tensor for name, tensor in tensors.items()}
    return found


def encoder_tokenizer(files: TokenizerFiles, *, lowercases: bool) -> TokenizerFiles:
    """The tokenizer without truncation and padding, which are for batches of a fixed length. ``lowercases``: texts are
    converted to lower case first.
    """
    content = json.loads(files.content)
    changes = {key: None for key in ("truncation", "padding") if content.get(key) is not None}
    if lowercases:
        lower = {"type": "Lowercase"}
        normalizer = content.get("normalizer")
        own = [normalizer] if normalizer is not None else []
        changes["normalizer"] = {"type": "Sequence", "normalizers": [lower, *own]}  # type: ignore[assignment]
    if not changes:
        return files
    return replace(files, content=json.dumps({**content, **changes}, ensure_ascii=False).encode())
