"""What a checkpoint's tensors say about its config.json: absurd sizes are refused before anything is built, and the head is settled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import CheckpointError
from ..ir.spec import ModelSpec
from .checkpoint import Tensor
from .safetensors_file import SafetensorsTensor

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")
# Elements of each of two tensors that are in memory at once.
_BLOCK_ELEMENTS = 4 << 20


def require_sizes(path: Path, spec: ModelSpec, tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError for a size that no tensor has, so that what is built from the spec is never larger than the files."""
    layers = {int(match[1]) for name in tensors if (match := _LAYER.match(name))}
    if spec.num_layers > len(layers):
        raise CheckpointError(
            f"{path / 'config.json'}: 'num_hidden_layers' is {spec.num_layers}, but the weights have {len(layers)} layers; "
            "the weights do not fit config.json, or a file was not downloaded",
            key="num_hidden_layers",
        )
    # A tensor without elements may claim any size.
    largest = max((max(tensor.shape, default=1) for tensor in tensors.values() if 0 not in tensor.shape), default=0)
    sizes = {
        "'vocab_size'": spec.vocab_size,
        "'hidden_size'": spec.hidden_size,
        "'intermediate_size'": spec.intermediate_size,
        "'num_attention_heads' times the head size": spec.num_heads * spec.head_dim,
        "'num_key_value_heads' times the head size": spec.num_kv_heads * spec.head_dim,
    }
    for name, size in sizes.items():
        if size > largest:
            raise CheckpointError(
                f"{path / 'config.json'}: {name} is {size}, but the largest side of any tensor is {largest}; "
                "the weights do not fit config.json, or a file was not downloaded",
                key=name,
            )


def settle_head(
    path: Path, spec: ModelSpec, tensors: Mapping[str, SafetensorsTensor], notes: list[str]
) -> tuple[ModelSpec, Mapping[str, SafetensorsTensor]]:
    """The head of a model whose config.json ties it to the embedding, as transformers 5 settles it.

    If both are stored and differ, the model is not tied, and ``notes`` says so. If only the head is stored, it is the embedding too.
    """
    head, embedding = tensors.get(HEAD), tensors.get(EMBEDDING)
    if head is not None and embedding is None:
        return spec, {**tensors, EMBEDDING: replace(head, name=EMBEDDING)}
    if head is None or embedding is None or _equal(head, embedding):
        return spec, tensors
    notes.append(
        f"{path}: config.json ties the head to the embedding ('tie_word_embeddings'), but the weights hold {HEAD} with other values than "
        f"{EMBEDDING}; both are used, as transformers 5 does, so set 'tie_word_embeddings' to false if that is meant"
    )
    return replace(spec, tie_word_embeddings=False), tensors


def _equal(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    if 0 in left.shape or not left.shape:
        return True
    step = max(1, _BLOCK_ELEMENTS // max(1, int(np.prod(left.shape[1:]))))
    rows = left.shape[0]
    ranges = ((start, min(start + step, rows)) for start in range(0, rows, step))
    return all(np.array_equal(left.rows(start, stop), right.rows(start, stop)) for start, stop in ranges)
