"""/tokenize and /detokenize, as in vLLM."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from .chat import MAX_MESSAGES, MAX_TOOLS, Message, Tool, require_few_parts
from .common import Answer, Items, Request


class TokenizeRequest(Request):
    """Either ``prompt`` or ``messages``. ``split_special_tokens`` (extension) is for ``prompt``, as in
    /v1/completions.
    """

    model: str
    prompt: str | None = None
    messages: (
        Annotated[Items[Message], Field(min_length=1, max_length=MAX_MESSAGES), BeforeValidator(require_few_parts)]
        | None
    ) = None
    tools: Annotated[Items[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = True
    split_special_tokens: bool = True


class TokenizeResponse(Answer):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(Request):
    model: str
    tokens: Items[int]


class DetokenizeResponse(Answer):
    prompt: str
