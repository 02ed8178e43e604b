"""Builds a request that continues an answer: as text, for any server that continues a message, or as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from nearfar.compiler.shared.script import SharedScript

from ...schema.chat import ChatCompletionRequest, Message
from ...schema.common import GenerationRequest
from ...schema.completions import CompletionRequest
from ...text.response_format import structured_outputs

# The fields that both kinds of requests have.
SHARED_FIELDS = set(GenerationRequest.model_fields) - {"stream", "stream_options", "n"}


def continued(
    request: ChatCompletionRequest | CompletionRequest, text: str, num_tokens: int, reasoning: str = ""
) -> ChatCompletionRequest | CompletionRequest:
    """Continue after ``text``.

    ``num_tokens``: the tokens of ``max_tokens`` that the text and the ``reasoning`` before it used. A completion must
    have a text prompt.
    """
    remaining = {name: max(1, limit - num_tokens) for name, limit in limits(request).items()}
    if request.min_tokens is not None:
        remaining["min_tokens"] = max(0, request.min_tokens - num_tokens)
    if isinstance(request, CompletionRequest):
        assert isinstance(request.prompt, str)
        return request.model_copy(update={**remaining, "prompt": request.prompt + text})
    messages = list(request.messages)
    if request.continue_final_message:
        # The client began the answer itself.
        prefix = messages.pop()
        text, reasoning = prefix.text + text, (prefix.reasoning_content or "") + reasoning
    messages.append(Message(role="assistant", content=text, reasoning_content=reasoning or None))
    return request.model_copy(update={**remaining, "messages": messages, "continue_final_message": True})


def end_of_prompt(request: ChatCompletionRequest | CompletionRequest) -> tuple[str, ...]:
    """The client's text that the answer meets: a completion's prompt, or the last message."""
    if isinstance(request, CompletionRequest):
        return (request.prompt,) if isinstance(request.prompt, str) else ()
    return (request.messages[-1].text,)


def continued_ids(
    request: ChatCompletionRequest, prompt_ids: Sequence[int], answer_ids: Sequence[int]
) -> CompletionRequest:
    """The same answer as a completion of token ids. `continues_as_tokens` must be true of the request."""
    limit = min(limits(request).values(), default=None)
    min_tokens = None if request.min_tokens is None else max(0, request.min_tokens - len(answer_ids))
    fields: dict[str, Any] = {name: value for name in SHARED_FIELDS if (value := getattr(request, name)) is not None}
    return CompletionRequest(
        **{**fields, "min_tokens": min_tokens},
        prompt=[*prompt_ids, *answer_ids],
        # A completion without a limit may fill the context, as a chat may.
        max_tokens=None if limit is None else max(1, limit - len(answer_ids)),
    )


def continues_as_tokens(request: ChatCompletionRequest | CompletionRequest) -> bool:
    """Whether a chat's answer can be continued as plain token ids (`web/src/shared/router/continuation.ts`)."""
    return isinstance(request, ChatCompletionRequest) and ask_of("continuesAsTokens", request)


def request_facts(request: ChatCompletionRequest | CompletionRequest) -> dict[str, Any]:
    """What the rules of an answer depend on (AnswerFacts of `web/src/shared/router/answer_machine.ts`)."""
    form = format_type(request)
    if isinstance(request, CompletionRequest):
        prompt = "text" if isinstance(request.prompt, str) else "ids"
        return {"prompt": prompt, "format": form, "tool_choice": None, "continues": False}
    choice = request.tool_choice
    named = choice.model_dump() if isinstance(choice, BaseModel) else choice
    continues = request.continue_final_message
    return {"prompt": "chat", "format": form, "tool_choice": named, "continues": continues}


def sets_template_variables(request: ChatCompletionRequest) -> bool:
    """Whether the request sets variables of the chat template, which near's count of the prompt's tokens leaves out."""
    return ask_of("setsTemplateVariables", request)


def ask_of(name: str, request: ChatCompletionRequest) -> bool:
    """What `web/src/shared/router/continuation.ts` says of a request."""
    params = request.model_dump(mode="json", exclude={"messages", "response_format"}, exclude_none=True)
    form = format_type(request)
    types = [[part.type for part in each.content] for each in request.messages if isinstance(each.content, list)]
    messages = [{"content": [{"type": each} for each in own]} for own in types]
    given = {**params, "response_format": form and {"type": form}, "messages": messages}
    answer: bool = SharedScript.of_thread().ask(name, given)
    return answer


def format_type(request: ChatCompletionRequest | CompletionRequest) -> str | None:
    """The type of the answer's format, which a server applies from where it starts: that of ``response_format``, or of
    vLLM's parameters.
    """
    for _, outputs in structured_outputs(request):
        return "json_object" if outputs.json_object else "structured" if outputs.json_ is None else "json_schema"
    return None if request.response_format is None else request.response_format.type


def limits(request: ChatCompletionRequest | CompletionRequest) -> dict[str, int]:
    fields = {"max_tokens": request.max_tokens}
    if isinstance(request, ChatCompletionRequest):
        fields["max_completion_tokens"] = request.max_completion_tokens
    return {name: limit for name, limit in fields.items() if limit is not None}
