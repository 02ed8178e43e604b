"""llama.cpp as an engine of `bench_embed.py`: the server of xllamacpp's wheel, without HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xllamacpp

# The tokens of a batch, which are computed at once, and the most texts of it.
TOKENS, TEXTS = 2048, 64


class LlamaEmbedder:
    """The model's own pooling, and no padding: a batch has the tokens of several texts. Vectors come as JSON."""

    def __init__(self, file: Path, threads: int) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.n_ctx = TEXTS * 256
        params.n_parallel = TEXTS
        params.n_batch = params.n_ubatch = TOKENS
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        params.warmup = params.ui = False
        params.verbosity = 0
        self._server = xllamacpp.Server(params)

    def __call__(self, texts: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        answer = self._server.handle_embeddings({"input": [list(text) for text in texts]})
        assert "data" in answer, answer
        rows = sorted(answer["data"], key=lambda each: int(each["index"]))
        return [np.array(each["embedding"], np.float32) for each in rows]
