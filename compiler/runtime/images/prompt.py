"""Prompts with pictures for a runner with one sequence; the engines that serve many requests have their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.images import ImageSpec
from ..batch import FloatArray, Runner
from ..errors import CheckpointError
from ..patches import image_features
from ..text.tokenizer import Tokenizer
from .patches import PreparedImage


def encode_pictures(
    tokenizer: Tokenizer, spec: ImageSpec, text: str, pictures: Sequence[PreparedImage], system: str | None = None
) -> list[int]:
    """The token ids of a chat in which the user shows ``pictures`` and writes ``text``. Raises RequestError, and
    CheckpointError for a tokenizer that does not fit the pictures' texts.
    """
    first = [] if system is None else [{"role": "system", "content": system}]
    content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}]
    messages, _ = tokenizer.mark_chat([*first, {"role": "user", "content": content}])
    prompt = tokenizer.apply_chat_template(messages)
    return tokenizer.encode_rendered(
        tokenizer.with_pictures(prompt, spec.prompt.mark, [picture.text for picture in pictures])
    )


def placed_features(
    runner: Runner, spec: ImageSpec, prompt: Sequence[int], pictures: Sequence[PreparedImage]
) -> list[tuple[int, FloatArray]]:
    """The features of each tile of the pictures, and the position of its first placeholder in the prompt."""
    places = [index for index, token_id in enumerate(prompt) if token_id == spec.prompt.placeholder_id]
    counts = [count for picture in pictures for count in picture.features]
    if sum(counts) != len(places):
        raise CheckpointError(
            f"tokenizer.json: the text of the pictures has {sum(counts)} times {spec.prompt.placeholder!r}, and the "
            f"prompt {len(places)} times token {spec.prompt.placeholder_id}; correct the checkpoint's tokenizer"
        )
    if not counts:
        return []
    features = np.concatenate([image_features(runner, picture) for picture in pictures])
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    return [(places[start], features[start : start + count]) for start, count in zip(starts, counts, strict=True)]
