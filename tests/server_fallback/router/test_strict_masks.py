"""Strict masks: of a request with private texts in any of its fields, far receives exactly what the route shows."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from fake_openai import Reply, running, text_chunks
from hybrid_sides import FAR_USAGE, QUESTION, FakeFar, FakeNear, outcome, policy, run
from mask_corpus import LEAST, PATTERN_MASKS, cases
from recording_proxy import recording_proxy
from test_hybrid_masks import EMAIL, SECRET, Names, rules

from nearfar.compiler.runtime.errors import NearfarError, RequestError
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.router.hybrid import Hybrid, read_request
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.schema.common import MaskedText
from nearfar.server_fallback.schema.fold import ChatFold
from nearfar.server_fallback.text.output import folded

ACCOUNT = 12_345_678_901
MASKS = {
    "patterns": [{"kind": "EMAIL", "pattern": EMAIL}, {"kind": "ACCOUNT", "pattern": r"\b[0-9]{11,}\b"}],
    "entities": [{"label": "PER", "kind": "PERSON"}],
    "strict": True,
}
# Nobody but far answers, so a request that may not leave fails.
STRICT = policy("far-only", private={"labels": [], "media": "far", "masks": MASKS})
# What the router itself adds to each request.
OURS = {"model": "big", "stream": True, "stream_options": {"include_usage": True}}
HEADERS = {"host", "accept", "accept-encoding", "connection", "user-agent", "content-length", "content-type"}
PRIVATE = re.compile(rb"anna|lee\.org|12345678901|Bob", re.IGNORECASE)
PNG = "data:image/png;base64,iVBORw0KGgo="


def call(name: str = "f", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def called(*calls: dict[str, Any], **result: Any) -> dict[str, Any]:
    answer = {"role": "tool", "tool_call_id": "c", "content": "ok", **result}
    return {"messages": [*QUESTION, {"role": "assistant", "tool_calls": list(calls or [call()])}, answer]}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **more}]}


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, **function}}]}


def shape(**schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}, **schema}}}


# Each field of the API with a private text in it: None if it is masked or left out and the rest is sent, else the path
# of the field that is named. "" is a request that is refused before anything is decided.
PLACES: dict[str, tuple[dict[str, Any], str | None]] = {
    # A receipt of far covers what far received.
    "content": (user(f"I am {SECRET}") | {"receipt": True, "return_token_ids": True}, None),
    "a name that a model finds": (user("Bob is here"), None),
    "parts": (user([{"type": "text", "text": SECRET}]), None),
    "system": ({"messages": [{"role": "system", "content": SECRET}, *QUESTION]}, None),
    "prefill": (
        {"messages": [*QUESTION, {"role": "assistant", "content": SECRET}], "continue_final_message": True},
        None,
    ),
    "reasoning": ({"messages": [{"role": "assistant", "content": "x", "reasoning_content": SECRET}, *QUESTION]}, None),
    "refusal": ({"messages": [{"role": "assistant", "content": "x", "refusal": SECRET}, *QUESTION]}, None),
    "arguments": (called(call(arguments=json.dumps({"to": SECRET, "n": ACCOUNT}))), None),
    "JSON keys": (called(call(arguments=json.dumps({SECRET: {"Bob": 1}}))), None),
    "a cut argument": (called(call(arguments=f'{{"to": "{SECRET}')), None),
    "a number as an exponent": (called(call(arguments='{"n": 1.2345678901e10}')), None),
    "a result": (called(content=SECRET), None),
    "a result in JSON": (called(content=json.dumps([{"name": "Bob", "account": ACCOUNT}])), None),
    "an id of a call": (called(call(id=SECRET), tool_call_id=SECRET), None),
    "annotations": (
        {"messages": [{"role": "assistant", "content": "x", "annotations": [{"a": SECRET}]}, *QUESTION]},
        None,
    ),
    "user": ({"user": SECRET}, None),
    "metadata": ({"metadata": {SECRET: SECRET}}, None),
    "safety_identifier": ({"safety_identifier": SECRET}, None),
    "prompt_cache_key": ({"prompt_cache_key": SECRET}, None),
    "prediction": ({"prediction": {"type": "content", "content": SECRET}}, None),
    "service_tier": ({"service_tier": SECRET}, None),
    "priority": ({"priority": ACCOUNT}, None),
    "a called name": (called(call(name="anna@lee.org")), "messages[1].tool_calls[0].function.name"),
    "a name": (user("hi", name=SECRET), "messages[0].name"),
    "a picture": (user([{"type": "image_url", "image_url": {"url": PNG}}]), "messages[0].content[0].type"),
    "a sound": (
        user([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]),
        "messages[0].content[0].type",
    ),
    "a file": (
        user(
            [{"type": "file", "file": {"filename": f"{SECRET}.pdf", "file_data": "data:application/pdf;base64,AA=="}}]
        ),
        "messages[0].content[0].type",
    ),
    "a tool's name": (tool(name="mail_anna@lee.org"), "tools"),
    "a tool's description": (tool(description=f"mail of {SECRET}"), "tools"),
    "a tool's schema": (tool(parameters={"properties": {"Bob": {"type": "string"}}}), "tools"),
    "a tool's number": (tool(parameters={"properties": {"n": {"const": ACCOUNT}}}), "tools"),
    "the tool's choice": (
        {**tool(), "tool_choice": {"type": "function", "function": {"name": SECRET}}},
        "tool_choice",
    ),
    "a schema's description": (shape(description=SECRET), "response_format"),
    "a schema": (shape(schema={"properties": {"a": {"enum": [SECRET]}}}), "response_format"),
    "a regular expression": ({"response_format": {"type": "regex", "pattern": "anna"}}, "response_format.type"),
    "guided_regex": ({"guided_regex": "anna"}, "guided_regex"),
    "guided_choice": ({"guided_choice": ["anna"]}, "guided_choice"),
    "guided_json": ({"guided_json": {"title": "anna"}}, "guided_json"),
    "template variables": ({"chat_template_kwargs": {"name": "anna"}}, "chat_template_kwargs"),
    "stop": ({"stop": [SECRET]}, "stop"),
    "seed": ({"seed": ACCOUNT}, "seed"),
    "max_tokens": ({"max_tokens": ACCOUNT}, "max_tokens"),
    "logit_bias": ({"logit_bias": {str(ACCOUNT): 1}}, "logit_bias"),
    "stop_token_ids": ({"stop_token_ids": [ACCOUNT]}, "stop_token_ids"),
    "an unknown field": ({"anna": SECRET}, ""),
    "an unknown field of a message": (user("hi", anna=SECRET), ""),
}


class Recorded:
    """A hybrid whose far side records each byte that it gets."""

    def __init__(self, hybrid: Hybrid, far: FakeFar, received: bytearray) -> None:
        self.hybrid, self.far, self.received = hybrid, far, received
        # Before this, the server was asked what it serves.
        self._start = len(received)

    async def refused(self, request: Mapping[str, Any]) -> str | None:
        """Send it and check what arrived. Returns the field that an error names, None for an answer."""
        count = len(self.far.generated)
        call = Call(SECRET, headers={"traceparent": f"00-{ACCOUNT:032d}-{'2' * 16}-01", "tracestate": SECRET})
        try:
            read = read_request({"model": "hybrid", "messages": QUESTION, **request})
            answer = await folded(lambda output: self.hybrid.executor.answer(read, call, output), ChatFold())
        except RequestError as error:
            assert len(self.far.generated) == count
            assert not PRIVATE.search(self.received[self._start :])
            return str(error.details["param"]) if "may not leave" in error.message else ""
        assert not PRIVATE.search(self.received[self._start :])
        assert answer.route is not None
        assert answer.route.masked is not None
        self.require_shown({each.path: each.text for each in answer.route.masked})
        return None

    def require_shown(self, shown: Mapping[str, str]) -> None:
        body = self.far.generated[-1]
        messages = dict(leaves(body.pop("messages"), "messages"))
        assert {path: text for path, text in shown.items() if path.startswith("messages[")} == messages
        rest = {path: text for path, text in shown.items() if not path.startswith("messages[")}
        assert {path: text if isinstance(body.get(path), str) else json.loads(text) for path, text in rest.items()} == {
            name: value for name, value in body.items() if name not in OURS
        }
        assert OURS.items() <= body.items()
        headers = self.far.received[-1].headers
        assert {name.lower() for name in headers} <= HEADERS | {"x-request-id"}
        assert re.fullmatch("[0-9a-f-]{36}", headers["x-request-id"])


def leaves(value: Any, path: str) -> list[tuple[str, str]]:
    """The values in a JSON value, each with its path."""
    if isinstance(value, list):
        return [leaf for index, each in enumerate(value) for leaf in leaves(each, f"{path}[{index}]")]
    if isinstance(value, dict):
        return [leaf for key, each in value.items() for leaf in leaves(each, f"{path}.{key}")]
    return [(path, value if isinstance(value, str) else json.dumps(value))]


def strictly(work: Callable[[Recorded], Any], given: Mapping[str, Any] = STRICT) -> None:
    async def recorded() -> None:
        far = FakeFar(lambda _: Reply(chunks=text_chunks("ok", usage=FAR_USAGE)))
        async with running(far):
            with recording_proxy(int(far.url.rpartition(":")[2].partition("/")[0])) as proxy:
                async with await Hybrid.create(far=Far(proxy.url), policy=given, finder=Names()) as hybrid:
                    await work(Recorded(hybrid, far, proxy.received))

    run(recorded())


def test_a_private_text_in_any_field_is_masked_left_out_or_refused_by_name() -> None:
    async def work(recorded: Recorded) -> None:
        found = {name: await recorded.refused(request) for name, (request, _) in PLACES.items()}
        assert found == {name: path for name, (_, path) in PLACES.items()}

    strictly(work)


def test_of_random_requests_arrives_what_is_shown() -> None:
    drawn = random.Random(1)

    async def work(recorded: Recorded) -> None:
        answered = 0
        for _ in range(60):
            fields = [PLACES[name][0] for name in drawn.sample(sorted(PLACES), 3)]
            harmless = {
                "temperature": drawn.randrange(20) / 10,
                "top_p": 0.5,
                "seed": drawn.randrange(1000),
                "stop": "x",
            }
            messages = [each for field in fields for each in field.get("messages", ())] or QUESTION
            request = {**harmless, **{key: value for field in fields for key, value in field.items()}}
            request = {**request, "messages": messages}
            # Only the last message can be continued.
            request.pop("continue_final_message", None)
            answered += await recorded.refused(request) is None
        assert answered > 3

    strictly(work)


@pytest.mark.exhaustive
def test_what_leaves_of_the_corpus_is_what_is_shown() -> None:
    leaking = set[str]()

    async def work(recorded: Recorded) -> None:
        for case in cases():
            start = len(recorded.received)
            await recorded.refused({"messages": case.messages})
            sent = json.dumps(json.loads(body_of(bytes(recorded.received[start:]))), ensure_ascii=False)
            pieces = {part[at : at + LEAST] for part in case.written for at in range(max(len(part) - LEAST, 0) + 1)}
            if any(piece in sent for piece in pieces):
                leaking.add(case.form)

    masks = {**PATTERN_MASKS, "strict": True}
    strictly(work, policy("far-only", private={"labels": [], "media": "far", "masks": masks}))
    assert leaking <= {"spelled"}


def body_of(received: bytes) -> bytes:
    """The JSON body of the last request, "{}" if there is none."""
    return received.rpartition(b"\r\n\r\n")[2] or b"{}"


def test_a_request_without_private_texts_is_shown_too_and_near_answers_what_may_not_leave() -> None:
    far = FakeFar(lambda _: Reply(chunks=text_chunks("far", usage=FAR_USAGE)))

    async def work() -> list[Any]:
        given = rules(masks=MASKS)
        async with (
            running(far),
            await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=given, finder=Names()) as hybrid,
        ):
            return [
                await hybrid.chat.completions.create(messages=QUESTION, **more)
                for more in ({"user": SECRET, "seed": 7}, {"logit_bias": {"1": 1.0}})
            ]

    sent, kept = run(work())
    assert outcome(sent)[1] == "far"
    assert [(each.path, each.text) for each in sent.route.masked] == [
        ("messages[0].role", "user"),
        ("messages[0].content", "hi"),
        ("seed", "7"),
    ]
    assert outcome(kept)[1:3] == ("near", "private")
    assert kept.route.masked is None


def test_near_s_guesses_may_not_be_sent_under_strict_masks() -> None:
    given = policy("prefer-far", speculation={}, private={"masks": {**MASKS, "entities": []}})
    with pytest.raises(RequestError) as caught:
        run(Hybrid.create(near=FakeNear(), far=Far("http://far"), policy=given))
    assert caught.value.details["param"] == "speculation"


def test_a_hand_over_shows_near_s_text() -> None:
    near = FakeNear(text="plain!!", logprobs=(*(-0.1 for _ in "plain"), -9.0, -9.0))
    far = FakeFar(lambda _: Reply(chunks=text_chunks(" far", usage=FAR_USAGE)))
    watch = {"then": "continue", "window_tokens": 2, "min_mean_logprob": -3, "warm": "never"}

    async def work() -> Any:
        given = rules("prefer-near", masks=MASKS, escalation=watch)
        async with (
            running(far),
            await Hybrid.create(near=near, far=Far(far.url), policy=given, finder=Names()) as hybrid,
        ):
            return await hybrid.chat.completions.create(messages=QUESTION)

    answer = run(work())
    assert outcome(answer)[1] == "far"
    assert answer.route.masked[-1].model_dump() == {"path": "answer.text", "text": "plain!"}
    assert far.generated[-1]["messages"][-1] == {"role": "assistant", "content": "plain!"}
    assert not any("/tokenize" in each.path for each in far.received)


def test_near_s_text_does_not_leave_without_the_consent_of_whoever_was_asked_about_the_request() -> None:
    near = FakeNear(text="plain!!", logprobs=(*(-0.1 for _ in "plain"), -9.0, -9.0))
    far = FakeFar(lambda _: Reply(chunks=text_chunks(" far", usage=FAR_USAGE)))
    watch = {"then": "continue", "window_tokens": 2, "min_mean_logprob": -3, "warm": "never"}
    asked = []

    async def confirm(texts: Sequence[MaskedText]) -> bool:
        asked.append(texts)
        return True

    async def work() -> None:
        given = rules("prefer-near", masks={**MASKS, "then": "ask"}, escalation=watch)
        async with (
            running(far),
            await Hybrid.create(near=near, far=Far(far.url), policy=given, finder=Names(), confirm=confirm) as hybrid,
        ):
            with suppress(NearfarError):
                await hybrid.chat.completions.create(messages=QUESTION)

    run(work())
    assert (len(asked), far.generated) == (1, [])
