"""Near answers that go wrong, and near's own view of a prompt before the decision."""

from __future__ import annotations

from typing import Any

import pytest
from fake_openai import Reply, text_chunks
from hybrid_sides import FAR_USAGE, QUESTION, FakeFar, FakeNear, ask, completion, hybrid, outcome, policy, run

from nearfar.compiler.runtime.errors import DeadlineExceeded, DeviceError, NearfarError, QueueFull
from nearfar.server_fallback.router.decision.privacy import PrivateCheck
from nearfar.server_fallback.router.decision.situation import Situation
from nearfar.server_fallback.schema.chat import ChatCompletionChunk

UNSURE = {"window_tokens": 2, "min_mean_logprob": -1.0, "repetition": None}
NO_LOGPROB = {"min_mean_logprob": None}
# Sure of the first four characters, but not of the fifth and sixth.
LOGPROBS = (-0.1, -0.1, -0.1, -0.1, -3.0, -3.0)
# Near is right if it is sure of its first tokens; far is right seven times in eight.
PREDICTOR = {
    "version": 2,
    "features": ["first_mean_logprob"],
    "terms": [],
    "mean": [-0.5],
    "scale": [1.0],
    "near": {"weights": [10.0], "bias": 0.0},
    "far": {"weights": [0.0], "bias": 2.0},
    "calibration": {"near": [1.0, 0.0], "far": [1.0, 0.0]},
}


def continuing(*texts: str) -> FakeFar:
    return FakeFar(lambda _: Reply(chunks=completion(*texts)))


def test_far_continues_an_answer_that_near_is_not_sure_of() -> None:
    near, far = FakeNear("one twenty", logprobs=LOGPROBS, hangs_at=8), continuing("wo")
    answer = ask(near, far, policy(escalation={"then": "continue", **UNSURE}), max_tokens=10)
    # The mean of -0.1 and -3 is below -1.
    assert outcome(answer) == ("one two", "far", "escalated_logprob", 5)
    assert far.generated[0]["prompt"] == [ord(character) for character in "<hi>one t"]
    assert far.generated[0]["max_tokens"] == 5
    assert near.closed_early == 1
    assert answer.usage.completion_tokens == 5 + FAR_USAGE["completion_tokens"]


def test_a_restarted_answer_is_entirely_far_s() -> None:
    near, far = (
        FakeNear("one twenty", logprobs=LOGPROBS),
        FakeFar(lambda _: Reply(chunks=text_chunks("two", usage=FAR_USAGE))),
    )

    async def work() -> list[ChatCompletionChunk]:
        async with hybrid(near, far, policy(escalation={"then": "restart", **UNSURE})) as opened:
            assert outcome(await opened.chat.completions.create(messages=QUESTION)) == (
                "two",
                "far",
                "escalated_logprob",
                0,
            )
            return [chunk async for chunk in await opened.chat.completions.create(messages=QUESTION, stream=True)]

    routes = [chunk.route for chunk in run(work()) if chunk.route is not None]
    assert [(route.side, route.switched_at) for route in routes] == [("near", None), ("far", 0), ("far", 0), ("far", 0)]
    assert far.generated[0]["messages"] == QUESTION


@pytest.mark.parametrize(
    ("near", "escalation", "reason"),
    [
        (FakeNear("abababababab"), {"repetition": {"tokens": 2, "times": 3}, **NO_LOGPROB}, "escalated_repetition"),
        (
            FakeNear("abcdef", logprobs=(-2.0,) * 6),
            {"max_mean_entropy": 0.3, "window_tokens": 3, "min_mean_logprob": None},
            "escalated_entropy",
        ),
    ],
)
def test_repetition_and_doubt_escalate(near: FakeNear, escalation: dict[str, Any], reason: str) -> None:
    far = FakeFar(lambda _: Reply(chunks=text_chunks("two", usage=FAR_USAGE)))
    answer = ask(near, far, policy(escalation={"then": "restart", **escalation}))
    assert outcome(answer) == ("two", "far", reason, 0)


@pytest.mark.parametrize(("parameters", "reason"), [({"pin": "near"}, "pinned"), ({"labels": ["private"]}, "private")])
def test_an_answer_that_must_stay_near_is_not_escalated(parameters: dict[str, Any], reason: str) -> None:
    near, far = FakeNear("one twenty", logprobs=LOGPROBS), continuing("!")
    rules = policy(escalation={"then": "continue", **UNSURE})
    assert outcome(ask(near, far, rules, **parameters)) == ("one twenty", "near", reason, None)
    assert far.generated == []


@pytest.mark.parametrize(("max_tokens", "side"), [(6, "near"), (7, "far")])
def test_an_answer_without_tokens_left_is_not_escalated(max_tokens: int, side: str) -> None:
    # The window is full, with a mean below the limit, at the last token.
    near, far = FakeNear("one tw", logprobs=LOGPROBS), continuing("!")
    escalation = {**UNSURE, "window_tokens": 6, "min_mean_logprob": -1.05, "warm": "never"}
    answer = ask(near, far, policy(escalation={"then": "continue", **escalation}), max_tokens=max_tokens)
    assert outcome(answer)[:2] == ("one tw" + "!" * (side == "far"), side)
    assert [sent["max_tokens"] for sent in far.generated] == [1] * (side == "far")


def test_near_resumes_its_own_answer_if_far_cannot_continue_it() -> None:
    near, far = FakeNear("one twenty", logprobs=LOGPROBS), FakeFar(lambda _: Reply(500, {"error": {"message": "bug"}}))
    answer = ask(near, far, policy(escalation={"then": "continue", **UNSURE}))
    assert outcome(answer) == ("one twenty", "near", "prefer", None)
    assert len(far.generated) == 1


def test_near_s_first_tokens_decide_and_are_not_computed_twice() -> None:
    sure, unsure = FakeNear("near says"), FakeNear("near says", logprobs=(-4.0,) * 4, hangs_at=5)
    rules = policy("auto", quality={"predictor": PREDICTOR})
    answer = ask(sure, FakeFar(), rules)
    assert outcome(answer) == ("near says", "near", "quality", None)
    assert (len(sure.requests), sure.closed_early) == (1, 0)
    assert answer.choices[0].logprobs is None
    assert answer.route is not None
    assert answer.route.scores["near_right"] == pytest.approx(0.982, abs=1e-3)
    assert outcome(ask(unsure, FakeFar(), rules)) == ("far says", "far", "quality", None)
    assert (len(unsure.requests), unsure.closed_early) == (1, 1)


def test_texts_are_searched_once_per_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[Situation] = []
    is_private = PrivateCheck.is_private

    def counted(check: PrivateCheck, situation: Situation) -> bool:
        searched.append(situation)
        return is_private(check, situation)

    monkeypatch.setattr(PrivateCheck, "is_private", counted)
    # The decision, the one with near's signals, and whether far may get the request too.
    answer = ask(FakeNear(), FakeFar(), policy("auto", quality={"predictor": PREDICTOR}, private={"patterns": ["x"]}))
    assert outcome(answer)[1:3] == ("near", "quality")
    assert len(searched) == 1


def test_the_prompt_s_log_probability_decides_if_the_predictor_reads_it() -> None:
    likely, unlikely, unreported = (
        FakeNear(prompt_logprobs=(-0.1, -0.3)),
        FakeNear(prompt_logprobs=(-4.0, -5.0)),
        FakeNear(),
    )
    rules = policy("auto", quality={"predictor": {**PREDICTOR, "features": ["prompt_mean_logprob"]}})
    assert outcome(ask(likely, FakeFar(), rules))[1:3] == ("near", "quality")
    assert outcome(ask(unlikely, FakeFar(), rules))[1:3] == ("far", "quality")
    # An unknown value counts as the mean, which gives less than far's chance.
    assert outcome(ask(unreported, FakeFar(), rules))[1:3] == ("far", "quality")
    assert (likely.prompt_reports, unlikely.prompt_reports) == (1, 1)
    outcome(ask(likely, FakeFar(), policy("auto", quality={"predictor": PREDICTOR})))
    assert likely.prompt_reports == 1


@pytest.mark.parametrize(
    ("near", "expected"),
    [
        (FakeNear(hangs_at=0, quickly=True), ("far", "far", "near_timeout", None)),
        (FakeNear(hangs_at=2, quickly=True), ("nefar", "far", "near_timeout", 2)),
    ],
)
def test_the_decision_waits_for_near_no_longer_than_its_first_token_may_take(
    near: FakeNear, expected: tuple[object, ...]
) -> None:
    rules = policy("auto", quality={"predictor": PREDICTOR})
    far = FakeFar(
        lambda received: Reply(
            chunks=completion("far") if "prompt" in (received.body or {}) else text_chunks("far", usage=FAR_USAGE)
        )
    )

    assert outcome(ask(near, far, rules)) == expected
    assert (len(near.requests), near.closed_early) == (1, 1)


@pytest.mark.parametrize("bias", [0.0, 10.0], ids=["far is chosen without near's signals", "near is chosen"])
@pytest.mark.parametrize(
    ("error", "reason", "requests"),
    [(DeviceError("lost"), "near_failed", [1, 1]), (QueueFull("full"), "near_failed", [1, 2])],
)
def test_near_that_fails_before_the_decision_is_the_reason(
    error: NearfarError, reason: str, requests: list[int], bias: float
) -> None:
    near, far = FakeNear(error=error), FakeFar()
    predictor = {**PREDICTOR, "near": {"weights": [10.0], "bias": bias}}
    answer = ask(near, far, policy("auto", quality={"predictor": predictor}))
    assert outcome(answer) == ("far says", "far", reason, None)
    # A full queue may soon have room.
    assert len(near.requests) == requests[bias > 0]


def test_an_answer_whose_time_is_over_before_the_decision_is_not_far_s() -> None:
    far = FakeFar()
    with pytest.raises(DeadlineExceeded, match="late"):
        ask(FakeNear(error=DeadlineExceeded("late")), far, policy("auto", quality={"predictor": PREDICTOR}))
    assert far.generated == []


def test_far_writes_again_what_is_not_the_requested_json() -> None:
    far = FakeFar(lambda _: Reply(chunks=text_chunks("{}", usage=FAR_USAGE)))
    rules = policy(escalation={"then": "restart", "repetition": None, **NO_LOGPROB})
    answer = ask(FakeNear("no JSON"), far, rules, response_format={"type": "json_object"})
    assert outcome(answer) == ("{}", "far", "escalated_schema", 0)
