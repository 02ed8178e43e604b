"""The images of a chat in its prompt: the text that stands for each, and the tokens whose embeddings they replace."""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.images.patches import CutImage
from nearfar.compiler.runtime.media import feature_places

from ..engine.images import PromptImage


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
