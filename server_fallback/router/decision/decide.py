"""The decision: who answers a request, and why. Every answer carries it as its route (`schema/route.py`).

The rules are written once, in `web/src/shared/decision/decide.ts`, which Python evaluates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nearfar.compiler.runtime.errors import NearfarError
from nearfar.compiler.shared.script import SharedScript

from ...schema.route import Side
from .policy import Policy
from .situation import Media, Situation


@dataclass(frozen=True, slots=True)
class Decision:
    """``side`` is None if no side may or can answer; ``reason`` then says what ruled out the last side.

    A private request is answered by near or not at all. ``scores`` are the expectations for both sides by their names
    in the shared Scores; None for unknown ones.
    """

    side: Side | None
    reason: str
    private: bool
    scores: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision, and what else follows from the same rules.

    ``standby``: the other side may be asked if necessary. ``wants_signals``: near's first tokens could change the
    decision. ``may_guess``: near may guess tokens for far's answer. ``describes``: if there are any, nobody may answer
    before near has turned these into texts, with which `choose_described` decides again.
    """

    decision: Decision
    standby: bool
    wants_signals: bool
    may_guess: bool
    describes: tuple[Media, ...]


def decide(policy: Policy, situation: Situation) -> Decision:
    """Whether the request is private is determined here, which takes time for long texts. Raises as `choose`."""
    return choose(policy, situation, private=policy.private_check.is_private(situation)).decision


def choose(policy: Policy, situation: Situation, *, private: bool, embeds: bool = False) -> Choice:
    """``private``: whether the request has a private label or text. ``embeds``: it must embed texts instead of
    generating one.

    Raises RequestError with the code "unknown_label" for a label that the policy does not have, and with
    "bad_situation" for a vector that the predictor's model cannot have made.
    """
    answer = policy.ask("choose", situation.to_json(), private, embeds)
    return choice_of(answer)


def choose_described(
    policy: Policy, original: Situation, described: Situation, *, private: bool
) -> tuple[Choice, bool]:
    """The choice with texts in place of the media of ``original``, and whether near reads the media themselves instead.

    ``private``: whether the request with the texts has a private label or text. Raises as `choose`.
    """
    answer = policy.ask("chooseDescribed", original.to_json(), described.to_json(), private)
    reads_media: bool = answer.pop("reads_media")
    return choice_of(answer), reads_media


def choice_of(answer: dict[str, Any]) -> Choice:
    decision, describes = Decision(**answer.pop("decision")), tuple(Media(**each) for each in answer.pop("describes"))
    return Choice(decision, describes=describes, **answer)


def refusal(decision: Decision, situation: Situation, policy: Policy, near: str | None = None) -> NearfarError:
    """The error of a decision without a side. ``near`` says why near's model cannot answer, if it is not available.

    RequestError if the same request would fail again later, otherwise Unavailable.
    """
    decided = {"reason": decision.reason, "private": decision.private}
    media = [asdict(each) for each in situation.media]
    asked = {"pin": situation.pin, "near": {"available": situation.near.available}, "media": media}
    rules = {"mode": policy.mode, "private": {"media": policy.private.media}}
    try:
        SharedScript.of_thread().ask("refusal", decided, asked, rules, near)
    except NearfarError as error:
        return error
    raise AssertionError("a decision without a side has an error")
