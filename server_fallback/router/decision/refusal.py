"""The error of a decision without a side: what kept each side that might have answered from it."""

from __future__ import annotations

from nearfar.compiler.errors import NearfarError, RequestError, Unavailable

from .decision import Decision
from .policy import Mode
from .situation import Situation

# What a side lacks, of which "it" is the side.
WHY = {
    "mode": "the policy's mode forbids it",
    "near_unavailable": "its model is not ready",
    "offline": "there is no connection to it",
    "circuit_open": "it failed several times and gets no requests for a while; try again soon",
    "context": "prompt and answer exceed its maximum context length; shorten the prompt, or request fewer tokens",
    "tools": "it does not call tools; remove tools",
    "vision": "it reads only text; remove the images",
    "language": "it does not know the language",
    "budget": "today's budget for it is spent",
}
# These conditions may pass, so the same request may succeed later.
PASSING = ("near_unavailable", "offline", "circuit_open", "budget")


def refusal(decision: Decision, situation: Situation, mode: Mode, near: str | None = None) -> NearfarError:
    """``decision.side`` is None. ``near`` says why near's model cannot answer, if it is not available.

    RequestError if the same request would fail again later, otherwise Unavailable.
    """
    lack = decision.reason.removeprefix("pinned_")
    # Near may be available later, unless it would not be asked then either.
    passes = lack in PASSING or not (situation.near.available or situation.pin == "far" or mode == "far-only")
    kind = Unavailable if passes else RequestError
    return kind(_message(decision, situation, mode, lack, near), code=decision.reason)


def _message(decision: Decision, situation: Situation, mode: Mode, lack: str, near: str | None) -> str:
    if lack == "private":
        return "the request is private, so it does not leave this device, but it is pinned to far"
    why = near if near is not None and lack == "near_unavailable" else WHY[lack]
    if situation.pin is not None:
        return f"the request is pinned to {situation.pin}, which cannot answer: {why}"
    if decision.private:
        return f"the request is private, so only near may answer, which cannot: {why}"
    if mode in ("near-only", "far-only"):
        return f"with the policy's mode {mode} no other side answers, and this one cannot: {why}"
    return f"neither side can answer; far cannot, because {why}"
