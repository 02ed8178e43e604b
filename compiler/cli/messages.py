"""A conversation in a file: messages in the form of OpenAI's API, with pictures and videos as data: URLs or files
beside it, and with recordings.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..bundle.manifest import Description
from ..given_file import MAX_DATA_BYTES, MAX_MEDIA_BYTES, read_given
from ..ir.images import ImageSpec
from ..runtime.audio.prepared_sound import PreparedSound, prepare_sound
from ..runtime.audio.sound import read_sound
from ..runtime.batch import FloatArray
from ..runtime.errors import RequestError, reason_of
from ..runtime.images.data_url import is_data_url, read_data_url
from ..runtime.images.decode import decode_image
from ..runtime.images.decode_video import open_video
from ..runtime.images.patches import PreparedImage, prepare_image
from ..runtime.images.videos import prepare_video
from ..runtime.media import encode_media
from ..runtime.text.tokenizer import Tokenizer

NO_PART = (
    'must be {"type": "text", "text": ...}, {"type": "image_url", "image_url": {"url": ...}}, a video_url, or '
    '{"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}'
)
Part = str | PreparedImage | PreparedSound


class Conversation(NamedTuple):
    """``messages`` for a chat template, whose parts {"type": "image"} and {"type": "video"} stand for ``pictures``, and
    {"type": "audio"} for ``sounds``.
    """

    messages: Sequence[Mapping[str, Any]]
    pictures: Sequence[PreparedImage]
    sounds: Sequence[PreparedSound]

    def encode(self, tokenizer: Tokenizer, manifest: Description) -> list[int]:
        """The token ids of the prompt. An answer begins after it, unless an assistant's message ends it. Raises
        RequestError and CheckpointError.
        """
        opens = self.messages[-1]["role"] != "assistant"
        if not self.pictures and not self.sounds:
            return tokenizer.encode_chat(self.messages, opens)
        media = self.pictures, self.sounds
        return encode_media(tokenizer, manifest, self.messages, *media, add_generation_prompt=opens)


class ReadMessage(NamedTuple):
    """One message of a `Conversation`, with its own pictures and sounds."""

    message: Mapping[str, Any]
    pictures: Sequence[PreparedImage]
    sounds: Sequence[PreparedSound]


def read_messages(file: Path, manifest: Description) -> Conversation:
    """The messages of a JSON file: a list, or a request that has it. Raises RequestError, which names the part, also
    for what the model does not see or hear.
    """
    content = read_json(file, "--messages ")
    messages = content.get("messages") if isinstance(content, dict) else content
    where = f"--messages {file}: "
    if not isinstance(messages, list) or not messages:
        raise RequestError(f'{where}has no messages; write a list such as [{{"role": "user", "content": "hello"}}]')
    read = [
        read_message(message, f"{where}messages[{index}]", manifest, file.parent)
        for index, message in enumerate(messages)
    ]
    return Conversation(
        [each.message for each in read],
        [picture for each in read for picture in each.pictures],
        [sound for each in read for sound in each.sounds],
    )


def read_json(file: Path, name: str) -> Any:
    """The content of a JSON file. Raises RequestError. ``name`` precedes the file in errors."""
    try:
        return json.loads(read_given(file, MAX_DATA_BYTES))
    except OSError as error:
        raise RequestError(f"{name}{file}: cannot be read: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name}{file}: is not JSON: {error}") from error


def read_message(message: object, where: str, manifest: Description, folder: Path) -> ReadMessage:
    """A message in OpenAI's form, whose pictures have data: URLs or paths that begin in ``folder``. ``where`` names it
    in errors. Raises RequestError.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where} must be an object with a string 'role'")
    content = message.get("content")
    parts = list[Part]()
    if isinstance(content, list):
        parts = [_part(part, f"{where}.content[{at}]", manifest, folder) for at, part in enumerate(content)]
        content = _content(parts)
    elif not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise RequestError(f"{where}.content must be a string, or a list of parts")
    return ReadMessage(
        {**message, "content": content},
        [part for part in parts if isinstance(part, PreparedImage)],
        [part for part in parts if isinstance(part, PreparedSound)],
    )


def require_videos(spec: ImageSpec, model: str) -> None:
    """Raises RequestError for a model that reads no videos."""
    if spec.video is None:
        raise RequestError(f"is a video, and {model} reads pictures and texts only; send pictures of it")


def _content(parts: Sequence[Part]) -> str | list[dict[str, str]]:
    """Parts in the form of templates: one text, or a list with a mark for each picture and sound."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "".join(texts)
    return [_marked(part) for part in parts]


def _marked(part: Part) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "audio" if isinstance(part, PreparedSound) else part.kind}


def _part(part: object, where: str, manifest: Description, folder: Path) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    value = part.get(kind) if isinstance(part, dict) and isinstance(kind, str) else None
    if kind == "text" and isinstance(value, str):
        return value
    key = {"image_url": "url", "video_url": "url", "input_audio": "data"}.get(str(kind))
    source = value.get(key) if key is not None and isinstance(value, dict) else None
    if not isinstance(source, str):
        raise RequestError(f"{where} {NO_PART}")
    what = {"image_url": "picture", "video_url": "video"}.get(str(kind), "recording")
    model, spec, sounds = manifest.model, manifest.images, manifest.sounds
    if (sounds if what == "recording" else spec) is None:
        verb = "hears" if what == "recording" else "sees"
        raise RequestError(f"{where} is a {what}, and {model} {verb} none; use the bundle of a model that does")
    try:
        if what == "recording":
            assert sounds is not None
            return prepare_sound(sounds, _samples(source))
        assert spec is not None
        if what == "video":
            require_videos(spec, model)
            return prepare_video(spec, open_video(_bytes(folder, source, what)))
        return prepare_image(spec, decode_image(_bytes(folder, source, what)))
    except OSError as error:
        raise RequestError(f"{where}: {source[:200]} cannot be read: {reason_of(error)}") from error
    except RequestError as error:
        raise RequestError(f"{where}: {error.message}") from error


def _samples(data: str) -> FloatArray:
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError as error:
        raise RequestError(f"the recording's data is not base64: {error}") from error
    return read_sound(content, "the recording")


def _bytes(folder: Path, url: str, what: str) -> bytes:
    """Of a data: URL, or of a file whose path is relative to the folder."""
    if is_data_url(url):
        return read_data_url(url, what)
    if "://" in url:
        raise RequestError(f"{url[:80]!r} is not fetched; save the {what}, and write its path or a data: URL")
    try:
        return read_given(folder / url, MAX_MEDIA_BYTES)
    except ValueError as error:
        raise RequestError(f"{url!r} is not a path") from error
