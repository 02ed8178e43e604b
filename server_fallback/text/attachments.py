"""Attachments of messages that take their places as text. `web/src/shared/attachments.ts` has the rules."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript

from ..schema.chat import FileData, FilePart, Message, Part, SeenPart, SoundPart, TextPart
from ..schema.completions import AnswerRequest, CompletionRequest

# Of a file's data, which its beginning describes.
HEAD_CHARACTERS = 1024
NO_TRANSCRIBER = "leave it out, or start the server with --transcriber MODEL, such as a Whisper, that writes it down"


def with_files(messages: Sequence[Message], *, keep_others: bool = False) -> Sequence[Message]:
    """The messages with texts in place of their files, part by part. ``keep_others``: a file that is not of text stays,
    for a side that reads it, or refuses it by name.

    Raises RequestError, which names the part unless there are too many.
    """
    count = sum(isinstance(part, FilePart) for message in messages for part in _parts(message))
    if count == 0:
        return messages
    SharedScript.of_thread().ask("requireFew", "files", count)
    return [_with_files(message, f"messages[{index}]", keep_others) for index, message in enumerate(messages)]


def recordings(messages: Sequence[Message]) -> list[tuple[int, int, SoundPart]]:
    """The recordings, each after the indices of its message and part. Raises RequestError for too many."""
    found = [
        (index, at, part)
        for index, message in enumerate(messages)
        for at, part in enumerate(_parts(message))
        if isinstance(part, SoundPart)
    ]
    if found:
        SharedScript.of_thread().ask("requireFew", "sounds", len(found))
    return found


def has_media(request: AnswerRequest) -> bool:
    """Whether the model reads more than text, so that the length of its prompt does not follow from the request's."""
    if isinstance(request, CompletionRequest):
        return False
    return any(isinstance(part, SoundPart | SeenPart) for message in request.messages for part in _parts(message))


def with_text(messages: Sequence[Message], index: int, at: int, transcript: str) -> list[Message]:
    """The messages with a transcript in place of a recording."""
    message = messages[index]
    assert isinstance(message.content, list)
    text = TextPart(type="text", text=SharedScript.of_thread().ask("transcriptText", transcript))
    content = [*message.content[:at], text, *message.content[at + 1 :]]
    return [*messages[:index], message.model_copy(update={"content": content}), *messages[index + 1 :]]


def require_heard(message: Message, where: str) -> None:
    """Raises RequestError for a recording, which only a transcriber reads, or a model that hears."""
    for index, part in enumerate(_parts(message)):
        if isinstance(part, SoundPart):
            SharedScript.of_thread().ask("unheard", f"{where}.content[{index}]", NO_TRANSCRIBER)


def decode_base64(text: str, where: str) -> bytes:
    """Raises RequestError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        fix = "send what follows the comma of the data: URL" if text.startswith("data:") else "send all of it"
        raise RequestError(f"{where} has data that is not base64: {error}; {fix}", param=where) from error


def _parts(message: Message) -> Sequence[object]:
    return message.content if isinstance(message.content, list) else []


def _with_files(message: Message, where: str, keep_others: bool) -> Message:
    if not isinstance(message.content, list):
        return message

    def read(part: Part, at: str) -> Part:
        if not isinstance(part, FilePart):
            return part
        try:
            return TextPart(type="text", text=_file_text(part.file, f"{at}.file"))
        except RequestError:
            if keep_others:
                return part
            raise

    content = [read(part, f"{where}.content[{index}]") for index, part in enumerate(message.content)]
    return message.model_copy(update={"content": content})


def _file_text(file: FileData, where: str) -> str:
    script, given = SharedScript.of_thread(), file.file_data
    opened = script.ask("openFile", file.filename, None if given is None else given[:HEAD_CHARACTERS], where)
    data = decode_base64((given or "")[opened["start"] :], where)
    try:
        text: str | None = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = None
    is_text = text is not None and "\0" not in text
    described = {"bytes": len(data), "start": data[:16].decode("latin-1"), "isText": is_text}
    before, after = script.ask("fileMarks", opened["name"], described, where)
    return f"{before}{text}{after}"
