"""Prompts with pictures for a runner with one sequence; the engines that serve many requests have their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ...ir.images import ImagePrompt, ImageSpec
from ..batch import PlacedFeatures
from ..errors import CheckpointError
from ..patches import image_features
from ..runner import Runner
from ..text.tokenizer import Tokenizer
from .patches import PreparedImage


def encode_pictures(
    tokenizer: Tokenizer,
    spec: ImageSpec,
    messages: Sequence[Mapping[str, Any]],
    pictures: Sequence[PreparedImage],
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """The token ids of a chat. Parts {"type": "image"} of the messages stand for ``pictures``, in their order. Raises
    RequestError, and CheckpointError for a tokenizer that does not fit the pictures' texts.
    """
    marked, _ = tokenizer.mark_chat(messages)
    prompt = tokenizer.apply_chat_template(marked, add_generation_prompt)
    return tokenizer.encode_rendered(
        tokenizer.with_pictures(prompt, spec.prompt.mark, [picture.text for picture in pictures])
    )


def placed_features(
    runner: Runner, spec: ImageSpec, prompt: Sequence[int], pictures: Sequence[PreparedImage]
) -> list[PlacedFeatures]:
    """The features of each tile of the pictures, in the prompt."""
    counts = [count for picture in pictures for count in picture.features]
    places = tile_places(spec.prompt, prompt, counts)
    if not counts:
        return []
    features = np.concatenate([image_features(runner, picture) for picture in pictures])
    columns = [count for picture in pictures for count in columns_of(picture, spec.block)]
    parts = zip(places, np.split(features, np.cumsum(counts)[:-1]), columns, strict=True)
    return [PlacedFeatures(*part) for part in parts]


def columns_of(picture: PreparedImage, block: int) -> list[int]:
    """How many features of each tile are side by side."""
    across = np.maximum.reduceat(picture.positions[:, 1], picture.starts[:-1]) + 1
    return [int(each) // block for each in across]


def tile_places(prompt: ImagePrompt, token_ids: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The position of the first placeholder of each tile in a prompt; ``counts`` are their features. Raises
    CheckpointError for a prompt with another number of placeholders.
    """
    places = [index for index, token_id in enumerate(token_ids) if token_id == prompt.placeholder_id]
    if sum(counts) != len(places):
        raise CheckpointError(
            f"tokenizer.json: the text of the pictures has {sum(counts)} times {prompt.placeholder!r}, and the prompt "
            f"{len(places)} times token {prompt.placeholder_id}; correct the checkpoint's tokenizer"
        )
    return [places[start] for start in accumulate(counts[:-1], initial=0)] if counts else []
