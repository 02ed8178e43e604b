"""The images of a chat in its prompt: the text that stands for each, and the tokens whose embeddings they replace."""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.compiler.ir.images import ImagePrompt
from nearfar.compiler.runtime.errors import CheckpointError
from nearfar.compiler.runtime.images.patches import CutImage

from ..engine.images import PromptImage


def placed_images(ids: Sequence[int], prompt: ImagePrompt, pictures: Sequence[CutImage]) -> list[PromptImage]:
    """The tiles of all pictures, at the placeholders of a prompt. Raises CheckpointError if their numbers differ."""
    places = [index for index, token_id in enumerate(ids) if token_id == prompt.placeholder_id]
    needed = sum(sum(picture.features) for picture in pictures)
    if len(places) != needed:
        raise CheckpointError(
            f"tokenizer.json: the text of the pictures has {needed} times {prompt.placeholder!r}, and the prompt "
            f"{len(places)} times token {prompt.placeholder_id}; correct the checkpoint's tokenizer"
        )
    images, place = list[PromptImage](), 0
    for picture in pictures:
        first = 0
        for tile, count in zip(picture.tiles, picture.features, strict=True):
            offset = places[place]
            assert places[place + count - 1] == offset + count - 1, "the placeholders of a tile follow one another"
            images.append(PromptImage(offset, count, picture.key, first, pixels=tile))
            first, place = first + count, place + count
    return images
