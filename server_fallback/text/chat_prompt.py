"""Turns a chat of OpenAI's API into the token ids of its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

from ..engine.images import PromptImage
from ..schema.chat import ImagePart, Message, Part, RefusalPart, SoundPart, TextPart
from ..schema.functions import Tool
from .attachments import recordings, require_heard, with_files
from .reasoning import Reasoning, State
from .requests import check_length


class ChatImage(NamedTuple):
    """An image's URL, and the parameter that has it."""

    url: str
    param: str


class ChatSound(NamedTuple):
    """The base64 of a recording, and the part that has it."""

    data: str
    param: str


@dataclass(frozen=True, slots=True)
class Chat:
    """The input of a chat template: messages, and the keyword arguments of `ChatTemplate.render`.

    ``begun`` is the start of the answer, which follows the rendered text, and ``begun_reasoning`` the reasoning before
    it. ``images`` and ``sounds`` are those of all messages, in their order.
    """

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    begun: str | None = None
    begun_reasoning: str = ""
    images: Sequence[ChatImage] = ()
    sounds: Sequence[ChatSound] = ()


class ChatPrompt(NamedTuple):
    """The token ids of a prompt, and the state of its answer: "content" for a model that does not reason."""

    ids: Sequence[int]
    state: State
    images: Sequence[PromptImage] = ()


def read_chat(
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
    sees: bool = False,
    hears: bool = False,
) -> Chat:
    """With ``continue_final_message``, the last message is the start of the answer. The template gets ``variables``.
    ``sees`` and ``hears``: the model reads images and recordings.

    Raises RequestError, also for an image unless the model ``sees``, and for a recording unless it ``hears``.
    """
    messages = with_files(messages)
    read = [_read(message, f"messages[{index}]", sees=sees, hears=hears) for index, message in enumerate(messages)]
    sounds = [
        ChatSound(part.input_audio.data, f"messages[{index}].content[{at}].input_audio")
        for index, at, part in recordings(messages)
    ]
    images = [image for index, message in enumerate(messages) for image in _images(message, f"messages[{index}]")]
    described = None if tools is None else [tool.model_dump(exclude_none=True) for tool in tools]
    options = {"add_generation_prompt": add_generation_prompt, "tools": described, "variables": variables}
    if not continue_final_message:
        return Chat(read, options, images=images, sounds=sounds)
    last = read[-1]
    if last["role"] != "assistant" or "tool_calls" in last or not isinstance(last["content"], str):
        raise RequestError(
            "continue_final_message needs an assistant's message of text at the end", param="continue_final_message"
        )
    # The template ends with what opens an answer, so the answer's own start follows it.
    return Chat(read[:-1], options, last["content"], last.get("reasoning_content", ""), images, sounds)


def check_chat_length(tokenizer: Tokenizer, chat: Chat, context: int) -> None:
    """Refuse a chat that cannot fit, before its template is rendered. Raises RequestError.

    Templates leave out what an assistant said before, such as its reasoning, and white space around a message. The
    contents of all other messages are part of every prompt.
    """
    contents = [message["content"] for message in chat.messages if message["role"] != "assistant"]
    texts = [text.strip() for content in contents for text in _texts(content)]
    if sum(map(len, texts)) > context:
        check_length(tokenizer, "".join(texts), context, "messages")


def mark_chat(tokenizer: Tokenizer, chat: Chat, context: int | None = None) -> Chat:
    """The chat with marks wherever its text could become a control token (see `Tokenizer.mark_chat`).

    Raises RequestError for a chat that cannot fit into ``context``, before its template is rendered.
    """
    if context is not None:
        check_chat_length(tokenizer, chat, context)
    messages, tools = tokenizer.mark_chat(chat.messages, chat.options["tools"])
    variables = tokenizer.mark_variables(chat.options["variables"])
    return replace(chat, messages=messages, options={**chat.options, "tools": tools, "variables": variables})


def render_chat(tokenizer: Tokenizer, chat: Chat) -> str:
    """Render a marked chat in this process.

    Raises RequestError if the template refuses the messages or the model has no chat template.
    """
    return tokenizer.apply_chat_template(chat.messages, **chat.options)


def encode_rendered(
    tokenizer: Tokenizer, chat: Chat, text: str, context: int | None = None, reasoning: Reasoning | None = None
) -> ChatPrompt:
    """Encode a rendered prompt. The template writes all special tokens itself, so none are added.

    Raises RequestError for a prompt that does not fit; with ``context``, before anything is encoded.
    """
    if context is not None:
        check_length(tokenizer, max(text, chat.begun or "", chat.begun_reasoning, key=len), context, "messages")
    ids = tokenizer.encode_rendered(text)
    if reasoning is None:
        return ChatPrompt(
            ids if chat.begun is None else [*ids, *tokenizer.encode(chat.begun, add_special_tokens=False)], "content"
        )
    state = reasoning.state_after(ids)
    if chat.begun is None:
        return ChatPrompt(ids, state)
    begun_ids, state = reasoning.begun(state, chat.begun, chat.begun_reasoning)
    return ChatPrompt([*ids, *begun_ids], state)


def _texts(content: str | Sequence[Mapping[str, str]]) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]


def _images(message: Message, where: str) -> list[ChatImage]:
    parts = message.content if isinstance(message.content, list) else []
    return [
        ChatImage(part.image_url.url, f"{where}.content[{index}].image_url")
        for index, part in enumerate(parts)
        if isinstance(part, ImagePart)
    ]


def _read(message: Message, where: str, *, sees: bool, hears: bool) -> Mapping[str, Any]:
    """The message in the form that templates expect.

    OpenAI's client sends ``refusal`` back with each message. It is null except for OpenAI's own models.
    """
    if message.refusal:
        raise RequestError(f"{where} has 'refusal', which is not supported", param=f"{where}.refusal")
    if isinstance(message.content, list) and any(isinstance(part, RefusalPart) for part in message.content):
        raise RequestError(
            f"{where}.content has a part of type 'refusal'; this model reads parts of type 'text' only",
            param=f"{where}.content",
        )
    if not hears:
        require_heard(message, where)
    content = message.content
    reasoning = message.reasoning_content or message.reasoning
    if content is None and not (message.role == "assistant" and (message.tool_calls or reasoning)):
        raise RequestError(f"{where}.content must be a string, or a list of parts", param=f"{where}.content")
    parts = content if isinstance(content, list) else []
    image = next((index for index, part in enumerate(parts) if isinstance(part, ImagePart)), None)
    if image is not None and not sees:
        raise RequestError(
            f"{where}.content[{image}] is an image, and this model reads texts only; leave it out, or use a "
            "model that reads images",
            param=f"{where}.content[{image}]",
        )
    has_media = any(isinstance(part, ImagePart | SoundPart) for part in parts)
    return {
        # Templates know system messages; developer is OpenAI's later name for them.
        "role": "system" if message.role == "developer" else message.role,
        "content": [_part(part) for part in parts] if has_media else message.text,
        **{key: value for key in ("name", "tool_call_id") if (value := getattr(message, key)) is not None},
        **({"reasoning_content": reasoning} if reasoning and message.role == "assistant" else {}),
        **({"tool_calls": [call.model_dump() for call in message.tool_calls]} if message.tool_calls else {}),
    }


def _part(part: Part) -> Mapping[str, str]:
    """A part of a content in the form of templates, which write a mark for an image or a recording."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "audio" if isinstance(part, SoundPart) else "image"}
