"""Which side decides typed questions, and what leaves this machine when near is unsure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_openai import Received, Reply
from hybrid_sides import ABOUT, FakeFar, FakeNear, hybrid, policy, run

from nearfar.compiler.runtime.errors import DeviceError, NearfarError, RequestError
from nearfar.compiler.shared.script import SharedScript
from nearfar.server_fallback.executors.decide import fit_calibration, questions_of, reading_of
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.schema.decide import DecidedAnswer, DecideRequest, DecideResponse
from nearfar.server_fallback.schema.encoding import EncodingUsage
from nearfar.server_fallback.schema.routed import RoutedDecideResponse

QUESTIONS: dict[str, Any] = {
    "spam": {"type": "yes_no", "question": "Is it spam?"},
    "topic": {"type": "choice", "question": "Which topic?", "choices": ["art", "sport"]},
}
OVER: dict[str, Any] = {"escalation": {"then": "continue"}}
PICTURE: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
SOUND = {"data": "", "format": "wav"}
SURE, UNSURE = [-0.1, -3.0], [-0.7, -0.8]


def answer_of(request: DecideRequest, name: str, rows: dict[str, list[float]], tokens: int = 10) -> DecideResponse:
    """The answer of a side whose answers have these log-probabilities."""
    reading = reading_of(request, name)
    logprobs = [rows[each] for each in request.questions]
    decisions = SharedScript.of_thread().ask("readDecisions", questions_of(request), logprobs, reading)
    return DecideResponse(
        id="1",
        created=1,
        model=name,
        calibration_model=name,
        decisions={each: DecidedAnswer.model_validate(decisions[each]) for each in request.questions},
        usage=EncodingUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


@dataclass
class DecidingNear(FakeNear):
    rows: dict[str, list[float]] = field(default_factory=lambda: {"spam": SURE, "topic": UNSURE})
    decided: list[DecideRequest] = field(default_factory=list)

    async def decide(self, request: DecideRequest, call: Call) -> DecideResponse:  # noqa: ARG002
        self.decided.append(request)
        if self.error is not None:
            raise self.error
        return answer_of(request, "hybrid", self.rows)


def deciding_far(reply: Reply | None = None) -> FakeFar:
    def answer(received: Received) -> Reply:
        assert received.path == "/v1/decide"
        request = DecideRequest.model_validate(received.body)
        return reply or Reply(value=answer_of(request, "big", {"spam": SURE, "topic": [-4.0, -0.05]}).model_dump())

    far = FakeFar(answer)
    far.about = Reply(value={"api_version": 1, "models": [ABOUT]})
    return far


def decide(
    near: FakeNear | None, far: FakeFar | None, rules: dict[str, Any], context: Any = "A note.", **rest: Any
) -> RoutedDecideResponse:
    options = rest.pop("options", {})

    async def work() -> RoutedDecideResponse:
        async with hybrid(near, far, rules, **options) as opened:
            return await opened.decide(context, QUESTIONS, **rest)

    return run(work())


def asked(far: FakeFar) -> list[dict[str, Any]]:
    return [received.body or {} for received in far.received if received.path == "/v1/decide"]


def test_far_decides_only_what_near_leaves_open() -> None:
    near, far = DecidingNear(), deciding_far()
    answer = decide(near, far, policy(**OVER), abstain_below=0.9)
    assert answer.sides == {"spam": "near", "topic": "far"}
    assert [answer.decisions[name].answer for name in QUESTIONS] == [True, "sport"]
    assert (answer.route.side, answer.route.reason, answer.usage.prompt_tokens) == ("near", "prefer", 20)
    (body,) = asked(far)
    assert (list(body["questions"]), body["context"], body["abstain_below"]) == (["topic"], "A note.", 0.9)
    assert set(body) == {"model", "questions", "context", "abstain_below"}


@pytest.mark.parametrize(
    ("rules", "rest"),
    [
        (policy(), {}),
        (policy("near-only"), {}),
        (policy(**OVER), {"pin": "near"}),
        (policy(**OVER), {"labels": ["private"]}),
        (policy(**OVER, private={"patterns": ["a note"]}), {}),
        # The question and the context meet in the prompt.
        (policy(**OVER, private={"patterns": [r"note\.\n\nis it"]}), {}),
        (policy(**OVER, budget={"far_requests_per_day": 0}), {}),
        (policy(**OVER), {"abstain_below": 0.5}),
    ],
)
def test_nothing_leaves_without_leave(rules: dict[str, Any], rest: dict[str, Any]) -> None:
    near, far = DecidingNear(), deciding_far()
    answer = decide(near, far, rules, **{"abstain_below": 0.9, **rest})
    assert answer.sides == {"spam": "near", "topic": "near"}
    assert (answer.decisions["topic"].answer is None) == (rest.get("abstain_below") is None)
    assert asked(far) == []


@pytest.mark.parametrize(
    ("private", "far_sees", "leaves"),
    [({"media": "near"}, True, False), ({"media": "far"}, False, False), ({"media": "far"}, True, True)],
)
def test_a_picture_stays_with_near_unless_it_may_leave_and_far_sees(
    private: dict[str, Any], far_sees: bool, leaves: bool
) -> None:
    near, far = DecidingNear(sees=True), deciding_far()
    far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "context": 4096}]})
    rules = policy(**OVER, private=private)
    answer = decide(near, far, rules, PICTURE, abstain_below=0.9, options={"vision": far_sees})
    assert answer.sides == {"spam": "near", "topic": "far" if leaves else "near"}
    assert [body["messages"] for body in asked(far)] == [PICTURE] * leaves


def test_a_failing_far_leaves_near_s_decisions_as_they_are() -> None:
    answer = decide(DecidingNear(), deciding_far(Reply(status=503)), policy(**OVER), abstain_below=0.9)
    assert answer.sides == {"spam": "near", "topic": "near"}
    assert (answer.decisions["spam"].answer, answer.decisions["topic"].answer) == (True, None)


def test_a_side_decides_all_if_the_other_may_not_or_fails() -> None:
    far = deciding_far()
    assert decide(DecidingNear(), far, policy("prefer-far")).sides == {"spam": "far", "topic": "far"}
    failed = decide(DecidingNear(error=DeviceError("lost")), far, policy())
    assert (failed.route.side, failed.route.reason) == ("far", "near_failed")
    assert decide(None, far, policy("far-only")).sides == {"spam": "far", "topic": "far"}
    with pytest.raises(DeviceError):
        decide(DecidingNear(error=DeviceError("lost")), far, policy(), labels=["private"])


def test_the_names_of_questions_are_texts_that_would_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(QUESTIONS):
        monkeypatch.delitem(QUESTIONS, name)
    monkeypatch.setitem(QUESTIONS, "Ann Smith", {"type": "yes_no", "question": "Does she owe money?"})
    for pattern, side in (("ann jones", "far"), ("ann smith", "near")):
        near, far = DecidingNear(), deciding_far(Reply(status=500))
        near.rows["Ann Smith"] = UNSURE
        decide(near, far, policy(**OVER, private={"patterns": [pattern]}), abstain_below=0.9)
        assert bool(asked(far)) == (side == "far")


def test_far_gets_no_calibration_of_questions_that_it_is_not_asked() -> None:
    near, far = DecidingNear(), deciding_far()
    scaling = {"temperature": 1.0, "bias": {"art": 0.0, "sport": 0.0}}
    questions = {"topic": scaling, "Does Ann Smith owe money?": {"temperature": 1.0, "bias": {"Yes": 0.0, "No": 0.0}}}
    decide(near, far, policy(**OVER), abstain_below=0.9, calibration={"version": 1, "questions": questions})
    assert asked(far)[0]["calibration"]["questions"] == {"topic": scaling}


def test_a_calibration_goes_to_the_model_whose_manifest_has_its_name() -> None:
    questions = DecideRequest.model_validate({"model": "m", "questions": QUESTIONS, "context": "x"})
    example = {"decisions": answer_of(questions, "m", {"spam": SURE, "topic": SURE}).model_dump()["decisions"]}
    for model, kept in (("hybrid", ("near",)), ("Big-70B", ("far",)), (None, ("near", "far"))):
        near, far = DecidingNear(), deciding_far()
        far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "model": "Big-70B"}]})
        calibration = fit_calibration(QUESTIONS, [{**example, "answers": {"spam": True, "topic": "art"}}], model=model)
        decide(near, far, policy(**OVER), abstain_below=0.99, calibration=calibration)
        (of_far,), (of_near,) = asked(far), near.decided
        given = {"near": of_near.calibration is not None, "far": "calibration" in of_far}
        assert given == {"near": "near" in kept, "far": "far" in kept}
    calibration = fit_calibration(QUESTIONS, [{**example, "answers": {"spam": True}}], model="another")
    sides: list[tuple[FakeFar | None, str]] = [(None, "hybrid"), (deciding_far(), "big or hybrid")]
    for other, models in sides:
        with pytest.raises(RequestError, match=f"was fitted to another, and this model is {models}"):
            decide(DecidingNear(), other, policy("prefer-far" if other else "near-only"), calibration=calibration)


@pytest.mark.parametrize(
    ("near", "rules", "rest", "message"),
    [
        (FakeNear(), policy(), {}, "answers no questions"),
        (DecidingNear(), policy("far-only"), {"options": {"dialect": "vllm", "model": "there"}}, "no /v1/decide"),
        (DecidingNear(), policy(), {"language": "english"}, "language"),
        (
            DecidingNear(),
            policy(),
            {"context": [{"role": "user", "content": [{"type": "input_audio", "input_audio": SOUND}]}]},
            "texts and pictures only",
        ),
        (DecidingNear(), policy(), {"context": PICTURE}, "reads only text"),
    ],
)
def test_what_no_side_decides_is_an_error(
    near: FakeNear, rules: dict[str, Any], rest: dict[str, Any], message: str
) -> None:
    far = deciding_far()
    with pytest.raises((RequestError, NearfarError), match=message):
        decide(near, far, rules, **rest)
