"""A checkpoint of an embedding model as the reference: its vectors in float32, without a bundle, with the numpy
functions of `ir/ops/`. Weights are read from the checkpoint's files a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..formats import Checkpoint
from ..ir.graph import Parameter
from ..pipeline.graphs import graphs_of
from ..pipeline.weights import check_tensors, read_rows
from ..quant.base import FloatArray
from ..runtime.encoder_batch import make_text_batch
from ..runtime.encoding import Text, batches
from ..runtime.errors import RequestError
from ..runtime.graph_walk import Execution, walk

# Tokens and texts per walk over the weights.
TOKENS_AT_ONCE, TEXTS_AT_ONCE = 2048, 256


class VectorReference:
    """For texts of up to ``context`` tokens. Raises CheckpointError for tensors that do not fit, RequestError for a
    model that makes no embeddings of complete texts.
    """

    def __init__(self, checkpoint: Checkpoint, context: int) -> None:
        if checkpoint.embedding is None:
            raise RequestError(f"{checkpoint.path}: makes no embeddings; give the checkpoint of an embedding model")
        (self._graph,) = graphs_of(checkpoint, context).values()
        if "seq_starts" not in self._graph.inputs or "page_ids" in self._graph.inputs:
            raise RequestError(
                f"{checkpoint.path}: its layers need pages of keys and values or states, and quality compares complete "
                "texts"
            )
        check_tensors(checkpoint, self._graph.parameters)
        self.checkpoint = checkpoint

    def vectors(self, texts: Sequence[Sequence[int]], progress: Callable[[int], None] = lambda _: None) -> FloatArray:
        """The vectors (n, E) of texts, not scaled. ``progress`` receives the number of finished texts."""
        (output,) = self._graph.outputs.values()
        found: list[FloatArray] = []
        for batch in batches([Text(text) for text in texts], TOKENS_AT_ONCE, TEXTS_AT_ONCE):
            made = make_text_batch([text.token_ids for text in batch])
            execution = Execution(self._graph, made.arrays(self._graph.inputs), made.dims(0))
            found += walk(self._graph, output, [execution], self._read)
            progress(sum(map(len, found)))
        return np.concatenate(found)

    def _read(self, parameter: Parameter, start: int, stop: int) -> FloatArray:
        return read_rows(self.checkpoint, parameter, start, stop)
