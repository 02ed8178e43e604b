"""What quantization costs an embedding model: the cosines between the vectors of the original and of the rounded
weights, for a few texts, computed with numpy in float32 while the model is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

import numpy as np

from ..formats.checkpoint import Checkpoint
from ..ir.graph import Parameter
from ..quant import Quantization
from ..quant.base import FloatArray
from ..runtime.text.tokenizer import Tokenizer
from .vector_quality import unit_rows
from .vector_reference import VectorReference

TEXTS, TOKENS = 8, 48
# With this many bits or more, the loss is small.
ENOUGH_BITS = 8
# Larger models lose less, and computing their vectors twice would take longer than compiling them.
MOST_WEIGHTS = 400_000_000


class RoundedReference(VectorReference):
    """The vectors of weights that are rounded to a format."""

    def __init__(self, checkpoint: Checkpoint, context: int, quantization: Quantization) -> None:
        super().__init__(checkpoint, context)
        self._quantization = quantization

    def _read(self, parameter: Parameter, start: int, stop: int) -> FloatArray:
        rows = super()._read(parameter, start, stop)
        if parameter.columns is None:
            return rows
        return self._quantization.unpack(self._quantization.pack(rows), parameter.columns)


def loss_notes(checkpoint: Checkpoint, quantization: Quantization) -> Iterator[str]:
    """A sentence if the format has few bits and the model is an encoder that makes vectors. Raises QuantizationError
    for weights that it cannot represent.
    """
    has_few_bits = quantization.kind.startswith("q") and int(quantization.kind[1:]) < ENOUGH_BITS
    weights = sum(int(np.prod(tensor.shape)) for tensor in checkpoint.tensors.values())
    if not has_few_bits or checkpoint.embedding is None or checkpoint.spec.causal or weights > MOST_WEIGHTS:
        return
    tokenizer, context = Tokenizer(checkpoint.tokenizer), min(TOKENS, checkpoint.spec.max_position_embeddings)
    texts = [tokenizer.encode_shortened(each, None, context).ids for each in passages()]
    expected = VectorReference(checkpoint, context).vectors(texts)
    found = RoundedReference(checkpoint, context, quantization).vectors(texts)
    cosines = (unit_rows(expected) * unit_rows(found)).sum(axis=1)
    yield (
        f"{checkpoint.path}: with {quantization.name}, the vectors of {len(texts)} texts have a cosine of "
        f"{cosines.mean():.4f} on average with those of the original weights, {cosines.min():.4f} at worst; "
        "--quantization q8f16, or --quality best with as few bits, is closer"
    )


def passages() -> list[str]:
    text = (resources.files("nearfar.compiler.calibration") / "texts" / "passages.txt").read_text(encoding="utf-8")
    return text.strip().split("\n\n")[:TEXTS]
