"""A chat as OpenAI writes it, to the token ids of its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nearfar.compiler.errors import RequestError
from nearfar.compiler.text.tokenizer import Tokenizer

from ..schema.chat import ImagePart, Message, Tool
from .requests import check_length


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    context: int | None = None,
) -> list[int]:
    """With ``continue_final_message`` the last message is the start of the answer, which goes on from it. With ``context``, a prompt that
    cannot fit is refused before it is encoded.

    Raises RequestError for an image, for messages that the chat template refuses, or without a chat template.
    """
    read = [_read(message, f"messages[{index}]") for index, message in enumerate(messages)]
    described = None if tools is None else [tool.model_dump(exclude_none=True) for tool in tools]
    last = read[-1]
    if continue_final_message and (last["role"] != "assistant" or "tool_calls" in last):
        raise RequestError("continue_final_message needs an assistant's message of text at the end", param="continue_final_message")
    try:
        marked, marked_tools = tokenizer.mark_chat(read[:-1] if continue_final_message else read, described)
        # The template ends with what opens an answer, so the answer's own start follows it.
        rendered = tokenizer.apply_chat_template(marked, add_generation_prompt, marked_tools)
        start = str(last["content"]) if continue_final_message else ""
        if context is not None:
            check_length(tokenizer, max(rendered, start, key=len), context, "messages")
        ids = tokenizer.encode_rendered(rendered)
        return [*ids, *tokenizer.encode(start, add_special_tokens=False)] if start else ids
    except RequestError as error:
        raise RequestError(error.message, **{"param": "messages", **error.details}) from error


def _read(message: Message, where: str) -> Mapping[str, Any]:
    """As templates know it. ``refusal`` is part of the messages that OpenAI's client gives back, and null but for OpenAI's own models."""
    if message.refusal is not None:
        raise RequestError(f"{where} has 'refusal', which is not supported", param=f"{where}.refusal")
    content = message.content
    if content is None and not (message.role == "assistant" and message.tool_calls):
        raise RequestError(f"{where}.content must be a string, or a list of parts", param=f"{where}.content")
    parts = content if isinstance(content, list) else []
    image = next((index for index, part in enumerate(parts) if isinstance(part, ImagePart)), None)
    if image is not None:
        raise RequestError(
            f"{where}.content[{image}] is an image, and this model reads texts only; leave it out, or ask a model that sees",
            param=f"{where}.content[{image}]",
        )
    return {
        # Templates know system messages; developer is OpenAI's later name for them.
        "role": "system" if message.role == "developer" else message.role,
        "content": message.text,
        **{key: value for key in ("name", "tool_call_id") if (value := getattr(message, key)) is not None},
        **({"tool_calls": [call.model_dump() for call in message.tool_calls]} if message.tool_calls else {}),
    }
