"""An answer that comes at once, such as vectors or decisions, by one of two sides: which one, and what happens if it
fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from nearfar.compiler.runtime.errors import DeadlineExceeded, DeviceError, QueueFull, Unavailable

from ..schema.encoding import EncodingUsage
from ..schema.route import Side
from .decision.decide import Choice, Decision
from .decision.situation import Situation
from .sides.sides import Sides


class Answer(Protocol):
    @property
    def usage(self) -> EncodingUsage: ...


AnswerT = TypeVar("AnswerT", bound=Answer)
Ask = Callable[[Side], Awaitable[AnswerT]]


async def _nothing(_: Side) -> None:
    pass


@dataclass(frozen=True, slots=True)
class WholeAnswer(Generic[AnswerT]):
    """``side`` has answered, which is not that of ``choice`` if the chosen one has failed."""

    choice: Choice
    side: Side
    answer: AnswerT


async def on_a_side(
    sides: Sides,
    situation: Situation,
    ask: Ask[AnswerT],
    *,
    embeds: bool,
    searched: bool = False,
    check: Callable[[Side], Awaitable[None]] = _nothing,
) -> WholeAnswer[AnswerT]:
    """Answer by the rules of chats without the predictor (`encodingPolicy` of `web/src/shared/decision/decide.ts`). If
    a side fails, the other one answers, if ``fallback`` allows it.

    ``searched``: a text that stays near is searched for private patterns too, because far may be asked later. ``check``
    is awaited before a side is asked. Raises RequestError, Unavailable, and the errors of the side that answers.
    """
    choice = await sides.choose(situation, private=False, embeds=True)
    if searched or choice.decision.side != "near":
        # Another text that stays here needs no search.
        choice = await sides.choose(situation, private=await sides.is_private(situation), embeds=True)
    side = choice.decision.side
    if side is None:
        raise sides.refusal(choice.decision, situation, embeds=embeds)
    fallback = sides.policy.fallback
    takes_over = choice.standby and (fallback.far_takes_over if side == "near" else fallback.near_continues)
    try:
        await check(side)
        return WholeAnswer(choice, side, await ask_side(sides, side, ask, situation, embeds=embeds))
    except (DeviceError, Unavailable) as error:
        if not takes_over or isinstance(error, DeadlineExceeded):
            raise
        if side == "near" and await sides.is_private(situation):
            raise
    other: Side = "far" if side == "near" else "near"
    await check(other)
    return WholeAnswer(choice, other, await ask_side(sides, other, ask, situation, embeds=embeds))


async def ask_side(sides: Sides, side: Side, ask: Ask[AnswerT], situation: Situation, *, embeds: bool) -> AnswerT:
    """Ask one side, which is counted: in its circuit, and far in today's budget. Raises as `on_a_side`."""
    circuit = sides.circuits[side]
    if side == "far" and not await sides.reserve_request():
        raise sides.refusal(Decision(None, "budget", private=False), situation, embeds=embeds)
    circuit.begin()
    try:
        answer = await ask(side)
    except (DeviceError, Unavailable) as error:
        if not isinstance(error, DeadlineExceeded | QueueFull):
            circuit.failed()
        raise
    finally:
        circuit.ended()
    circuit.succeeded()
    if side == "far":
        usage = {"prompt_tokens": answer.usage.prompt_tokens, "completion_tokens": 0}
        await sides.pay({"usage": usage, "tokens": 0, "refused": False})
    return answer
