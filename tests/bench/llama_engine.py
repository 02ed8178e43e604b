"""llama.cpp as an engine of `bench_cpu.py`, through llama-cpp-python's C interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

# It logs a lot, to standard output.
SILENT = llama_cpp.llama_log_callback(lambda level, text, user_data: None)  # noqa: ARG005

# Tokens per batch, as in llama-server.
UBATCH = 512


class LlamaEngine:
    def __init__(self, file: Path, sequences: int, context: int, batch: int, threads: int) -> None:
        self._context = open_context(file, sequences, context, batch, threads, unified=True)
        self._vocab_size = vocab_size_of(self._context)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(batch, 0, 1)

    def prepare(self, sequences: int, context: int) -> None:
        llama_cpp.llama_memory_clear(self._memory, True)
        for sequence in range(sequences if context else 0):
            self._decode([sequence], 0, context)

    def step(self, sequences: int, context: int, tokens: int) -> None:
        for sequence in range(sequences):
            llama_cpp.llama_memory_seq_rm(self._memory, sequence, context, -1)
        self._decode(range(sequences), context, tokens)

    def logits(self) -> npt.NDArray[np.float32]:
        """The logits (V,) of the last sequence after the last step."""
        return logits_at(self._context, -1, self._vocab_size)

    def _decode(self, sequences: range | list[int], start: int, tokens: int) -> None:
        batch, index = self._batch, 0
        for sequence in sequences:
            for position in range(start, start + tokens):
                batch.token[index] = (7 * position + 131 * sequence) % 100_000
                batch.pos[index], batch.n_seq_id[index], batch.seq_id[index][0] = position, 1, sequence
                batch.logits[index] = position == start + tokens - 1
                index += 1
        batch.n_tokens = index
        assert llama_cpp.llama_decode(self._context, batch) == 0
        # Waits for computations that are still running.
        assert llama_cpp.llama_get_logits_ith(self._context, -1)


def quantize(source: Path, target: Path, file_type: str) -> None:
    """Write a file of another type, such as "Q4_K_M", as llama.cpp's llama-quantize does."""
    llama_cpp.llama_log_set(SILENT, None)
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    # The source's weights are random, so another rounding does no harm.
    options.allow_requantize = True
    if llama_cpp.llama_model_quantize(bytes(source), bytes(target), options) != 0:
        raise SystemExit(f"llama.cpp could not quantize {source} to {file_type}")


def vocab_size_of(context: Any) -> int:
    return int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(context))))


def logits_at(context: Any, row: int, vocab_size: int) -> npt.NDArray[np.float32]:
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, row), (vocab_size,)).copy()


def open_context(file: Path, sequences: int, context: int, batch: int, threads: int, *, unified: bool) -> Any:
    """Open a model with space for ``context`` tokens of each sequence; with ``unified``, all sequences share one
    buffer.
    """
    llama_cpp.llama_log_set(SILENT, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
    assert model, file
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max = sequences * context, sequences
    settings.n_batch, settings.n_ubatch = batch, min(batch, UBATCH)
    settings.n_threads = settings.n_threads_batch = threads
    settings.kv_unified = unified
    opened = llama_cpp.llama_init_from_model(model, settings)
    assert opened
    return opened
