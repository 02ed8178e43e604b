"""Prompts with pictures and sound for a runner with one sequence; the engines that serve many requests have their
own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..bundle.manifest import Description
from ..ir.images import ImagePrompt, ImageSpec
from .audio.prepared_sound import PreparedSound, SoundRows
from .batch import FloatArray
from .encoder_batch import make_frame_batch
from .errors import CheckpointError
from .images.patches import CutImage, PreparedImage
from .patches import image_features
from .placed_features import PlacedFeatures
from .runner import Runner
from .text.tokenizer import Tokenizer


def encode_media(
    tokenizer: Tokenizer,
    manifest: Description,
    messages: Sequence[Mapping[str, Any]],
    pictures: Sequence[PreparedImage],
    sounds: Sequence[PreparedSound] = (),
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """The token ids of a chat. Parts {"type": "image"} and {"type": "video"} of the messages stand for ``pictures``,
    and {"type": "audio"} for ``sounds``, in their order. ``variables`` are those of the template. Raises RequestError,
    and CheckpointError for a tokenizer that does not fit their texts.
    """
    marked, _ = tokenizer.mark_chat(messages)
    marked_variables = tokenizer.mark_variables(variables)
    prompt = tokenizer.apply_chat_template(marked, add_generation_prompt, None, marked_variables)
    if pictures:
        assert manifest.images is not None
        prompt = with_pictures(tokenizer, prompt, manifest.images, pictures)
    if sounds:
        assert manifest.sounds is not None
        prompt = tokenizer.with_media(prompt, manifest.sounds.prompt.mark, [each.text for each in sounds], "sound")
    return tokenizer.encode_rendered(prompt)


def with_pictures(
    tokenizer: Tokenizer, prompt: str, spec: ImageSpec, pictures: Sequence[PreparedImage | CutImage]
) -> str:
    """A rendered prompt with the texts of pictures, and then those of videos, which may have the mark of pictures.
    Raises RequestError, and CheckpointError.
    """
    marks = {"image": spec.prompt.mark} | ({} if spec.video is None else {"video": spec.video.prompt.mark})
    for kind, mark in marks.items():
        texts = [picture.text for picture in pictures if picture.kind == kind]
        if texts or kind == "image":
            prompt = tokenizer.with_media(prompt, mark, texts, "picture" if kind == "image" else kind)
    return prompt


def placed_features(
    runner: Runner,
    prompt: Sequence[int],
    pictures: Sequence[PreparedImage],
    sounds: Sequence[PreparedSound] = (),
    *,
    see: Callable[[Runner, PreparedImage], FloatArray] = image_features,
) -> list[PlacedFeatures]:
    """The features of each tile of the pictures and of each sound, in the order of the prompt. ``see`` makes those of a
    picture.
    """
    images, heard, placed = runner.manifest.images, runner.manifest.sounds, list[PlacedFeatures]()
    if pictures:
        assert images is not None
        counts = [count for picture in pictures for count in picture.features]
        features = np.concatenate([see(runner, picture) for picture in pictures])
        columns = [count for picture in pictures for count in columns_of(picture, images.block)]
        places = feature_places(images.prompt, prompt, counts, "pictures")
        placed += map(PlacedFeatures, places, np.split(features, np.cumsum(counts)[:-1]), columns)
    if sounds:
        assert heard is not None
        places = feature_places(heard.prompt, prompt, [sound.features for sound in sounds], "sounds")
        for place, sound in zip(places, sounds, strict=True):
            placed.append(PlacedFeatures(place, sound_features(runner, sound.rows), 0))
    return sorted(placed, key=lambda each: each.first)


def sound_features(runner: Runner, rows: SoundRows) -> FloatArray:
    """The features (n, E) of the rows of a sound: all at once, or as many at a time as the runner's limits
    allow if its tower reads rows alone. Raises RequestError as `Runner.listen`.
    """
    hearing, frames = runner.manifest.spec.hearing, rows.frames
    if hearing is not None and hearing.whole:
        return runner.listen(make_frame_batch([frames], [rows.row_frames]))
    at_once = runner.limits.tokens
    parts = [frames[start : start + at_once] for start in range(0, len(frames), at_once)]
    return np.concatenate([runner.listen(make_frame_batch([part])) for part in parts])


def columns_of(picture: PreparedImage, block: int) -> list[int]:
    """How many features of each tile are side by side."""
    across = np.maximum.reduceat(picture.positions[:, 1], picture.starts[:-1]) + 1
    return [int(each) // block for each in across]


def feature_places(prompt: ImagePrompt, token_ids: Sequence[int], counts: Sequence[int], what: str) -> list[int]:
    """The position of the first placeholder of each tile or sound in a prompt; ``counts`` are their features, ``what``
    names them. Raises CheckpointError for a prompt with another number of placeholders.
    """
    places = [index for index, token_id in enumerate(token_ids) if token_id == prompt.placeholder_id]
    if sum(counts) != len(places):
        raise CheckpointError(
            f"tokenizer.json: the text of the {what} has {sum(counts)} times {prompt.placeholder!r}, and the prompt "
            f"{len(places)} times token {prompt.placeholder_id}; correct the checkpoint's tokenizer"
        )
    return [places[start] for start in accumulate(counts[:-1], initial=0)] if counts else []
