"""Compares config.json with a checkpoint's tensors: refuses impossible sizes early, and decides which head is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..arch import DRAFTING
from ..arch.draft_heads import HEADS
from ..ir.spec import ModelSpec
from ..runtime.errors import CheckpointError
from .checkpoint import StoredMatrix, Tensor
from .safetensors_file import SafetensorsTensor

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LAYER = re.compile(r"(?:(?:model|encoder|transformer)\.)?layers?\.(\d{1,9})\.")
# A layer that is computed many times.
_REPEATED = re.compile(r"encoder\.albert_layer_groups\.")
_HEAD_LAYER = re.compile(rf"{re.escape(HEADS)}layers\.(\d{{1,9}})\.")
# An embedding and a head that the heads do not share with the model.
DEDICATED = frozenset(f"{HEADS}{name}.weight" for name in ("embed_tokens", "lm_head"))
# The number of elements of each of two tensors that are in memory at once.
_BLOCK_ELEMENTS = 4 << 20


def require_sizes(where: Path, spec: ModelSpec, tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError for a size that no tensor has. Structures built from the spec are then never larger than
    the files.
    """
    layers = {int(match[1]) for name in tensors if (match := _LAYER.match(name))}
    if spec.num_layers > len(layers) and not any(map(_REPEATED.match, tensors)):
        raise CheckpointError(
            f"{where}: 'num_hidden_layers' is {spec.num_layers}, but the weights have {len(layers)} "
            "layers; the weights belong to "
            "another model, or a file was not downloaded",
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
                f"{where}: {name} is {size}, but the largest side of any tensor is {largest}; the "
                "weights belong to another model, or a file was not downloaded",
                key=name,
            )


def choose_head(
    path: Path, spec: ModelSpec, tensors: Mapping[str, Tensor], notes: list[str]
) -> tuple[ModelSpec, Mapping[str, Tensor]]:
    """Choose the head of a model whose config.json ties it to the embedding, as transformers 5 does.

    If both are stored and differ, they are not tied, and ``notes`` reports it. If only the head is stored, it is the
    embedding too.
    """
    head, embedding = tensors.get(HEAD), tensors.get(EMBEDDING)
    if head is not None and embedding is None:
        assert isinstance(head, SafetensorsTensor | StoredMatrix)
        return spec, {**tensors, EMBEDDING: replace(head, name=EMBEDDING)}
    if head is None or embedding is None or _equal(head, embedding):
        return spec, tensors
    notes.append(
        f"{path}: config.json ties the head to the embedding ('tie_word_embeddings'), but {HEAD} and {EMBEDDING} have "
        "different values; both are used, as in transformers 5; set 'tie_word_embeddings' to false if this is intended"
    )
    return replace(spec, tie_word_embeddings=False), tensors


def choose_draft_heads(
    path: Path, spec: ModelSpec, tensors: Mapping[str, Tensor], notes: list[str], *, makes_text: bool
) -> tuple[ModelSpec, Mapping[str, Tensor]]:
    """The spec with the heads that draft tokens, if they can be compiled and the model ``makes_text``; otherwise
    ``notes`` reports that they are left out.
    """
    own = [name for name in tensors if name.startswith(HEADS)]
    if not own:
        return spec, tensors
    layers = {match[1] for name in own if (match := _HEAD_LAYER.match(name))}
    attends = any(spec.mixer(layer) == "attention" for layer in range(spec.num_layers))
    reasons = (
        ("the model generates no text", not makes_text),
        (f"those of {spec.model_type} are not supported", spec.model_type not in DRAFTING),
        ("an embedding or a head of their own is not supported", not DEDICATED.isdisjoint(own)),
        ("only one layer is supported", layers != {"0"}),
        ("their layer attends, and no layer of the model does", not attends),
    )
    reason = next((text for text, holds in reasons if holds), None)
    if reason is None:
        return replace(spec, draft_layers=1), tensors
    notes.append(f"{path}: the heads that draft tokens are left out ({HEADS}*, {len(own)} tensors): {reason}")
    return spec, {name: tensor for name, tensor in tensors.items() if name not in own}


def _equal(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    if 0 in left.shape or not left.shape:
        return True
    step = max(1, _BLOCK_ELEMENTS // max(1, int(np.prod(left.shape[1:]))))
    rows = left.shape[0]
    ranges = ((start, min(start + step, rows)) for start in range(0, rows, step))
    return all(np.array_equal(left.rows(start, stop), right.rows(start, stop)) for start, stop in ranges)
