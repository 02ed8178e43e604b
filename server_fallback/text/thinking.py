"""What a chat's parameters say of the model's reasoning: the variables of its chat template, and a budget in tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nearfar.compiler.errors import RequestError

from ..schema.chat import ChatCompletionRequest

# The most tokens of reasoning, None for no limit; 0 switches it off.
EFFORT_TOKENS: Mapping[str, int | None] = {
    "none": 0, "minimal": 0, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": None, "max": None,
}  # fmt: skip
SWITCH = "enable_thinking"


@dataclass(frozen=True, slots=True)
class Thinking:
    """``variables`` are the chat template's; ``budget`` is the most tokens of reasoning, None for no limit."""

    variables: Mapping[str, Any]
    budget: int | None


def read_thinking(
    request: ChatCompletionRequest, template: str, *, reasons: bool, ignore: Callable[[str], None] | None = None
) -> Thinking:
    """``reasons``: the model has markers of reasoning. ``ignore`` is called with the name of a parameter that the model lacks.

    As in vLLM, ``reasoning_effort`` goes before the variable of that name, and sets the switch only if the request does not. If the
    template has no switch, an effort that switches the reasoning off is a budget of 0.

    Raises RequestError, without ``ignore`` also for a parameter that the model lacks.
    """
    can_switch, effort, budget = SWITCH in template, request.reasoning_effort, request.thinking_token_budget
    variables = dict(request.chat_template_kwargs or {})
    if budget is not None and not reasons:
        _lacking("thinking_token_budget", "which does not reason between markers", ignore)
    if request.enable_thinking is not None:
        if SWITCH in variables:
            raise RequestError(
                f"{SWITCH} and chat_template_kwargs.{SWITCH} mean the same; give one of them", param=SWITCH
            )
        if can_switch:
            variables[SWITCH] = request.enable_thinking
        else:
            _lacking(SWITCH, "whose chat template has no such variable", ignore)
    if effort is not None:
        tokens = EFFORT_TOKENS[effort]
        variables.setdefault(SWITCH, tokens != 0)
        variables["reasoning_effort"] = effort
        if budget is None and not (can_switch and tokens == 0):
            budget = tokens
    if request.verbosity is not None:
        variables["verbosity"] = request.verbosity
    return Thinking(variables, budget)


def _lacking(param: str, why: str, ignore: Callable[[str], None] | None) -> None:
    if ignore is None:
        raise RequestError(f"{param} has no effect on this model, {why}; leave it out", param=param)
    ignore(param)
