"""SGLang's servers, and its router, as upstreams: a server that answers in their form."""

from __future__ import annotations

from typing import Any

import pytest
from answers import all_chunks
from fake_openai import FakeOpenAI, Received, Reply
from opened_upstreams import ask, text_of, with_upstream

from nearfar.compiler.runtime.errors import DeviceError, RequestError, Unavailable
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.sglang import ROUTING_KEY, conversation_key, routing_headers
from nearfar.server_fallback.executors.upstream_executor import UpstreamExecutor
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.rerank import RerankRequest
from nearfar.server_fallback.schema.score import ScoreRequest
from nearfar.server_fallback.schema.tokenize import DetokenizeRequest

LONG = " Answer in detail." * 60


def chunk(content: str | None = None, *, reasoning: str | None = None, end: str | None = None, **more: Any) -> Any:
    """As SGLang writes it: null where nothing is."""
    delta = {"reasoning_content": reasoning, **({} if content is None else {"content": content})}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end, "matched_stop": None, **more}
    return {"id": "a", "object": "chat.completion.chunk", "created": 5, "model": "there", "choices": [choice]}


USAGE = {
    "id": "a", "object": "chat.completion.chunk", "created": 5, "model": "there", "choices": [],
    "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None,
              "reasoning_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 1}},
}  # fmt: skip
ANSWER = [chunk(""), chunk(reasoning="Hm"), chunk("Yes"), chunk(end="stop", matched_stop="\n"), USAGE]


class SGLang(FakeOpenAI):
    """``info`` is what /server_info reports; None for a router without this route."""

    def __init__(self, info: dict[str, Any] | None = None, *, chunks: list[Any] = ANSWER) -> None:
        self.info, self.chunks = info, chunks
        super().__init__(self._reply)

    def _reply(self, received: Received) -> Reply:
        if received.path == "/server_info":
            return Reply(404, {"detail": "Not Found"}) if self.info is None else Reply(value=self.info)
        if received.path == "/v1/rerank":
            used = {"meta_info": {"prompt_tokens": 4}}
            return Reply(value=[{"score": 0.9, "index": 1, **used}, {"score": 0.1, "index": 0, **used}])
        if received.path == "/detokenize":
            return Reply(value={"text": "<s>hi"})
        return Reply(chunks=self.chunks)

    @property
    def generated(self) -> list[Received]:
        return [each for each in self.received if each.path.startswith("/v1/")]


def chat(*turns: str, **options: Any) -> ChatCompletionRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": turn} for index, turn in enumerate(turns)]
    return ChatCompletionRequest.model_validate({"model": "ours", "messages": messages, **options})


def test_an_answer_has_its_reasoning_stop_string_and_usage() -> None:
    server = SGLang()

    async def check(executor: UpstreamExecutor) -> None:
        chunks = await ask(executor)
        assert text_of(chunks) == "Yes"
        assert "".join(choice.delta.reasoning_content or "" for each in chunks for choice in each.choices) == "Hm"
        assert [choice.stop_reason for each in chunks for choice in each.choices][-1] == "\n"
        usage = chunks[-1].usage
        assert usage is not None
        assert usage.completion_tokens_details is not None
        assert (usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens) == (2, 1)

    with_upstream(check, server, dialect="sglang")
    assert server.generated[0].body is not None
    assert "priority" not in server.generated[0].body


def test_the_reasoning_and_the_content_of_one_token_are_no_two_tokens() -> None:
    server = SGLang(chunks=[chunk(reasoning="Hm"), chunk("Yes"), chunk(end="length"), USAGE])

    async def check(executor: UpstreamExecutor) -> None:
        assert text_of(await ask(executor, question=chat("hi", max_tokens=1))) == "Yes"

    with_upstream(check, server, dialect="sglang")


def test_an_answer_that_its_server_breaks_off_is_not_complete() -> None:
    server = SGLang(chunks=[chunk("Ye"), chunk(end="abort"), USAGE])

    async def check(executor: UpstreamExecutor) -> None:
        with pytest.raises(Unavailable, match="broke off the answer"):
            await ask(executor)

    with_upstream(check, server, dialect="sglang")


@pytest.mark.parametrize(
    ("info", "sent"),
    [
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": False}, 2),
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}, -2),
        ({"enable_priority_scheduling": False}, None),
        (None, None),
    ],
)
def test_priorities_are_sent_in_the_order_that_the_server_reports(
    info: dict[str, Any] | None, sent: int | None
) -> None:
    server = SGLang(info)

    async def check(executor: UpstreamExecutor) -> None:
        await ask(executor, Call("r", priority=2))

    with_upstream(check, server, dialect="sglang")
    assert (server.generated[0].body or {}).get("priority") == sent


def test_turns_of_a_conversation_have_one_routing_key_and_go_to_one_worker() -> None:
    workers = [SGLang(), SGLang()]
    first, second = ("When does it leave?" + LONG,), ("Where is my bag?" + LONG,)

    async def check(executor: UpstreamExecutor) -> None:
        for turns in (first, second, (*first, "At 9.", "And back?"), (*second, "There.", "Thanks")):
            await ask(executor, question=chat(*turns))

    with_upstream(check, *workers, dialect="sglang")
    keys = [[received.headers[ROUTING_KEY] for received in worker.generated] for worker in workers]
    assert sorted(map(len, keys)) == [2, 2]
    assert [len(set(each)) for each in keys] == [1, 1]
    assert keys[0][0] != keys[1][0]


def test_a_client_may_name_its_conversation() -> None:
    keyed = conversation_key(chat("a", prompt_cache_key="k"))
    assert keyed == conversation_key(chat("b", prompt_cache_key="k")) != conversation_key(chat("b"))
    # To a server that must not recognise its clients, only what it can read itself is named.
    assert conversation_key(chat("a", prompt_cache_key="k"), named=False) == conversation_key(chat("a"))
    given = {ROUTING_KEY: "conv-1_t2", "traceparent": "t"}
    assert routing_headers(chat("a"), given) == given
    assert routing_headers(chat("a"), given, named=False) == {**given, ROUTING_KEY: conversation_key(chat("a"))}
    # Its router ignores longer ones.
    assert routing_headers(chat("a"), {ROUTING_KEY: "k" * 129}) == {ROUTING_KEY: conversation_key(chat("a"))}
    ids, text = (CompletionRequest(model="m", prompt=each) for each in ([[1, 2]], "[[1, 2]]"))
    assert len({conversation_key(ids), conversation_key(CompletionRequest(model="m", prompt="a"))}) == 2
    assert conversation_key(ids) == conversation_key(text)


def test_other_routes_are_translated_or_refused() -> None:
    server = SGLang()
    documents: Any = ["a", {"text": "b", "id": 7}]

    async def check(executor: UpstreamExecutor) -> None:
        request = RerankRequest(model="ours", query="q", documents=documents, top_n=0, return_documents=True)
        ranked = await executor.rerank(request, Call("r"))
        assert [(each.index, each.relevance_score, each.document) for each in ranked.results] == [
            (1, 0.9, {"text": "b", "id": 7}), (0, 0.1, {"text": "a"}),
        ]  # fmt: skip
        assert ranked.usage.total_tokens == 8
        assert server.generated[0].body == {
            "model": "there", "query": "q", "documents": ["a", "b"], "return_documents": False,
        }  # fmt: skip
        assert (await executor.detokenize(DetokenizeRequest(model="ours", tokens=[1, 2]))).prompt == "<s>hi"
        with pytest.raises(RequestError, match="max_tokens_per_doc"):
            await executor.rerank(request.model_copy(update={"max_tokens_per_doc": 3}), Call("r"))
        with pytest.raises(RequestError, match="use /v1/rerank"):
            await executor.score(ScoreRequest(model="ours", text_1="a", text_2="b"), Call("r"))

    with_upstream(check, server, dialect="sglang")


def test_another_servers_list_is_no_answer() -> None:
    async def check(executor: UpstreamExecutor) -> None:
        with pytest.raises(DeviceError, match="not a JSON object"):
            await executor.rerank(RerankRequest(model="ours", query="q", documents=["a"]), Call("r"))
        assert text_of(await all_chunks(executor, chat("hi"), Call("r"))) == "Yes"

    with_upstream(check, SGLang(), dialect="vllm")
