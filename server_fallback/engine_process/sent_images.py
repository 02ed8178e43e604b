"""The pixels of images between a server and the process of an engine: they are sent once for all unfinished answers
that have them, such as those of one request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..engine.images import ImageName, Pixels, PromptImage


class SentImages:
    """The server's side: the images that the process has, each with the number of answers that need it."""

    def __init__(self) -> None:
        self._users = Counter[ImageName]()

    def begin(self, images: Sequence[PromptImage]) -> list[PromptImage]:
        """What is sent of an answer's images: without pixels if the process has them."""
        sent = [replace(image, pixels=None) if self._users[image.name] else image for image in images]
        self._users.update(_names(images))
        return sent

    def end(self, images: Sequence[PromptImage]) -> list[ImageName]:
        """The names of images that no other unfinished answer has, which the process may forget."""
        names = _names(images)
        self._users.subtract(names)
        unused = [name for name in names if self._users[name] <= 0]
        for name in unused:
            del self._users[name]
        return unused


class ReceivedImages:
    """The side of the engine's process."""

    def __init__(self) -> None:
        self._pixels: dict[ImageName, Pixels] = {}

    def begin(self, images: Sequence[PromptImage]) -> list[PromptImage]:
        """The images with their pixels."""
        for image in images:
            if image.pixels is not None:
                self._pixels[image.name] = image.pixels
        return [
            image if image.features is not None else replace(image, pixels=self._pixels.get(image.name))
            for image in images
        ]

    def forget(self, names: Sequence[ImageName]) -> None:
        for name in names:
            del self._pixels[name]


def _names(images: Sequence[PromptImage]) -> list[ImageName]:
    """Those of images with pixels, each once."""
    return list(dict.fromkeys(image.name for image in images if image.pixels is not None))
