"""Reasoning passes through a pair of sides, and appears once, whichever side continues."""

from __future__ import annotations

from typing import Any

import pytest
from fake_openai import Reply, chunk, text_chunks
from hybrid_sides import FAR_USAGE, FakeFar, FakeNear, ask, outcome, policy

from nearfar.compiler.runtime.errors import DeviceError

LOST = DeviceError("the device is lost")


def reasoned(*parts: dict[str, str]) -> Reply:
    """A far answer with these deltas."""
    deltas = []
    for part in parts:
        each = chunk("")
        each["choices"][0]["delta"] = part
        deltas.append(each)
    start, *_, end, usage = text_chunks(usage=FAR_USAGE)
    return Reply(chunks=[start, *deltas, end, usage])


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_fars_reasoning_passes_under_either_name(key: str) -> None:
    answer = ask(None, FakeFar(lambda _: reasoned({key: "Hm."}, {"content": "Yes."})), policy("far-only"))
    assert (answer.choices[0].message.reasoning_content, answer.choices[0].message.content) == ("Hm.", "Yes.")


def test_nears_reasoning_passes() -> None:
    answer = ask(FakeNear("Hm.Yes.", reasons=3), None, policy("near-only"))
    assert (answer.choices[0].message.reasoning_content, outcome(answer)[0]) == ("Hm.", "Yes.")


def test_far_starts_over_if_near_fails_in_its_reasoning() -> None:
    near = FakeNear("Hm.Yes.", LOST, error_at=2, reasons=3)
    far = FakeFar(lambda _: reasoned({"reasoning_content": "So."}, {"content": "No."}))
    answer = ask(near, far, policy())
    assert outcome(answer) == ("No.", "far", "near_failed", 0)
    assert answer.choices[0].message.reasoning_content == "So."
    assert [message["role"] for message in far.generated[0]["messages"]] == ["user"]


def test_far_continues_reasoning_and_text_if_near_fails_later() -> None:
    near, far = FakeNear("Hm.Yes.", LOST, error_at=5, reasons=3), FakeFar(lambda _: reasoned({"content": "s."}))
    answer = ask(near, far, policy(), max_tokens=20)
    assert outcome(answer) == ("Yes.", "far", "near_failed", 2)
    assert answer.choices[0].message.reasoning_content == "Hm."
    [*_, begun] = far.generated[0]["messages"]
    assert begun == {"role": "assistant", "content": "Ye", "reasoning_content": "Hm."}
    # The reasoning counts towards the limit.
    assert (far.generated[0]["max_tokens"], far.generated[0]["continue_final_message"]) == (15, True)


def test_private_reasoning_does_not_leave() -> None:
    secret = "123-45-6789"
    near, far = FakeNear(f"{secret}Yes.", LOST, error_at=len(secret) + 1, reasons=len(secret)), FakeFar()
    rules: dict[str, Any] = policy(private={"patterns": [r"[0-9]{3}-[0-9]{2}-[0-9]{4}"]})
    with pytest.raises(Exception, match="near's text is private"):
        ask(near, far, rules)
    assert far.generated == []


@pytest.mark.parametrize(
    "given", [{"reasoning_effort": "low"}, {"enable_thinking": False}, {"chat_template_kwargs": {"a": 1}}]
)
def test_requests_with_template_variables_are_handed_over_as_text(given: dict[str, Any]) -> None:
    near, far = (
        FakeNear("one two", LOST, error_at=4),
        FakeFar(lambda _: Reply(chunks=text_chunks("two", usage=FAR_USAGE))),
    )
    assert outcome(ask(near, far, policy(), **given)) == ("one two", "far", "near_failed", 4)
    assert far.generated[0]["messages"][-1]["content"] == "one "
    assert far.generated[0].items() >= given.items()
