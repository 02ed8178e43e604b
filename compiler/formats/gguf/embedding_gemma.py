"""GGUF files of EmbeddingGemma: Gemma 3 whose tokens see those after them, and two matrices behind the pooling (the
graph of gemma-embedding in src/models/ of github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...ir.spec import ModelSpec
from ...ir.tasks import DenseSpec, EmbeddingSpec
from .container import Container
from .decoders import gemma3
from .encoders import read_embedding
from .metadata import Metadata

# The matrices behind the pooling, and the names of their modules in a folder of sentence-transformers.
DENSE = {"dense_2": "2_Dense.linear", "dense_3": "3_Dense.linear"}


def embedding_gemma(metadata: Metadata, container: Container) -> dict[str, Any]:
    for file in DENSE:
        matrix = container.tensors.get(f"{file}.weight")
        outputs, inputs = (0, 0) if matrix is None else matrix.shape
        metadata.expect(f"{file}_feat_in", inputs)
        metadata.expect(f"{file}_feat_out", outputs)
    metadata.ignore("pooling_type")
    return {**gemma3(metadata, container), "use_bidirectional_attention": True}


def read_dense(metadata: Metadata, container: Container, spec: ModelSpec, note: Callable[[str], None]) -> EmbeddingSpec:
    """The pooling, and the matrices behind it. ``note`` receives that a file has none."""
    embedding, size, dense = read_embedding(metadata, spec), spec.hidden_size, []
    for file, module in DENSE.items():
        matrix = container.tensors.get(f"{file}.weight")
        if matrix is None:
            continue
        outputs, inputs = matrix.shape
        if inputs != size:
            raise metadata.corrupt(f"tensor {matrix.name!r} has {inputs} columns, but what it reads has {size}")
        dense.append(DenseSpec(module.partition(".")[0], inputs, outputs, bias=False, activation="none"))
        size = outputs
    if not dense:
        note(
            "it has no matrices behind its pooling ('dense_2', 'dense_3'), so its vectors are those of llama.cpp, not "
            "those of the model's folder; convert that with --sentence-transformers-dense-modules, or compile it"
        )
    return replace(embedding, dense=tuple(dense), size=size)
