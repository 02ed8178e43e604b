"""What a chat's parameters say of the model's reasoning: the variables of its chat template, and a budget in tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nearfar.compiler.errors import RequestError

from ..schema.chat import ChatCompletionRequest
from .reasoning import thinking_switch

# Tokens of reasoning, for templates that do not read the effort themselves. "xhigh" and "max" set no limit.
EFFORT_TOKENS: Mapping[str, int] = {"low": 1024, "medium": 8192, "high": 24_576}
OFF = ("none", "minimal")


@dataclass(frozen=True, slots=True)
class Thinking:
    """``variables`` are the chat template's; ``budget`` is the most tokens of reasoning, None for no limit."""

    variables: Mapping[str, Any]
    budget: int | None


def read_thinking(request: ChatCompletionRequest, template: str, *, reasons: bool, ignore: Callable[[str], None] | None = None) -> Thinking:
    """``reasons``: the model has markers of reasoning. ``ignore`` is called with the name of a parameter that the model lacks.

    As in vLLM, ``reasoning_effort`` goes before the variable of that name, and sets the template's switch only if the request does not.
    Raises RequestError, without ``ignore`` also for a parameter that the model lacks.
    """
    switch, effort = thinking_switch(template), request.reasoning_effort
    variables = dict(request.chat_template_kwargs or {})
    if request.enable_thinking is not None:
        if switch is None:
            _lacking("enable_thinking", "whose chat template has no such variable", ignore)
        elif switch in variables:
            message = f"enable_thinking and chat_template_kwargs.{switch} mean the same; give one of them"
            raise RequestError(message, param="enable_thinking")
        else:
            variables[switch] = request.enable_thinking
    if effort is not None:
        variables.setdefault(switch or "enable_thinking", effort not in OFF)
        variables["reasoning_effort"] = effort
    if request.verbosity is not None:
        variables["verbosity"] = request.verbosity
    budget = request.thinking_token_budget
    if budget is not None and not reasons:
        _lacking("thinking_token_budget", "which does not reason between markers", ignore)
    elif budget is None and effort is not None and not re.search(r"\breasoning_effort\b", template):
        budget = (0 if switch is None else None) if effort in OFF else EFFORT_TOKENS.get(effort)
    return Thinking(variables, budget)


def _lacking(param: str, why: str, ignore: Callable[[str], None] | None) -> None:
    if ignore is None:
        raise RequestError(f"{param} has no effect on this model, {why}; leave it out", param=param)
    ignore(param)
