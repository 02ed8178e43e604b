"""The pictures and sounds of a chat in its prompt: the text that stands for each, and the tokens whose embeddings they
replace.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.ir.sounds import SoundSpec
from nearfar.compiler.ir.speech import SAMPLE_RATE
from nearfar.compiler.runtime.audio.prepared_sound import HeardSound, heard_sound
from nearfar.compiler.runtime.audio.sound import read_sound
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.images.patches import CutImage
from nearfar.compiler.runtime.media import feature_places
from nearfar.compiler.shared.script import SharedScript

from ..engine.images import PromptImage
from .attachments import decode_base64
from .chat_prompt import ChatSound

# How many wrong parts an error names; what follows them is not read.
MOST_WRONG = 4


def placed_images(ids: Sequence[int], spec: ImageSpec, pictures: Sequence[CutImage]) -> list[PromptImage]:
    """The tiles of all pictures, at the placeholders of a prompt. Raises CheckpointError if their numbers differ."""
    places = iter(
        feature_places(spec.prompt, ids, [count for picture in pictures for count in picture.features], "pictures")
    )
    images = list[PromptImage]()
    for picture in pictures:
        first = 0
        for tile, count in zip(picture.tiles, picture.features, strict=True):
            columns = tile.shape[1] // (spec.patch * spec.block)
            images.append(PromptImage(next(places), count, picture.key, first, pixels=tile, columns=columns))
            first += count
    return images


def placed_sounds(ids: Sequence[int], spec: SoundSpec, sounds: Sequence[HeardSound]) -> list[PromptImage]:
    """As `placed_images`, of sounds."""
    places = feature_places(spec.prompt, ids, [sound.features for sound in sounds], "sounds")
    return [
        PromptImage(place, sound.features, sound.key, pixels=sound.samples, is_sound=True)
        for place, sound in zip(places, sounds, strict=True)
    ]


def heard_sounds(spec: SoundSpec, sounds: Sequence[ChatSound]) -> list[HeardSound]:
    """The samples of a chat's recordings. Raises RequestError, which names the first `MOST_WRONG` wrong parts, and
    ToolError for a kind of file whose decoder is not installed.
    """
    found, wrong = list[HeardSound](), list[RequestError]()
    for sound in sounds:
        try:
            found.append(_heard(spec, sound))
        except RequestError as error:
            wrong.append(error)
            if len(wrong) == MOST_WRONG:
                break
    if wrong:
        raise all_wrong(wrong)
    return found


def _heard(spec: SoundSpec, sound: ChatSound) -> HeardSound:
    most, data = SharedScript.of_thread().ask("attachmentBounds")["sound_bytes"], decode_base64(sound.data, sound.param)
    if len(data) > most:
        message = f"{sound.param} has {len(data)} bytes; at most {most} are read; send parts"
        raise RequestError(message, param=sound.param)
    try:
        return heard_sound(spec, read_sound(data, "audio", spec.most / SAMPLE_RATE))
    except RequestError as error:
        message = f"{sound.param}: {error.message.removeprefix('audio: ')}"
        raise RequestError(message, **{**error.details, "param": sound.param}) from error


def all_wrong(errors: Sequence[RequestError]) -> RequestError:
    """One error with the messages of several parts, and the details of the first."""
    first = errors[0]
    return RequestError("; ".join(error.message for error in errors), **first.details) if errors[1:] else first
