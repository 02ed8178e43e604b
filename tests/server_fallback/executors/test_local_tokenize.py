"""Texts and chats that the local executor tokenizes and detokenizes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_source import executor
from local_requests import HI, run

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.schema.tokenize import DetokenizeRequest, TokenizeRequest


def test_texts_and_chats_are_tokenized_and_back(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "x")

    def tokenize(**given: Any) -> list[int]:
        answer = run(local.tokenize(TokenizeRequest.model_validate({"model": "fake", **given})))
        assert (answer.count, answer.max_model_len) == (len(answer.tokens), 4096)
        return answer.tokens

    assert tokenize(prompt="hé</s>", split_special_tokens=False) == [104, 0xC3, 0xA9, 257]
    assert tokenize(prompt="hé</s>") == [104, 0xC3, 0xA9, *b"</s>"]
    assert tokenize(prompt="") == []
    assert bytes(tokenize(messages=HI)) == b"[user]hi[assistant]"
    for given in ({}, {"prompt": "a", "messages": HI}):
        with pytest.raises(RequestError, match="exactly one of prompt and messages"):
            tokenize(**given)
    assert run(local.detokenize(DetokenizeRequest(model="fake", tokens=[104, 257, 259]))).prompt == "h</s>"
    with pytest.raises(RequestError, match="260"):
        run(local.detokenize(DetokenizeRequest(model="fake", tokens=[260])))


def test_a_long_prompt_leaves_the_event_loop_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local, _ = executor(tmp_path, "x")
    works: list[Callable[..., Any]] = []
    submit = ThreadPoolExecutor.submit

    def counted(pool: ThreadPoolExecutor, work: Callable[..., Any], *args: Any) -> Any:
        works.append(work)
        return submit(pool, work, *args)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
    run(local.tokenize(TokenizeRequest(model="fake", prompt="a" * 100)))
    assert works == []
    run(local.tokenize(TokenizeRequest(model="fake", prompt="a" * 20_000)))
    assert len(works) == 1
