"""The token ids of a chat's prompt, with its pictures and recordings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nearfar.compiler.runtime.audio.prepared_sound import HeardSound
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.images.patches import CutImage
from nearfar.compiler.runtime.media import with_pictures

from ..text.chat_images import heard_sounds, placed_images, placed_sounds
from ..text.chat_prompt import Chat, ChatPrompt, encode_rendered, mark_chat, render_chat
from ..text.text_workers import TextWorkers
from .text_model import TextModel


async def chat_prompt(model: TextModel, workers: TextWorkers, chat: Chat, context: int, client: str) -> ChatPrompt:
    """Raises RequestError. A prompt that is many times too long is refused before it is rendered or encoded."""
    tokenizer, template, run = model.tokenizer, workers.template, model.long_texts.run
    texts = [chat.messages, chat.options]
    try:
        marked = await run(texts, client, lambda: mark_chat(tokenizer, chat, context))
        if template is None:
            text = await run(texts, client, lambda: render_chat(tokenizer, marked))
        else:
            text = await template.render(marked.messages, marked.options, client)
        reasoning = model.reasoning
        spec, pictures = model.images, await pictures_of(workers, chat, context, client)
        if spec is not None:
            text = with_pictures(tokenizer, text, spec, pictures)
        ears, sounds = model.sounds, await sounds_of(model, chat)
        if ears is not None:
            text = tokenizer.with_media(text, ears.prompt.mark, [sound.text for sound in sounds], "sound")
        begun = [text, chat.begun, chat.begun_reasoning]
        prompt = await run(begun, client, lambda: encode_rendered(tokenizer, marked, text, context, reasoning))
        images = [] if spec is None else placed_images(prompt.ids, spec, pictures)
        images += [] if ears is None else placed_sounds(prompt.ids, ears, sounds)
        return prompt._replace(images=sorted(images, key=lambda each: each.offset))
    except RequestError as error:
        raise RequestError(error.message, **{"param": "messages", **error.details}) from error


async def pictures_of(workers: TextWorkers, chat: Chat, context: int, client: str) -> Sequence[CutImage]:
    """The images of a chat. Raises RequestError, and Unavailable."""
    if not chat.images:
        return []
    assert workers.images is not None, "read_chat refuses images for models that read texts only"
    return await workers.images.read(chat.images, context, client)


async def sounds_of(model: TextModel, chat: Chat) -> Sequence[HeardSound]:
    """The recordings of a chat. Raises RequestError, and ToolError."""
    if not chat.sounds:
        return []
    spec = model.sounds
    assert spec is not None, "read_chat refuses recordings for models that do not hear"
    return await asyncio.to_thread(heard_sounds, spec, chat.sounds)
