"""Decisions over two sides: one of them decides all questions, and far those that near leaves open.

The rules are those of `web/src/shared/questions/escalation.ts`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from nearfar.compiler.runtime.errors import DeviceError, RequestError, Unavailable
from nearfar.compiler.shared.script import SharedScript

from ..executors.decide import asking, messages_of, questions_of
from ..executors.executor import Call, Decides
from ..schema.chat import ChatCompletionRequest
from ..schema.decide import DecideRequest, DecideResponse, DecisionCalibration
from ..schema.route import Route, Side
from ..schema.routed import RoutedDecideResponse
from .decision.situation import Situation
from .sides.far import FarSide
from .sides.sides import Sides
from .whole_answer import ask_side, on_a_side


def chat_of(request: DecideRequest) -> ChatCompletionRequest:
    """The chat that the model reads, with all questions and answers, for the choice of a side. Raises RequestError."""
    asked = SharedScript.of_thread().ask("askedQuestions", questions_of(request), {})
    text = "\n\n".join("\n".join((each["text"], *each["answers"])) for each in asked)
    messages = list(asking(messages_of(request), text))
    return ChatCompletionRequest.model_construct(model=request.model, messages=messages, user=request.user)


async def decide(
    sides: Sides, request: DecideRequest, chat: ChatCompletionRequest, situation: Situation, call: Call
) -> RoutedDecideResponse:
    """``request`` has no labels or pin any more; ``situation`` has what is known from the request alone, and ``chat``
    is the prompt. Raises as `on_a_side`.
    """

    async def ask(side: Side) -> DecideResponse:
        return await _ask(sides, side, request, call)

    # A predictor was fitted to answers of chats, and no vector is needed for this decision.
    ids = None if sides.near is None else await sides.near.prompt_ids(chat)
    tokens = None if ids is None else len(ids)
    # No description takes the place of a picture: it leaves itself, or not at all.
    near = replace(sides.near_state(ids), describes=())
    far = replace(await sides.far_state(), prompt_tokens=tokens)
    situation = replace(situation, near=near, far=far)
    hands_over = sides.policy.escalation.then != "never"
    first = await on_a_side(sides, situation, ask, embeds=False, searched=hands_over)
    script, questions, decisions = SharedScript.of_thread(), questions_of(request), decisions_of(first.answer)
    rules = {"escalation": {"then": sides.policy.escalation.then}}
    standby = {"side": first.side, "standby": first.choice.standby and first.side == first.choice.decision.side}
    names = script.ask("handedOver", rules, standby, questions, decisions)
    second: DecideResponse | None = None
    if names:
        open_questions = {name: request.questions[name] for name in request.questions if name in names}
        rest = request.model_copy(update={"questions": open_questions})
        # Without far's decisions, near has none of these: that is an answer too.
        with suppress(DeviceError, Unavailable):

            async def ask_far(side: Side) -> DecideResponse:
                return await _ask(sides, side, rest, call)

            second = await ask_side(sides, "far", ask_far, situation, embeds=False)
    both = script.ask("mergedDecisions", first.side, decisions, {} if second is None else decisions_of(second))
    found = {**first.answer.decisions, **({} if second is None else second.decisions)}
    tokens_read = first.answer.usage.prompt_tokens + (0 if second is None else second.usage.prompt_tokens)
    decision = first.choice.decision
    reason = decision.reason if first.side == decision.side else f"{decision.side}_failed"
    return RoutedDecideResponse(
        **first.answer.model_dump(exclude={"decisions", "usage"}),
        decisions=found,
        usage=first.answer.usage.model_copy(update={"prompt_tokens": tokens_read, "total_tokens": tokens_read}),
        sides=both["sides"],
        route=Route(side=first.side, reason=reason, scores=dict(decision.scores)),
    )


async def _ask(sides: Sides, side: Side, request: DecideRequest, call: Call) -> DecideResponse:
    if side == "far":
        assert sides.far is not None
        if sides.far.far.dialect != "nearfar":
            raise RequestError(
                f"the far side is of the dialect {sides.far.far.dialect}, which has no /v1/decide; use `nearfar serve` "
                "for it, or a policy by which near decides",
                param="model",
            )
        others = [] if sides.near is None else [sides.near.model]
        model = await sides.far.reach(call)
        return await sides.far.decide(calibrated(request, model.name or model.id, others), call)
    assert sides.near is not None
    if not isinstance(sides.near.executor, Decides):
        raise RequestError("the near side's model answers no questions; use one that generates text", param="model")
    return await sides.near.executor.decide(calibrated(request, sides.near.model, far_models(sides.far)), call)


def far_models(far: FarSide | None) -> list[str] | None:
    """None before far was reached."""
    if far is None:
        return []
    return None if far.model is None else [far.model.name or far.model.id]


def calibrated(request: DecideRequest, model: str, others: list[str] | None) -> DecideRequest:
    """The request with the calibration of its questions, only if that is the model's; ``others`` is the other side's.
    Raises RequestError for one that fits neither.
    """
    given = None if request.calibration is None else request.calibration.model_dump()
    kept = SharedScript.of_thread().ask("calibrationFor", given, model, others, questions_of(request))
    calibration = None if kept is None else DecisionCalibration.model_validate(kept)
    return request.model_copy(update={"calibration": calibration})


def decisions_of(answer: DecideResponse) -> dict[str, Any]:
    return {name: decision.model_dump() for name, decision in answer.decisions.items()}
