"""Embeddings of the local executor."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_source import FakeSource, executor, text_model
from local_requests import CALL, chat, complete, run

from nearfar.compiler.errors import RequestError
from nearfar.compiler.ir.spec import EmbeddingSpec
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.schema.embeddings import EmbeddingRequest


def embedding_model(folder: Path, *, normalize: bool) -> LocalExecutor:
    model = text_model(folder, embedding=EmbeddingSpec(pooling="last_token", normalize=normalize, size=3))
    return LocalExecutor(FakeSource(""), model)


def test_embeddings_are_cut_and_then_scaled_if_the_model_requires_it(tmp_path: Path) -> None:
    def vectors(local: LocalExecutor, **given: Any) -> list[Any]:
        answer = run(local.embed(EmbeddingRequest.model_validate({"model": "fake", **given}), CALL))
        assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
        return [answer.usage.prompt_tokens, *(entry.embedding for entry in answer.data)]

    scaled, plain = embedding_model(tmp_path, normalize=True), embedding_model(tmp_path, normalize=False)
    assert vectors(plain, input=["ab", "c"]) == [3, [3.0, 4.0, 2.0], [3.0, 4.0, 1.0]]
    assert vectors(scaled, input=[97, 98], dimensions=2) == [2, pytest.approx([0.6, 0.8])]
    _, encoded = vectors(plain, input="ab", encoding_format="base64", dimensions=1)
    assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == [3.0]
    for given, param in (
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
    ):
        with pytest.raises(RequestError) as error:
            vectors(plain, **given)
        assert error.value.details["param"] == param


def test_a_model_does_what_it_is_for_and_nothing_else(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "x")
    with pytest.raises(RequestError, match="makes no embeddings"):
        run(local.embed(EmbeddingRequest(model="fake", input="a"), CALL))
    embedding = embedding_model(tmp_path, normalize=True)
    for ask in (lambda: chat(embedding), lambda: complete(embedding, prompt="a")):
        with pytest.raises(RequestError, match="generates no text"):
            ask()
