"""Chats with private texts that far answers without them: the far side records every request."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from fake_openai import Received, Reply, chunk, running, text_chunks
from hybrid_sides import FAR_USAGE, QUESTION, FakeFar, FakeNear, outcome, policy, run

from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.hybrid import Hybrid, read_request
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.router.sides.masker import MAX_CONFIRMED, MaskedChat, Masker, utf16_indices
from nearfar.server_fallback.schema.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from nearfar.server_fallback.schema.common import MaskedText
from nearfar.server_fallback.schema.encoding import EncodingUsage
from nearfar.server_fallback.schema.score import (
    Classification,
    ClassifyRequest,
    ClassifyResponse,
    ScoreResponse,
    SpanClass,
)
from nearfar.server_fallback.text.output import streamed

EMAIL = r"\b[\w.%+-]+@(?:[a-z0-9-]+\.)+[a-z]{2,24}\b"
MASKS = {"patterns": [{"kind": "EMAIL", "pattern": EMAIL}]}
SECRET = "anna@lee.org"
ASKED = [{"role": "user", "content": f"write to {SECRET}, please"}]
SENT = MaskedText(path="messages[0].content", text="write to [EMAIL_1], please")


def rules(mode: str = "prefer-far", masks: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return policy(mode, private={"masks": MASKS if masks is None else masks}, **more)


def far_saying(*texts: str) -> FakeFar:
    return FakeFar(lambda _: Reply(chunks=text_chunks(*texts, usage=FAR_USAGE)))


def sent_to(far: FakeFar) -> str:
    return json.dumps([[each.path, each.headers, each.body] for each in far.received])


async def answered(
    far: FakeFar,
    given: dict[str, Any],
    near: FakeNear | None = None,
    parameters: dict[str, Any] | None = None,
    **options: Any,
) -> ChatCompletion:
    async with (
        running(far),
        await Hybrid.create(near=near or FakeNear(), far=Far(far.url), policy=given, **options) as opened,
    ):
        answer: ChatCompletion = await opened.chat.completions.create(**{"messages": ASKED, **(parameters or {})})
        return answer


def test_far_receives_placeholders_and_its_streamed_answer_has_the_private_texts() -> None:
    far = far_saying("To ", "[EM", "AIL_", "1", "]: see [EMAIL_9] and [")

    async def work() -> list[ChatCompletionChunk]:
        async with running(far), await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=rules()) as opened:
            chunks = await opened.chat.completions.create(messages=ASKED, stream=True)
            return [each async for each in chunks]

    chunks = run(work())
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == f"To {SECRET}: see [EMAIL_9] and ["
    masked = [each.route.masked for each in chunks if each.route is not None]
    assert masked
    assert all(each == [SENT] for each in masked)
    assert far.generated[0]["messages"] == [{"role": "user", "content": SENT.text}]
    assert not re.search("anna|lee", sent_to(far), re.IGNORECASE)


def test_calls_and_reasoning_are_restored_and_later_turns_have_the_same_placeholders() -> None:
    arguments = ['{"to":"[EMA', 'IL_1]","text":"[', 'EMAIL_2]"}']
    deltas = [
        {"reasoning_content": "for [EMAIL"},
        {"reasoning_content": "_1]"},
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "mail", "arguments": ""}}]},
        *({"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in arguments),
    ]
    made = [{**chunk(), "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas] + [
        chunk(finish="tool_calls")
    ]
    replies = iter([Reply(chunks=made), Reply(chunks=text_chunks("sent to [EMAIL_1]", usage=FAR_USAGE))])
    far = FakeFar(lambda _: next(replies))
    tools = [{"type": "function", "function": {"name": "mail", "parameters": {"type": "object"}}}]
    messages = [*ASKED, {"role": "user", "content": 'cc "b"@x.org'}]

    async def work() -> tuple[ChatCompletion, ChatCompletion]:
        async with running(far), await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=rules()) as opened:
            first = await opened.chat.completions.create(messages=messages, tools=tools)
            result = {"role": "tool", "tool_call_id": "c", "content": f"ok: {SECRET}"}
            turn = [*messages, first.choices[0].message, result]
            return first, await opened.chat.completions.create(messages=turn, tools=tools)

    first, second = run(work())
    message = first.choices[0].message
    assert message.reasoning_content == f"for {SECRET}"
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.arguments == f'{{"to":"{SECRET}","text":"[EMAIL_2]"}}'
    assert second.choices[0].message.content == f"sent to {SECRET}"
    later = far.generated[1]["messages"]
    assert later[:2] == far.generated[0]["messages"]
    assert later[-1]["content"] == "ok: [EMAIL_1]"
    assert later[2]["tool_calls"][0]["function"]["arguments"] == '{"to":"[EMAIL_1]","text":"[TEXT_1]"}'
    assert not re.search("anna|lee", sent_to(far), re.IGNORECASE)


PARTS = [{"type": "text", "text": text} for text in ("anna@", "lee.org")]
TOOL = {"type": "function", "function": {"name": "find", "description": f"mail of {SECRET}"}}


@pytest.mark.parametrize(
    "parameters",
    [
        {"messages": [{"role": "user", "content": PARTS}]},
        {"messages": [{"role": "user", "content": part["text"]} for part in PARTS]},
        {"tools": [TOOL]},
        {"user": SECRET},
        {"stop": [SECRET]},
        {"messages": [{"role": "user", "content": "hi", "name": SECRET}]},
        {"labels": ["private"]},
        {"messages": [{**ASKED[0], "labels": ["private"]}]},
        {"logprobs": True},
    ],
)
def test_what_cannot_be_masked_stays_on_the_device(parameters: dict[str, Any]) -> None:
    far = far_saying("far")
    answer = run(answered(far, rules(), parameters=parameters))
    assert outcome(answer)[1:3] == ("near", "private")
    assert answer.route is not None
    assert answer.route.masked is None
    assert far.generated == []
    assert "anna" not in sent_to(far)


class Names:
    """Finds the names Anna and Bob, unless it finds no spans."""

    def __init__(self, *, spans: bool = True, error: Exception | None = None) -> None:
        self.spans, self.error, self.read = spans, error, list[str]()

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse:  # noqa: ARG002
        if self.error is not None:
            raise self.error
        assert isinstance(request.input, list)
        texts = [text for text in request.input if isinstance(text, str)]
        self.read += texts
        data = [self._labelled(index, text) for index, text in enumerate(texts)]
        usage = EncodingUsage(prompt_tokens=1, total_tokens=1)
        return ClassifyResponse(id="c", created=1, model="names", data=data, usage=usage)

    def _labelled(self, index: int, text: str) -> Classification:
        found = [match.span() for match in re.finditer("Anna|Bob", text)]
        spans = [SpanClass(label="PER", start=start, end=end, score=0.9) for start, end in found]
        return Classification(index=index, num_classes=3, tokens=[], spans=spans if self.spans else None)

    async def rerank(self, *_: Any) -> Any:
        raise NotImplementedError

    async def score(self, *_: Any) -> ScoreResponse:
        raise NotImplementedError


ENTITIES = {"entities": [{"label": "PER", "kind": "PERSON"}]}
NAMED = [{"role": "user", "content": "😀 Anna met Bobby today. Then ANNA left."}]


def test_what_a_model_finds_is_masked_everywhere() -> None:
    far, names = far_saying("[PERSON_1] left [person_2]"), Names()
    answer = run(answered(far, rules(masks=ENTITIES), parameters={"messages": NAMED}, finder=names))
    assert outcome(answer)[:2] == ("Anna left Bobby", "far")
    assert answer.route is not None
    assert answer.route.masked is not None
    assert answer.route.masked[0].text == "😀 [PERSON_1] met [PERSON_2] today. Then [PERSON_3] left."
    assert not re.search("anna|bob", sent_to(far), re.IGNORECASE)


def test_a_request_that_the_model_cannot_search_stays_and_a_policy_needs_its_model() -> None:
    far, given = far_saying("far"), rules(masks=ENTITIES)
    for broken in (Names(error=DeviceError("lost")), Names(spans=False)):
        answer = run(answered(far, given, parameters={"messages": NAMED}, finder=broken))
        assert outcome(answer)[1:3] == ("near", "private")
    assert far.generated == []
    for wrong in (given, rules(masks={**MASKS, "then": "ask"})):
        with pytest.raises(RequestError) as caught:
            run(answered(far, wrong))
        assert caught.value.details["code"] == "bad_policy"


def test_with_ask_the_application_sees_what_would_leave() -> None:
    asked: list[Sequence[MaskedText]] = []

    async def confirm(texts: Sequence[MaskedText]) -> bool:
        asked.append(texts)
        return len(asked) > 1

    far = far_saying("[EMAIL_1]")

    async def work() -> list[str]:
        given = rules(masks={**MASKS, "then": "ask"})
        async with (
            running(far),
            await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=given, confirm=confirm) as opened,
        ):
            answers = [await opened.chat.completions.create(messages=ASKED) for _ in range(3)]
            return [outcome(each)[1] for each in answers]

    assert run(work()) == ["near", "far", "far"]
    assert [list(texts) for texts in asked] == [[SENT], [SENT]]
    near = run(answered(far, rules(masks={**MASKS, "then": "near"})))
    assert outcome(near)[1:3] == ("near", "private")


def test_far_continues_near_s_answer_whose_private_texts_are_masked_too() -> None:
    text = f"to {SECRET} and bob@x.org"
    near = FakeNear(text=f"{text}!!", logprobs=(*(-0.1 for _ in text), -9.0, -9.0))
    far = far_saying(" [EMAIL_2] [EMAIL_1]")
    watch = {"then": "continue", "window_tokens": 2, "min_mean_logprob": -3, "warm": "always"}
    answer = run(answered(far, rules("prefer-near", escalation=watch), near=near))
    assert outcome(answer)[:3] == (f"{text}! bob@x.org {SECRET}", "far", "escalated_logprob")
    assert answer.route is not None
    assert answer.route.masked == [SENT, MaskedText(path="answer.text", text="to [EMAIL_1] and [EMAIL_2]!")]
    assert not re.search("anna|lee|bob", sent_to(far), re.IGNORECASE)


def test_ids_and_trace_states_of_clients_do_not_leave() -> None:
    far = far_saying("far")
    trace = f"00-{'1' * 32}-{'2' * 16}-01"

    async def work() -> None:
        async with running(far), await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=rules()) as opened:
            request = read_request({"model": "hybrid", "messages": QUESTION})
            call = Call(SECRET, headers={"traceparent": trace, "tracestate": f"a={SECRET}"})

            async for _ in streamed(lambda output: opened.executor.answer(request, call, output)):
                pass

    run(work())
    assert len(far.generated) == 1
    assert "anna" not in sent_to(far)
    assert far.received[-1].headers["traceparent"] == trace


def test_indices_are_those_of_utf_16() -> None:
    text = "a😀é𝔸b"
    at = utf16_indices(text)
    for index, character in enumerate(text):
        units = text.encode("utf-16-le")[2 * at[index] : 2 * at[index + 1]]
        assert units.decode("utf-16-le") == character


def test_an_answer_of_near_s_alone_reports_nothing() -> None:
    def never(_: Received) -> Reply:
        raise AssertionError("nothing may be sent")

    answer = run(answered(FakeFar(never), rules("prefer-near")))
    assert answer.route is not None
    assert (answer.route.side, answer.route.masked) == ("near", None)


def test_the_application_is_asked_once_about_a_text_and_only_the_last_texts_are_remembered() -> None:
    asked: list[str] = []

    async def confirm(texts: Sequence[MaskedText]) -> bool:
        asked.extend(each.text for each in texts)
        return True

    async def never(*_: object) -> bool:
        return False

    async def work() -> None:
        given = Policy.model_validate_json(json.dumps(rules(masks={**MASKS, "then": "ask"})))
        masker = Masker(given, never, never, confirm=confirm)
        chat = ChatCompletionRequest.model_validate({"model": "m", "messages": QUESTION})
        numbers = [*range(MAX_CONFIRMED + 1), MAX_CONFIRMED, 0]
        for number in numbers:
            assert await masker.may_leave(MaskedChat(chat, texts=[MaskedText(path="", text=str(number))]))
        assert asked == [str(number) for number in (*range(MAX_CONFIRMED + 1), 0)]

    run(work())


def test_citations_of_far_are_restored_with_their_places() -> None:
    def cite(start: int, end: int) -> dict[str, Any]:
        place = {"start_index": start, "end_index": end, "title": "of [EMAIL_1]", "url": "https://x.org/[EMAIL_1]"}
        return {"type": "url_citation", "url_citation": place}

    deltas = [{"content": "\U0001f600 [EMAIL"}, {"content": "_1] by", "annotations": [cite(2, 11)]}]
    deltas += [{"content": " post"}, {"annotations": [cite(12, 14)]}, {"annotations": {"of": "another server"}}]
    made = [{**chunk(), "choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    answer = run(answered(FakeFar(lambda _: Reply(chunks=[*made, chunk(finish="stop")])), rules()))
    message = answer.choices[0].message
    assert message.content == f"\U0001f600 {SECRET} by post"
    assert message.annotations is not None
    places = [each["url_citation"] for each in message.annotations]
    assert [message.content[each["start_index"] : each["end_index"]] for each in places] == [SECRET, "by"]
    assert (places[0]["title"], places[0]["url"]) == (f"of {SECRET}", "https://x.org/[EMAIL_1]")
    # It may be sent back, and is never passed on.
    assert "annotations" not in read_request({"model": "m", "messages": [*ASKED, message]}).messages[1].model_dump()


def test_a_conversation_has_the_same_placeholders_after_a_change_of_sides_and_in_a_new_process() -> None:
    text = "to bob@x.org, not BOB@X.ORG"
    near = FakeNear(text=f"{text}!!", logprobs=(*(-0.1 for _ in text), -9.0, -9.0))
    far = far_saying(" [EMAIL_2]")
    watch = {"then": "continue", "window_tokens": 2, "min_mean_logprob": -3, "warm": "never"}
    first = run(answered(far, rules("prefer-near", escalation=watch), near=near))
    assert outcome(first)[:2] == (f"{text}! bob@x.org", "far")
    later = [*ASKED, first.choices[0].message, {"role": "user", "content": "and carl@x.org"}]
    # Another router, as after a reload.
    far = far_saying("[EMAIL_2] [EMAIL_3] [EMAIL_4]")
    second = run(answered(far, rules(), parameters={"messages": later}))
    assert second.choices[0].message.content == "bob@x.org BOB@X.ORG carl@x.org"
    sent = [each["content"] for each in far.generated[0]["messages"]]
    assert sent == [SENT.text, "to [EMAIL_2], not [EMAIL_3]! [EMAIL_2]", "and [EMAIL_4]"]
