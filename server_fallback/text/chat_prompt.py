"""Turns a chat of OpenAI's API into the token ids of its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from nearfar.compiler.ir.images import ImageSpec, MediumKind
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.reasoning import Reasoning, State
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

from ..engine.images import PromptImage
from ..schema.chat import ImagePart, Message, Part, RefusalPart, SeenPart, SoundPart, TextPart, VideoPart
from ..schema.functions import Tool
from .attachments import recordings, require_heard, with_files
from .requests import check_length


class ChatImage(NamedTuple):
    """The URL of an image or a video, and the parameter that has it. A video may be ``frames`` instead, URLs of images,
    of which a second has ``fps``.
    """

    url: str
    param: str
    kind: MediumKind = "image"
    frames: Sequence[str] = ()
    fps: float = 0.0


class ChatSound(NamedTuple):
    """The base64 of a recording, and the part that has it."""

    data: str
    param: str


@dataclass(frozen=True, slots=True)
class Chat:
    """The input of a chat template: messages, and the keyword arguments of `ChatTemplate.render`.

    ``begun`` is the start of the answer, which follows the rendered text, and ``begun_reasoning`` the reasoning before
    it. ``images`` are the pictures and videos of all messages, and ``sounds`` their recordings, in their order.
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
    images: ImageSpec | None = None,
    hears: bool = False,
) -> Chat:
    """With ``continue_final_message``, the last message is the start of the answer. The template gets ``variables``.
    ``images``: how the model reads images and videos, None if it reads neither; ``hears``: it reads recordings.

    Raises RequestError, also for an image, a video or a recording that the model does not read.
    """
    messages = with_files(messages)
    read = [_read(message, f"messages[{index}]", images, hears=hears) for index, message in enumerate(messages)]
    sounds = [
        ChatSound(part.input_audio.data, f"messages[{index}].content[{at}].input_audio")
        for index, at, part in recordings(messages)
    ]
    seen = [image for index, message in enumerate(messages) for image in _images(message, f"messages[{index}]")]
    described = None if tools is None else [tool.model_dump(exclude_none=True) for tool in tools]
    options = {"add_generation_prompt": add_generation_prompt, "tools": described, "variables": variables}
    if not continue_final_message:
        return Chat(read, options, images=seen, sounds=sounds)
    last = read[-1]
    if last["role"] != "assistant" or "tool_calls" in last or not isinstance(last["content"], str):
        raise RequestError(
            "continue_final_message needs an assistant's message of text at the end", param="continue_final_message"
        )
    # The template ends with what opens an answer, so the answer's own start follows it.
    return Chat(read[:-1], options, last["content"], last.get("reasoning_content", ""), seen, sounds)


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
    return [_image(part, f"{where}.content[{index}]") for index, part in enumerate(parts) if isinstance(part, SeenPart)]


def _image(part: SeenPart, where: str) -> ChatImage:
    if isinstance(part, ImagePart):
        return ChatImage(part.image_url.url, f"{where}.image_url")
    if isinstance(part, VideoPart):
        return ChatImage(part.video_url.url, f"{where}.video_url", "video")
    return ChatImage("", f"{where}.frames", "video", part.frames, part.fps)


def _read(message: Message, where: str, images: ImageSpec | None, *, hears: bool) -> Mapping[str, Any]:
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
    for index, part in enumerate(parts):
        if not isinstance(part, SeenPart):
            continue
        what = "an image" if isinstance(part, ImagePart) else "a video"
        if images is None or (what == "a video" and images.video is None):
            read = "texts" if images is None else "texts and images"
            raise RequestError(
                f"{where}.content[{index}] is {what}, and this model reads {read} only; leave it out, or use a model "
                f"that reads {what.split()[1]}s",
                param=f"{where}.content[{index}]",
            )
    has_media = any(isinstance(part, SeenPart | SoundPart) for part in parts)
    return {
        # Templates know system messages; developer is OpenAI's later name for them.
        "role": "system" if message.role == "developer" else message.role,
        "content": [_part(part) for part in parts] if has_media else message.text,
        **{key: value for key in ("name", "tool_call_id") if (value := getattr(message, key)) is not None},
        **({"reasoning_content": reasoning} if reasoning and message.role == "assistant" else {}),
        **({"tool_calls": [call.model_dump() for call in message.tool_calls]} if message.tool_calls else {}),
    }


def _part(part: Part) -> Mapping[str, str]:
    """A part of a content in the form of templates, which write a mark for an image, a video or a recording."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "audio" if isinstance(part, SoundPart) else "image" if isinstance(part, ImagePart) else "video"}
