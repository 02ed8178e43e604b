"""Makes the request with which far continues an answer that near began."""

from __future__ import annotations

from ...executors.executor import Call
from ...schema.chat import ChatCompletionRequest
from ...schema.completions import CompletionRequest
from ..sides.continued import (
    continued,
    continued_ids,
    continues_as_tokens,
    end_of_prompt,
    sets_template_variables,
)
from ..sides.sides import Sides
from .failures import side_fault
from .shown import Shown


async def far_continuation(
    sides: Sides, request: ChatCompletionRequest | CompletionRequest, call: Call, text: str, shown: Shown
) -> ChatCompletionRequest | CompletionRequest:
    """Continue after ``text``: by token ids if both sides have the same ones, else by the text. Raises RequestError for
    private text.
    """
    assert sides.near is not None
    assert sides.far is not None
    if await sides.matches_private(*end_of_prompt(request), text) or (
        shown.reasoning and await sides.matches_private(shown.reasoning)
    ):
        # Near may have written private text by itself, or completed what the client began.
        raise side_fault("privateText", "near")
    if (
        sides.far.far.dialect == "nearfar"
        and isinstance(request, ChatCompletionRequest)
        and continues_as_tokens(request)
        and not sets_template_variables(request)
    ):
        writer = shown.near_writer
        answer_ids = None if writer is None else await sides.near.ids_of(text, writer.ids)
        if answer_ids is not None and await sides.same_tokens(call):
            prompt_ids = await sides.near.prompt_ids(request)
            if prompt_ids is not None:
                return continued_ids(request, prompt_ids, answer_ids)
    return continued(request, text, shown.num_tokens, shown.reasoning)
