"""Hybrid as its users see it: which side answers, the fields of the answer, and the requests to each side."""

from __future__ import annotations

import asyncio

import pytest
from fake_openai import Reply
from hybrid_sides import ABOUT, QUESTION, FakeFar, FakeNear, ask, hybrid, outcome, policy, run

from nearfar.compiler.runtime.errors import RequestError, Unavailable
from nearfar.server_fallback.router.decision.budget import Spent
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.schema.chat import ChatCompletionChunk


def test_an_answer_reports_its_side_and_reason() -> None:
    near, far = FakeNear(), FakeFar()
    assert outcome(ask(near, far, policy("prefer-near"))) == ("near says", "near", "prefer", None)
    assert outcome(ask(near, far, policy("prefer-far"))) == ("far says", "far", "prefer", None)
    assert outcome(ask(near, far, policy("prefer-near"), pin="far")) == ("far says", "far", "pinned", None)
    assert outcome(ask(near, None, policy("near-only"))) == ("near says", "near", "mode", None)
    assert outcome(ask(None, far, policy("far-only"))) == ("far says", "far", "mode", None)
    assert near.closed


def test_a_stream_has_the_route_on_its_first_and_its_last_chunks() -> None:
    async def work() -> list[ChatCompletionChunk]:
        async with hybrid(FakeNear("abc"), FakeFar(), policy()) as opened:
            return [chunk async for chunk in await opened.chat.completions.create(messages=QUESTION, stream=True)]

    chunks = run(work())
    assert [chunk.route is not None for chunk in chunks] == [True, False, False, False, True, True]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


def test_a_request_goes_to_a_side_that_knows_its_language() -> None:
    far, rules = FakeFar(), policy("prefer-near", languages={"near": ["en", "fr"]})
    assert outcome(ask(FakeNear(), far, rules, language="fr"))[1:3] == ("near", "prefer")
    assert outcome(ask(FakeNear(), far, rules, language="de"))[1:3] == ("far", "language")
    with pytest.raises(RequestError) as caught:
        ask(FakeNear(), far, policy("prefer-near", languages={"near": ["en"], "far": ["fr"]}), language="de")
    assert caught.value.details["code"] == "language"


def test_an_image_is_sent_unchanged_to_a_side_that_reads_images() -> None:
    near, far = FakeNear(), FakeFar()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]}]

    async def work() -> tuple[object, ...]:
        async with hybrid(near, far, policy("prefer-near"), vision=True) as opened:
            return outcome(await opened.chat.completions.create(messages=messages))

    assert run(work()) == ("far says", "far", "vision", None)
    assert (near.requests, far.generated[0]["messages"]) == ([], messages)
    with pytest.raises(RequestError) as caught:
        ask(near, FakeFar(), policy("prefer-far"), messages=messages)
    assert caught.value.details["code"] == "vision"


def test_a_far_side_says_itself_that_it_reads_images() -> None:
    near, far = FakeNear(), FakeFar()
    far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "vision": True}]})
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    answer = ask(near, far, policy("prefer-near"), messages=messages)
    assert outcome(answer)[:3] == ("far says", "far", "vision")


def test_a_near_side_that_reads_images_answers_about_one() -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    near = FakeNear(sees=True)
    answer = ask(near, FakeFar(), policy("prefer-near"), messages=messages)
    assert outcome(answer)[1] == "near"
    assert len(near.requests) == 1


def test_labels_pins_and_languages_are_not_sent() -> None:
    far = FakeFar()
    messages = [{"role": "user", "content": "hi", "labels": ["open"]}]
    ask(
        FakeNear(),
        far,
        policy("prefer-far", labels=["open"]),
        labels=["open"],
        pin="far",
        language="en",
        messages=messages,
        temperature=0.5,
    )
    assert far.generated[0].pop("messages") == QUESTION
    assert set(far.generated[0]) == {"model", "stream", "stream_options", "temperature"}


def test_only_requested_logprobs_are_shown() -> None:
    escalation = {"then": "continue", "max_mean_entropy": 5.0}
    quiet = ask(FakeNear(), FakeFar(), policy(escalation=escalation))
    assert quiet.choices[0].logprobs is None
    received = ask(FakeNear("ab"), FakeFar(), policy(escalation=escalation), logprobs=True)
    assert received.choices[0].logprobs is not None
    assert [(token.token, token.top_logprobs) for token in received.choices[0].logprobs.content or ()] == [
        ("a", []),
        ("b", []),
    ]


@pytest.mark.parametrize(
    ("parameters", "kind", "code"),
    [
        ({"labels": ["unheard"]}, RequestError, "unknown_label"),
        ({"max_tokens": 60}, RequestError, "pinned_context"),
        ({"n": 2}, RequestError, None),
        ({"temprature": 1}, RequestError, None),
    ],
)
def test_a_request_that_no_side_may_answer_is_an_error_with_a_code(
    parameters: dict[str, object], kind: type[Exception], code: str | None
) -> None:
    near, far = FakeNear(context=20), FakeFar()
    with pytest.raises(kind) as raised:
        ask(near, far, policy(), **{"pin": "near", **parameters})
    assert getattr(raised.value, "details", {}).get("code") == code
    assert (near.requests, far.generated) == ([], [])


class CountedLedger:
    """In memory."""

    def __init__(self) -> None:
        self.spent = Spent()

    def today(self) -> Spent:
        return self.spent

    def add(self, *, usd: float = 0.0, requests: int = 0) -> Spent:
        self.spent = Spent(self.spent.usd + usd, self.spent.requests + requests)
        return self.spent


def test_the_daily_budget_is_spent_and_not_exceeded() -> None:
    far, ledger = FakeFar(), CountedLedger()
    rules = policy(
        "prefer-far",
        budget={"far_requests_per_day": 2},
        price={"prompt_usd_per_million": 1e6, "completion_usd_per_million": 1e5},
    )

    async def work() -> list[tuple[str, str]]:
        await far.start()
        async with await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=rules, ledger=ledger) as opened:
            answers = [await opened.chat.completions.create(messages=QUESTION) for _ in range(3)]
            with pytest.raises(Unavailable) as raised:
                await opened.chat.completions.create(messages=QUESTION, pin="far")
            assert raised.value.details["code"] == "pinned_budget"
        await far.die()
        return [(answer.route.side, answer.route.reason) for answer in answers if answer.route is not None]

    assert run(work()) == [("far", "prefer"), ("far", "prefer"), ("near", "budget")]
    assert len(far.generated) == 2
    # Twice: 7 prompt tokens at one dollar and 3 tokens of the answer at ten cents.
    assert ledger.spent.usd == pytest.approx(14.6)
    assert ledger.spent.requests == 2


def test_concurrent_requests_do_not_exceed_the_budget() -> None:
    far = FakeFar()

    async def work() -> list[str]:
        await far.start()
        rules, ledger = policy("prefer-far", budget={"far_requests_per_day": 2}), CountedLedger()
        async with await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=rules, ledger=ledger) as opened:
            answers = await asyncio.gather(*(opened.chat.completions.create(messages=QUESTION) for _ in range(6)))
        await far.die()
        return sorted(answer.route.side for answer in answers if answer.route is not None)

    assert run(work()) == ["far"] * 2 + ["near"] * 4
    assert len(far.generated) == 2


def test_the_next_decision_uses_the_speed_of_both_sides() -> None:
    async def work() -> dict[str, float | None]:
        async with hybrid(FakeNear("a few tokens"), FakeFar(), policy()) as opened:
            for _ in range(2):
                answer = await opened.chat.completions.create(messages=QUESTION)
            assert answer.route is not None
            return answer.route.scores

    scores = run(work())
    assert scores["near_total_seconds"] is not None
    assert scores["far_total_seconds"] is None
