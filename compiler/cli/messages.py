"""A conversation in a file: messages in the form of OpenAI's API, with pictures and videos as data: URLs or files
beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..bundle.manifest import Description
from ..ir.images import ImageSpec
from ..runtime.errors import RequestError, reason_of
from ..runtime.images.data_url import is_data_url, read_data_url
from ..runtime.images.decode import decode_image
from ..runtime.images.decode_video import open_video
from ..runtime.images.patches import PreparedImage, prepare_image
from ..runtime.images.videos import prepare_video
from ..runtime.media import encode_media
from ..runtime.text.tokenizer import Tokenizer

NO_PART = 'must be {"type": "text", "text": ...} or {"type": "image_url", "image_url": {"url": ...}}, or a video_url'


class Conversation(NamedTuple):
    """``messages`` for a chat template, whose parts {"type": "image"} and {"type": "video"} stand for ``pictures``."""

    messages: Sequence[Mapping[str, Any]]
    pictures: Sequence[PreparedImage]

    def encode(self, tokenizer: Tokenizer, manifest: Description) -> list[int]:
        """The token ids of the prompt. An answer begins after it, unless an assistant's message ends it. Raises
        RequestError and CheckpointError.
        """
        opens = self.messages[-1]["role"] != "assistant"
        if not self.pictures:
            return tokenizer.encode_chat(self.messages, opens)
        return encode_media(tokenizer, manifest, self.messages, self.pictures, add_generation_prompt=opens)


def read_messages(file: Path, spec: ImageSpec | None, model: str) -> Conversation:
    """The messages of a JSON file: a list, or a request that has it. ``spec``: how the model reads pictures, None if it
    reads texts only. Raises RequestError, which names the part.
    """
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise RequestError(f"--messages {file}: cannot be read: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--messages {file}: is not JSON: {error}") from error
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list) or not messages:
        raise _wrong(file, 'has no messages; write a list such as [{"role": "user", "content": "hello"}]')
    pictures = list[PreparedImage]()
    read = list[Mapping[str, Any]]()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _wrong(file, f"{where} must be an object with a string 'role'")
        content = message.get("content")
        if isinstance(content, list):
            parts = [_part(file, part, f"{where}.content[{at}]", spec, model) for at, part in enumerate(content)]
            pictures += [part for part in parts if isinstance(part, PreparedImage)]
            content = _content(parts)
        elif not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            raise _wrong(file, f"{where}.content must be a string, or a list of parts")
        read.append({**message, "content": content})
    return Conversation(read, pictures)


def require_videos(spec: ImageSpec, model: str) -> None:
    """Raises RequestError for a model that reads no videos."""
    if spec.video is None:
        raise RequestError(f"is a video, and {model} reads pictures and texts only; send pictures of it")


def _content(parts: Sequence[str | PreparedImage]) -> str | list[dict[str, str]]:
    """Parts in the form of templates: one text, or a list with a mark for each picture."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "".join(texts)
    return [{"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind} for part in parts]


def _part(file: Path, part: object, where: str, spec: ImageSpec | None, model: str) -> str | PreparedImage:
    kind = part.get("type") if isinstance(part, dict) else None
    value = part.get(kind) if isinstance(part, dict) and isinstance(kind, str) else None
    if kind == "text" and isinstance(value, str):
        return value
    url = value.get("url") if kind in ("image_url", "video_url") and isinstance(value, dict) else None
    if not isinstance(url, str):
        raise _wrong(file, f"{where} {NO_PART}")
    what = "video" if kind == "video_url" else "picture"
    if spec is None:
        raise _wrong(file, f"{where} is a {what}, and {model} sees none; use the bundle of a model that does")
    try:
        if what == "video":
            require_videos(spec, model)
            return prepare_video(spec, open_video(_bytes(file, url, what)))
        return prepare_image(spec, decode_image(_bytes(file, url, what)))
    except OSError as error:
        raise _wrong(file, f"{where}: {url} cannot be read: {reason_of(error)}") from error
    except RequestError as error:
        raise _wrong(file, f"{where}: {error.message}") from error


def _bytes(file: Path, url: str, what: str) -> bytes:
    """Of a data: URL, or of a file whose path is relative to the folder of the messages."""
    if is_data_url(url):
        return read_data_url(url, what)
    if "://" in url:
        raise RequestError(f"{url[:80]!r} is not fetched; save the {what}, and write its path or a data: URL")
    try:
        return (file.parent / url).read_bytes()
    except ValueError as error:
        raise RequestError(f"{url!r} is not a path") from error


def _wrong(file: Path, problem: str) -> RequestError:
    return RequestError(f"--messages {file}: {problem}")
