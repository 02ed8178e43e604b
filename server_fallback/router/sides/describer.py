"""Describer: texts that near makes of a request's media, for policies that let only such texts leave the device.

`web/src/shared/decision/description.ts` has how near is asked and what far receives.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from hashlib import sha256

from nearfar.compiler.runtime.errors import DeadlineExceeded, DeviceError, NearfarError, RequestError, Unavailable
from nearfar.compiler.shared.script import SharedScript

from ...executors.circuit import Circuit
from ...executors.executor import Call
from ...executors.recordings import transcript_of
from ...schema.chat import ChatCompletionRequest, FramesPart, ImagePart, Message, Part, SoundPart, TextPart, VideoPart
from ...schema.route import Description
from ...text.attachments import recordings
from ..decision.situation import Media, MediaKind
from .near import NearSide

# Texts that are retained, so that a conversation's next turn does not make them again.
MAX_TEXTS = 256


class Describer:
    """Near's transcriber writes down sound. A text takes at most ``max_seconds``."""

    def __init__(self, near: NearSide, circuit: Circuit, *, max_seconds: float) -> None:
        self._near, self._circuit, self._max_seconds = near, circuit, max_seconds
        self._texts: OrderedDict[str, str] = OrderedDict()

    @property
    def kinds(self) -> tuple[MediaKind, ...]:
        """The kinds of media that become texts."""
        near = self._near
        kinds: dict[MediaKind, bool] = {
            "picture": near.reads_images,
            "video": near.reads_videos,
            "sound": near.transcriber is not None,
        }
        return tuple(kind for kind, is_read in kinds.items() if is_read)

    async def describe(self, request: ChatCompletionRequest, media: Sequence[Media], call: Call) -> list[Description]:
        """Raises RequestError for too many recordings, RequestError or Unavailable with the code "undescribed", or
        DeadlineExceeded.
        """
        described = []
        recordings(request.messages)
        for each in media:
            assert each.kind != "text"
            assert each.message is not None
            assert each.part is not None
            content = request.messages[each.message].content
            assert isinstance(content, list)
            path = f"messages[{each.message}].content[{each.part}]"
            try:
                async with asyncio.timeout(self._max_seconds):
                    text = await self._text(each.kind, content[each.part], path, call)
            except DeadlineExceeded:
                raise
            except (NearfarError, TimeoutError) as error:
                raise undescribed(each, error) from error
            marked = SharedScript.of_thread().ask("describedText", each.kind, text)
            described.append(Description(path=path, kind=each.kind, text=marked))
        return described

    async def _text(self, kind: MediaKind, part: Part, path: str, call: Call) -> str:
        key = key_of(part)
        if key is not None and key in self._texts:
            self._texts.move_to_end(key)
            return self._texts[key]
        if isinstance(part, SoundPart):
            assert self._near.transcriber is not None
            text = (await transcript_of(self._near.transcriber, self._near.name, part, path, own(call))).text
        else:
            text = await self._description(kind, part, call)
        if key is not None:
            self._texts[key] = text
            if len(self._texts) > MAX_TEXTS:
                self._texts.popitem(last=False)
        return text

    async def _description(self, kind: MediaKind, part: Part, call: Call) -> str:
        rules = SharedScript.of_thread().ask("describing", kind)
        request = ChatCompletionRequest(
            model=self._near.name,
            messages=[Message(role="user", content=[part, TextPart(type="text", text=rules["prompt"])])],
            temperature=0.0,
            max_tokens=rules["max_tokens"],
            reasoning_effort="none",
        )
        self._circuit.begin()
        text = ""
        try:
            async with aclosing(self._near.answer(request, own(call), None)) as pieces:
                async for piece in pieces:
                    text += piece.text
            if not text.strip():
                raise Unavailable("its model wrote no description")
        except (DeviceError, Unavailable):
            self._circuit.failed()
            raise
        finally:
            self._circuit.ended()
        self._circuit.succeeded()
        return text


def with_descriptions(request: ChatCompletionRequest, described: Sequence[Description]) -> ChatCompletionRequest:
    """The request with the texts in place of its media."""
    texts = {each.path: each.text for each in described}

    def written(message: Message, index: int) -> Message:
        if not isinstance(message.content, list):
            return message
        paths = [f"messages[{index}].content[{part}]" for part in range(len(message.content))]
        content = [
            TextPart(type="text", text=texts[path]) if path in texts else part
            for path, part in zip(paths, message.content, strict=True)
        ]
        return message.model_copy(update={"content": content})

    messages = [written(message, index) for index, message in enumerate(request.messages)]
    return request.model_copy(update={"messages": messages})


def own(call: Call) -> Call:
    """A call of the router's own, whose tokens are not the answer's."""
    return replace(call, expect_tokens=None, observe_queue=None, observe_token=None, observe_prompt_logprobs=None)


def key_of(part: Part) -> str | None:
    """The name of a part that contains its bytes; None for an address, whose picture or video may change."""
    match part:
        case ImagePart():
            addresses = [part.image_url.url]
        case VideoPart():
            addresses = [part.video_url.url]
        case FramesPart():
            addresses = list(part.frames)
        case _:
            addresses = []
    if not all(url[:5].lower() == "data:" for url in addresses):
        return None
    return sha256(part.model_dump_json().encode()).hexdigest()


def undescribed(media: Media, error: NearfarError | TimeoutError) -> NearfarError:
    why = error.message if isinstance(error, NearfarError) else "it took too long"
    place = {"kind": media.kind, "message": media.message, "part": media.part}
    try:
        SharedScript.of_thread().ask("undescribed", place, why, isinstance(error, RequestError))
    except NearfarError as raised:
        return raised
    raise AssertionError("media that are not described are an error")
