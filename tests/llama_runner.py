"""llama.cpp, from the wheel of xllamacpp, on one thread and with keys and values in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CONTEXT = 256


class LlamaCpp:
    """``embeds``: the file makes vectors."""

    def __init__(self, file: Path, *, embeds: bool = False) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.n_ctx, params.n_parallel, params.embedding = CONTEXT, 1, embeds
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.warmup = params.ui = False
        params.verbosity = 0
        self._server = xllamacpp.Server(params)

    def greedy(self, prompt: Sequence[int] | str, tokens: int) -> list[int]:
        """The likeliest continuation, whatever ends an answer."""
        answer = self._complete(prompt, tokens, verbose=True, return_tokens=True)
        found: list[int] = answer["__verbose"]["tokens"]
        return found

    def logprobs(self, prompt: Sequence[int], vocab_size: int) -> npt.NDArray[np.float64] | None:
        """The logarithms of the next token's probabilities (V,); None if that token has no text."""
        answer = self._complete(prompt, 1, logprobs=vocab_size)
        content = (answer["choices"][0]["logprobs"] or {}).get("content")
        if not content:
            return None
        (first,) = content
        result = np.full(vocab_size, np.nan)
        for each in first["top_logprobs"]:
            result[each["id"]] = each["logprob"]
        return result

    def vector(self, text: Sequence[int] | str) -> npt.NDArray[np.float64]:
        """A text's vector (E,), of length 1."""
        given = text if isinstance(text, str) else list(text)
        answer = self._server.handle_embeddings({"input": [given]})
        assert "data" in answer, answer
        return np.array(answer["data"][0]["embedding"])

    def _complete(self, prompt: Sequence[int] | str, tokens: int, **options: Any) -> dict[str, Any]:
        request = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        answer: dict[str, Any] = self._server.handle_completions({**request, **options})
        assert "choices" in answer, answer
        return answer
