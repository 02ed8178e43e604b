"""Reads how a chat request controls reasoning: variables of the chat template, and a budget in tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nearfar.compiler.runtime.errors import RequestError

from ..schema.chat import ChatCompletionRequest

# The maximum number of reasoning tokens, None for no limit; 0 switches reasoning off.
EFFORT_TOKENS: Mapping[str, int | None] = {
    "none": 0, "minimal": 0, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": None, "max": None,
}  # fmt: skip
SWITCH = "enable_thinking"


@dataclass(frozen=True, slots=True)
class Thinking:
    """``variables`` are for the chat template; ``budget`` is the maximum of reasoning tokens, None for no limit."""

    variables: Mapping[str, Any]
    budget: int | None


def read_thinking(
    request: ChatCompletionRequest, template: str, *, reasons: bool, ignore: Callable[[str], None] | None = None
) -> Thinking:
    """``reasons``: the model has reasoning markers. ``ignore`` is called with the name of each unsupported parameter.

    As in vLLM, ``reasoning_effort`` takes precedence over the variable of that name, and sets the switch only if the
    request does not. If the template has no switch, an effort that switches reasoning off becomes a budget of 0.

    Raises RequestError, without ``ignore`` also for a parameter that the model does not support.
    """
    can_switch, effort, budget = SWITCH in template, request.reasoning_effort, request.thinking_token_budget
    if budget is not None and not reasons:
        _unsupported("thinking_token_budget", "which does not reason between markers", ignore)
    if request.enable_thinking is not None:
        if SWITCH in (request.chat_template_kwargs or {}):
            raise RequestError(
                f"{SWITCH} and chat_template_kwargs.{SWITCH} mean the same; use one of them", param=SWITCH
            )
        if not can_switch:
            _unsupported(SWITCH, "whose chat template has no such variable", ignore)
            request = request.model_copy(update={"enable_thinking": None})
    if effort is not None:
        tokens = EFFORT_TOKENS[effort]
        if budget is None and not (can_switch and tokens == 0):
            budget = tokens
    return Thinking(thinking_variables(request), budget)


def thinking_variables(request: ChatCompletionRequest) -> dict[str, Any]:
    """The variables of the chat template, of which it may know some."""
    variables = dict(request.chat_template_kwargs or {})
    if request.enable_thinking is not None:
        variables[SWITCH] = request.enable_thinking
    if request.reasoning_effort is not None:
        variables.setdefault(SWITCH, EFFORT_TOKENS[request.reasoning_effort] != 0)
        variables["reasoning_effort"] = request.reasoning_effort
    if request.verbosity is not None:
        variables["verbosity"] = request.verbosity
    return variables


def _unsupported(param: str, why: str, ignore: Callable[[str], None] | None) -> None:
    if ignore is None:
        raise RequestError(f"{param} has no effect on this model, {why}; leave it out", param=param)
    ignore(param)
