"""The variables that a chat's parameters give to its chat template, as in vLLM."""

from __future__ import annotations

from typing import Any

from ..schema.chat import ChatCompletionRequest


def template_variables(request: ChatCompletionRequest) -> dict[str, Any]:
    """``reasoning_effort`` goes before the variable of that name, and sets ``enable_thinking`` only if the request does not."""
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("enable_thinking", request.reasoning_effort != "none")
        variables["reasoning_effort"] = request.reasoning_effort
    if request.verbosity is not None:
        variables["verbosity"] = request.verbosity
    return variables
