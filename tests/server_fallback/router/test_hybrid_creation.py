"""The errors that Hybrid.create reports before the first request."""

from __future__ import annotations

from typing import Any

import pytest
from fake_openai import FakeOpenAI, Reply, running
from hybrid_sides import ABOUT, QUESTION, FakeFar, FakeNear, ask, hybrid, outcome, policy, run

from nearfar.compiler.runtime.errors import RequestError, Unavailable
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far


def refused(near: FakeNear | None, far: FakeFar | None, rules: dict[str, Any], **options: Any) -> RequestError:
    async def work() -> None:
        async with hybrid(near, far, rules, **options):
            pass

    with pytest.raises(RequestError) as raised:
        run(work())
    return raised.value


def test_a_far_servers_transcriber_is_no_model_to_choose_from() -> None:
    far = FakeFar()
    far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "id": "w", "transcribes": True}, ABOUT]})
    ask(FakeNear(), far, policy("prefer-far"))
    assert [body["model"] for body in far.generated] == ["big"]


@pytest.mark.parametrize(
    ("about", "options", "code", "message"),
    [
        (
            Reply(value={"api_version": 2, "models": []}),
            {},
            "api_version",
            "uses version 2 of nearfar's API, this client version 1",
        ),
        (Reply(404, {"error": {"message": "nothing here"}}), {}, "api_version", "set its dialect"),
        (Reply(value={"message": "welcome"}), {}, "api_version", "set its dialect"),
        (Reply(401, {"error": {"message": "no"}}), {"api_key": "wrong"}, "wrong_key", "rejects the API key"),
        (
            Reply(value={"api_version": 1, "models": [ABOUT]}),
            {"model": "small"},
            "unknown_model",
            "does not serve 'small', but big",
        ),
        (
            Reply(value={"api_version": 1, "models": [ABOUT, {**ABOUT, "id": "b"}]}),
            {},
            "unknown_model",
            "serves big, b; choose one",
        ),
    ],
)
def test_a_far_server_that_can_never_answer_is_an_error_at_creation(
    about: Reply, options: dict[str, Any], code: str, message: str
) -> None:
    near, far = FakeNear(), FakeFar()
    far.about = about
    error = refused(near, far, policy(), **options)
    assert error.details["code"] == code
    assert message in error.message
    assert near.requests == []


@pytest.mark.parametrize(
    ("near", "rules", "options", "message"),
    [
        (FakeNear(), policy("near-only", escalation={"then": "restart"}), {}, "near-only"),
        (FakeNear(), policy("far-only", private={"labels": ["private"]}), {}, "far-only"),
        (None, policy("near-only"), {}, "with near-only no other side answers; set near"),
        (FakeNear(), policy(escalation={"then": "continue"}), {"dialect": "openai"}, 'cannot continue; use "restart"'),
        (FakeNear(), {"version": 1}, {}, "mode"),
        (FakeNear(), policy(prefill={}), {}, "only pages have prompts that far computes"),
    ],
)
def test_a_policy_that_cannot_be_followed_is_an_error_at_creation(
    near: FakeNear | None, rules: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    far = FakeFar()
    error = refused(near, far, rules, **options)
    assert error.details["code"] == "bad_policy"
    assert message in error.message
    assert far.received == []


def test_without_a_network_near_answers_and_far_is_retried_later() -> None:
    far = FakeFar()

    async def work() -> None:
        await far.start()
        await far.die()
        rules = policy("prefer-far")
        async with await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=rules) as opened:
            now, circuit = [0.0], opened.executor.sides.circuits["far"]
            circuit._clock = lambda: now[0]
            async with running(far):
                for _ in range(2):
                    answer = outcome(await opened.chat.completions.create(messages=QUESTION))
                    assert answer[1:3] == ("near", "circuit_open")
                now[0] += circuit.seconds_until_trial
                answer = outcome(await opened.chat.completions.create(messages=QUESTION))
                assert answer == ("far says", "far", "prefer", None)

    run(work())


def test_without_a_network_a_policy_that_needs_far_is_an_error() -> None:
    async def work() -> None:
        await Hybrid.create(near=FakeNear(), far=Far("http://127.0.0.1:9"), policy=policy("far-only"))

    with pytest.raises(Unavailable, match="no connection could be made"):
        run(work())


def test_other_servers_are_read_from_their_list_of_models() -> None:
    server = FakeOpenAI()

    async def work() -> None:
        async with (
            running(server),
            await Hybrid.create(near=None, far=Far(server.url, dialect="vllm"), policy=policy("far-only")) as opened,
        ):
            assert opened.executor.context == 128
            assert outcome(await opened.chat.completions.create(messages=QUESTION))[0] == "hi"

    run(work())
