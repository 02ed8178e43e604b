"""The decision in Python: the cases that the browser's router decides too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest
from router_cases import VECTORS, situation_of

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.router.decision.decide import choose, choose_described, decide
from nearfar.server_fallback.router.decision.policy import Policy


class Numbers(dict[str, float | None]):
    """Equal to values with these numbers to 1e-9, and with None in the same fields."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and all(
            other[name] is None if value is None else other[name] == pytest.approx(value, rel=1e-9, abs=1e-9)
            for name, value in self.items()
        )


# A test of several hundred cases each takes a tenth of the time of a test for each case.
def test_decisions_match_the_conformance_cases() -> None:
    for case in VECTORS["cases"]:
        with named(case):
            require_decision(case)


def test_choices_with_descriptions_match_the_conformance_cases() -> None:
    for case in VECTORS["described"]:
        with named(case):
            require_choice(case)


@contextmanager
def named(case: dict[str, Any]) -> Iterator[None]:
    """Name the case in whatever is raised inside."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {case['name']!r}")
        raise


def require_decision(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(RequestError) as caught:
            decide(Policy.read(case["policy"]), situation_of(case["situation"]))
        assert {key: caught.value.details[key] for key in ("code", "param")} == case["error"]
        return
    policy, situation = Policy.read(case["policy"]), situation_of(case["situation"])
    decision = asdict(decide(policy, situation))
    expected = {"scores": {}, **case["decision"]}
    describes, standby = expected.pop("describes", []), expected.pop("standby", None)
    choice = choose(policy, situation, private=policy.private_check.is_private(situation))
    assert [[each.message, each.part] for each in choice.describes] == describes
    assert standby in (None, choice.standby)
    assert {**decision, "scores": {}} == {**expected, "scores": {}}
    assert decision["scores"] == Numbers(expected["scores"])


def require_choice(case: dict[str, Any]) -> None:
    policy, private = Policy.read(case["policy"]), case["is_private"]
    situations = situation_of(case["situation"]), situation_of(case["described"])
    choice, reads_media = choose_described(policy, *situations, private=private)
    decided = choice.decision
    assert {
        "side": decided.side,
        "reason": decided.reason,
        "private": decided.private,
        "standby": choice.standby,
        "reads_media": reads_media,
    } == case["choice"]


def test_more_policies_than_the_script_keeps_are_used_in_turns() -> None:
    situation = situation_of({})
    policies = [
        Policy.read({"version": 1, "mode": "prefer-near", "retries": number % 10, "labels": [str(number)]})
        for number in range(20)
    ]
    labelled = [situation_of({"labels": [str(number)]}) for number in range(20)]
    for _ in range(2):
        for policy, own in zip(policies, labelled, strict=True):
            assert decide(policy, own).side == "near"
    with pytest.raises(RequestError, match="labels: the policy has no label '1'; it has 0, private"):
        decide(policies[0], labelled[1])
    assert choose(policies[0], situation, private=False).standby
