"""The vector test of a bundle that makes embeddings or scores: texts, and the expected elements of the results; and the
test of a tower.

As in `self_test.py`, the reference is the architecture's graph before any pass, computed with the bundle's own packed
weights with float32 and with float16 activations. The distance between the two is the size of rounding: the tolerance
of float16 is four times that distance, that of float32 at least `FLOAT32_LEAST`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..bundle.entries import FeatureTestEntry, VectorTestEntry, VectorTestRow
from ..bundle.manifest import Manifest
from ..quant.base import FloatArray
from ..runtime.audio.frame_rows import with_test_frames
from ..runtime.batch import Array, Chunk, make_batch
from ..runtime.encoder_batch import make_text_batch
from ..runtime.errors import CheckpointError
from ..runtime.feature_test import test_arrays
from ..runtime.graph_walk import Execution, walk
from ..runtime.text.tokenizer import Tokenizer
from ..runtime.vector_test import lengths_of_differences
from .self_test import (
    FLOAT16_LEAST,
    FLOAT16_MOST,
    FLOAT32_LEAST,
    FLOAT32_MOST,
    INT8,
    LENGTH,
    SENTENCE,
    Reference,
    coarse_matrices,
    packed_rows,
    require_int8,
    rounded,
    rounded_up,
    spread,
)

# The most rows of the output, and elements of each, that are compared.
ROWS = 8
ELEMENTS = 64


def make_vector_test(reference: Reference, progress: Callable[[int, int], None] = lambda *_: None) -> VectorTestEntry:
    """``progress`` receives the number of computed nodes and of all nodes.

    Raises CheckpointError for a model whose results are not finite, with float32 activations, or with float16 if the
    bundle offers no other; and RequestError for int8 activations that change them by more than their tolerance.
    """
    manifest = reference.bundle.manifest
    texts = test_texts(manifest, Tokenizer(reference.bundle.tokenizer_files()))
    found = reference_results(reference, texts, progress)
    rows, tolerances = expected_rows(reference, *found)
    return VectorTestEntry(texts=texts, rows=rows, tolerances=tolerances)


def make_feature_test(
    reference: Reference, plan: str, progress: Callable[[int, int], None] = lambda *_: None
) -> FeatureTestEntry:
    """As `make_vector_test`, of the features that a tower makes. The reference's graph is that of the tower, whose plan
    is named.
    """
    manifest, graph = reference.bundle.manifest, reference.graph
    arrays, dims = test_arrays(manifest, plan, graph.inputs)
    found = reference_walk(reference, arrays, dims, progress)
    rows, tolerances = expected_rows(reference, *found)
    return FeatureTestEntry(rows=rows, tolerances=tolerances)


def expected_rows(
    reference: Reference, exact: FloatArray, half: FloatArray, coarse: FloatArray | None = None
) -> tuple[list[VectorTestRow], dict[str, float]]:
    """The rows of a test, and its tolerances. ``exact``, ``half`` and ``coarse``: the results with float32, float16 and
    int8 activations.
    """
    manifest = reference.bundle.manifest
    if not np.isfinite(exact).all():
        raise CheckpointError(
            f"{manifest.model}: computes numbers that are not finite; its weights are damaged "
            "(--no-self-test compiles it anyway)"
        )
    offered = {entry.dtype for entry in manifest.activations}
    if offered == {"float16"} and not np.isfinite(half).all():
        raise CheckpointError(
            f"{manifest.model}: its queries, keys or values exceed float16's largest number, 65504; use "
            "--activations float32"
        )
    rows = [expected_row(index, exact[index]) for index in dict.fromkeys(spread(len(exact), min(ROWS, len(exact))))]
    if not any(value for row in rows for value in row.values):
        raise CheckpointError(f"{manifest.model}: computes only zeros; its weights are damaged")
    distance = lengths_of_differences(rows, half).max() if np.isfinite(half).all() else np.inf
    rounds = any(node.op == "fake_quantize" for node in reference.graph.nodes)
    least = INT8 if rounds else FLOAT32_LEAST
    tolerances = {
        "float32": rounded_up(min(max(distance, least), INT8 if rounds else FLOAT32_MOST)),
        "float16": rounded_up(min(max(4 * distance, FLOAT16_LEAST), FLOAT16_MOST)),
        "bfloat16": rounded_up(min(8 * max(4 * distance, FLOAT16_LEAST), FLOAT16_MOST)),
        "int8": INT8,
    }
    if coarse is not None:
        require_int8(manifest.model, "results", lengths_of_differences(rows, coarse).max(), INT8)
    return rows, {dtype: tolerances[dtype] for dtype in sorted(offered)}


def test_texts(manifest: Manifest, tokenizer: Tokenizer) -> list[list[int]]:
    """A sentence, ids spread over the entire vocabulary, and a single id; together at most a context."""
    vocab_size = manifest.spec.vocab_size
    sentence = [token for token in tokenizer.encode(SENTENCE) if token < vocab_size][:LENGTH]
    texts, room = [], manifest.context
    for text in (sentence, spread(vocab_size, LENGTH // 2), [vocab_size // 2]):
        if text[:room]:
            texts.append(text[:room])
        room -= len(texts[-1])
    return texts


def reference_results(
    reference: Reference, texts: list[list[int]], progress: Callable[[int, int], None]
) -> list[FloatArray]:
    """The graph's only output with float32 and with float16 activations, in one walk over the weights; and with int8
    activations, if the bundle offers these.
    """
    manifest, graph = reference.bundle.manifest, reference.graph
    if manifest.paged:
        counts = [manifest.pages_for(len(text)) for text in texts]
        first = np.cumsum([0, *counts])
        chunks = [
            Chunk(text, 0, range(start, start + count), [len(text) - 1], state=(slot, slot))
            for slot, (text, start, count) in enumerate(zip(texts, first[:-1].tolist(), counts, strict=True))
        ]
        batch, num_pages, num_states = make_batch(chunks, manifest.page_size), int(first[-1]), len(texts)
    else:
        batch, num_pages, num_states = make_text_batch(texts), 0, 0
        if manifest.spec.conformer is not None:
            batch = with_test_frames(batch, manifest.spec.conformer)
    return reference_walk(reference, batch.arrays(graph.inputs), batch.dims(num_pages, num_states=num_states), progress)


def reference_walk(
    reference: Reference, arrays: Mapping[str, Array], dims: Mapping[str, int], progress: Callable[[int, int], None]
) -> list[FloatArray]:
    graph, coarse = reference.graph, coarse_matrices(reference)
    executions = [Execution(graph, arrays, dims, activation) for activation in ("float32", "float16")]
    executions += [Execution(graph, arrays, dims, coarse=coarse)] if coarse else []
    (output,) = graph.outputs.values()
    # With float16, values may overflow, which makes the distance infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        found = walk(graph, output, executions, packed_rows(reference), progress)
    return [results.astype(np.float32) for results in found]


def expected_row(row: int, results: FloatArray) -> VectorTestRow:
    """Elements at equal distances, the last one included; they differ from row to row."""
    last = len(results) - 1
    elements = sorted({(index + 7 * row) % len(results) for index in spread(len(results), ELEMENTS)} | {0, last})
    return VectorTestRow(row=row, elements=elements, values=[rounded(float(results[index])) for index in elements])
