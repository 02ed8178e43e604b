"""Long texts in any field of a request: the event loop does not read them, and a text that cannot fit is not encoded at
all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answers import whole
from fake_source import FakeEncoder, executor, text_model

from nearfar.compiler.ir.tasks import EmbeddingSpec
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.encoder_executor import EncoderExecutor
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.long_texts import INLINE_CHARACTERS, LongTexts
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.embeddings import EmbeddingRequest
from nearfar.server_fallback.schema.tokenize import TokenizeRequest

CONTEXT = 4096
# The longest token of the byte tokenizer is <tool>, so more than 6 * 4096 bytes never fit. Shorter texts must be
# encoded.
LONG = "x" * 20_000
TOO_LONG = "x" * 4_000_000
TEMPLATE = (
    "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}{{ m.name }}"
    "{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"
)


class Backend:
    """A tokenizer's backend that records the threads on which it encodes. It lacks `encode` and `decode`, which block
    all other threads.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.threads: list[threading.Thread] = []

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.threads.append(threading.current_thread())
        return self.backend.encode_batch_fast(texts, **options)

    def __getattr__(self, name: str) -> Any:
        if name in ("encode", "encode_batch", "decode"):
            raise AttributeError(f"{name} holds the interpreter's lock, or computes more than is needed")
        return getattr(self.backend, name)


def chat(local: LocalExecutor, **given: Any) -> Coroutine[Any, Any, Any]:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **given}
    return whole(local, ChatCompletionRequest.model_validate(body), Call("test"))


def called(text: str) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": f'{{"a": "{text}"}}'}}
    return [{"role": "assistant", "tool_calls": [call]}]


def tool(text: str, **parameters: Any) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": "f", "description": text, "parameters": {"type": "object", **parameters}},
        }
    ]


def embeddings(local: LocalExecutor | EncoderExecutor, text: str) -> Coroutine[Any, Any, Any]:
    return local.embed(EmbeddingRequest.model_validate({"model": "fake", "input": [text]}), Call("test"))


REQUESTS: dict[str, Callable[[Any, str], Coroutine[Any, Any, Any]]] = {
    "message": lambda local, text: chat(local, messages=[{"role": "user", "content": text}]),
    "part": lambda local, text: chat(local, messages=[{"role": "user", "content": [{"type": "text", "text": text}]}]),
    "name": lambda local, text: chat(local, messages=[{"role": "user", "name": text, "content": ""}]),
    "tool description": lambda local, text: chat(local, tools=tool(text)),
    "tool parameters": lambda local, text: chat(local, tools=tool("", properties={text: {"type": "string"}})),
    "call arguments": lambda local, text: chat(local, messages=called(text)),
    "continued message": lambda local, text: chat(
        local,
        continue_final_message=True,
        messages=[{"role": "user", "content": ""}, {"role": "assistant", "content": text}],
    ),
    "completion": lambda local, text: whole(
        local, CompletionRequest.model_validate({"model": "fake", "prompt": text, "max_tokens": 0}), Call("test")
    ),
    "embedding": embeddings,
}
CAN_TOKENIZE: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": LONG},
    "messages": {"messages": [{"role": "user", "content": LONG}]},
    "tools": {"messages": [{"role": "user", "content": ""}], "tools": tool(LONG)},
}


def local_of(folder: Path, field: str) -> tuple[Any, Backend]:
    local: LocalExecutor | EncoderExecutor
    if field == "embedding":
        local = EncoderExecutor(
            FakeEncoder(), text_model(folder, None, EmbeddingSpec("last_token", normalize=False, size=3))
        )
        tokenizer = local.model.tokenizer
    else:
        local, _ = executor(folder, "", template='{# "parameters" #}' + TEMPLATE)
        tokenizer = local._model.tokenizer
    tokenizer.prepare()
    backend = Backend(tokenizer._backend)
    tokenizer._backend = backend
    return local, backend


@pytest.mark.parametrize("field", REQUESTS)
def test_a_long_text_is_encoded_off_the_event_loop_wherever_it_stands(field: str, tmp_path: Path) -> None:
    local, backend = local_of(tmp_path, field)
    with pytest.raises(
        RequestError, match=r"This model's maximum context length is 4096 tokens\. However, .* has 2\d{4} tokens"
    ):
        asyncio.run(REQUESTS[field](local, LONG))
    assert backend.threads
    assert threading.main_thread() not in backend.threads


@pytest.mark.parametrize("field", REQUESTS)
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(field: str, tmp_path: Path) -> None:
    local, backend = local_of(tmp_path, field)
    with pytest.raises(
        RequestError, match=r"maximum context length is 4096 tokens\. However, .* has at least 666\d{3} tokens"
    ) as caught:
        asyncio.run(REQUESTS[field](local, TOO_LONG))
    assert caught.value.details["code"] == "context_length_exceeded"
    assert backend.threads == []


class NeverRendered:
    """A chat template's process that nothing reaches."""

    async def render(self, *_: Any) -> str:
        raise AssertionError("a chat that cannot fit was rendered")

    def close(self) -> None:
        pass


def test_a_chat_that_cannot_fit_is_refused_before_its_template_is_rendered(tmp_path: Path) -> None:
    local, _ = local_of(tmp_path, "message")
    local._workers = replace(local._workers, template=NeverRendered())
    user, system = ({"role": role, "content": "x" * 30_000} for role in ("user", "system"))
    for messages in (
        [user],
        [system, {"role": "user", "content": "hi"}],
        [{"role": "user", "content": "é" * 8000}] * 2,
    ):
        with pytest.raises(RequestError, match=r"However, messages has at least \d{4} tokens") as caught:
            asyncio.run(chat(local, messages=messages))
        assert caught.value.details["code"] == "context_length_exceeded"
    # A template may leave out what an assistant said, and white space around a message.
    for messages in ([{"role": "assistant", "content": "x" * 30_000}], [{"role": "user", "content": " " * 30_000}]):
        with pytest.raises(AssertionError, match="was rendered"):
            asyncio.run(chat(local, messages=messages))


@pytest.mark.parametrize("given", CAN_TOKENIZE.values(), ids=CAN_TOKENIZE)
def test_tokenize_processes_texts_beyond_the_context_off_the_event_loop(given: dict[str, Any], tmp_path: Path) -> None:
    local, backend = local_of(tmp_path, "message")
    answer = asyncio.run(local.tokenize(TokenizeRequest.model_validate({"model": "fake", **given})))
    assert answer.count >= len(LONG) > CONTEXT
    assert backend.threads
    assert threading.main_thread() not in backend.threads


def test_the_first_text_that_is_too_long_is_refused_before_the_others_are_encoded(tmp_path: Path) -> None:
    local, backend = local_of(tmp_path, "embedding")
    request = EmbeddingRequest.model_validate({"model": "fake", "input": ["hi", *[LONG] * 100]})
    with pytest.raises(RequestError, match=r"However, input\[1\] has 2\d{4} tokens"):
        asyncio.run(local.embed(request, Call("test")))
    assert len(backend.threads) == 2


class Works:
    """Work that ends when it is allowed to, on the threads of `LongTexts`."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.may_end = threading.Event()

    def named(self, name: str) -> Callable[[], str]:
        def work() -> str:
            self.started.append(name)
            assert self.may_end.wait(60)
            return name

        return work

    async def until_started(self, count: int) -> None:
        while len(self.started) < count:
            await asyncio.sleep(0.001)


LONG_TEXT = "x" * (INLINE_CHARACTERS + 1)


def test_one_long_text_of_a_client_is_read_at_a_time_beside_those_of_others() -> None:
    async def run() -> list[str]:
        texts, works = LongTexts(threads=2), Works()
        mine = [asyncio.create_task(texts.run(LONG_TEXT, "a", works.named(f"a{index}"))) for index in range(3)]
        await works.until_started(1)
        other = asyncio.create_task(texts.run(LONG_TEXT, "b", works.named("b")))
        await works.until_started(2)
        assert works.started == ["a0", "b"]
        assert await texts.run("short", "a", lambda: "short") == "short"
        works.may_end.set()
        assert await asyncio.gather(*mine, other) == ["a0", "a1", "a2", "b"]
        assert not texts._turns
        return works.started

    assert asyncio.run(run()) == ["a0", "b", "a1", "a2"]


def test_a_client_that_hangs_up_has_its_next_turn_when_the_thread_is_free() -> None:
    async def run() -> None:
        texts, works = LongTexts(threads=2), Works()
        first, second = (asyncio.create_task(texts.run(LONG_TEXT, "a", works.named(name))) for name in ("1", "2"))
        await works.until_started(1)
        first.cancel()
        for _ in range(100):
            await asyncio.sleep(0)
        assert (works.started, first.done()) == (["1"], False)
        second.cancel()
        works.may_end.set()
        ended = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(each) for each in ended] == [asyncio.CancelledError] * 2
        assert works.started == ["1"]
        assert not texts._turns
        with pytest.raises(ZeroDivisionError):
            await texts.run(LONG_TEXT, "a", lambda: 1 // 0)

    asyncio.run(run())
