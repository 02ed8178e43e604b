"""/tokenize and /detokenize, as in vLLM."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from .chat import MAX_TOOLS, Message, Messages
from .common import Items, Reply, Request
from .functions import Tool


class TokenizeRequest(Request):
    """Either ``prompt`` or ``messages``. ``split_special_tokens`` (extension) is for ``prompt``, as in
    /v1/completions. With ``continue_final_message``, the last message is the start of the answer.
    """

    model: str
    prompt: str | None = None
    messages: Messages[Message] | None = None
    tools: Annotated[Items[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = True
    split_special_tokens: bool = True


class TokenizeResponse(Reply):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(Request):
    model: str
    tokens: Items[int]


class DetokenizeResponse(Reply):
    prompt: str
