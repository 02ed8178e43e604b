"""The images of a prompt: which tokens stand for them, what the prefix cache compares in their place, and the features
that replace their embeddings.

An image is what one of the model's towers reads alone: a tile of a picture, a picture that is not cut, or a sound. Each
of its features takes the place of one placeholder token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.runtime.batch import FloatArray

# A key is read in windows of this many bits, of which a SHA-256 has five whole ones: JavaScript's numbers are exact up
# to 53 bits.
WINDOW_BITS, NUM_WINDOWS = 48, 5
HEX_DIGITS = WINDOW_BITS // 4
# The key of a picture, and the first feature of one of its tiles.
ImageName = tuple[str, int]
# Bytes of a picture, or the samples of a sound as float32.
Pixels = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class PromptImage:
    """The ``length`` tokens from ``offset`` on are placeholders for an image's features, in their order.

    ``key`` is the SHA-256 of its picture and of how the model reads that, in hexadecimal digits, and ``first`` the
    number of features of the picture's tiles before it. Images with the same two have the same features. ``pixels``
    (height, width, 3) are what the tower reads, not yet normalized, or the samples (N,) of a sound if it ``is_sound``;
    ``features`` (length, E) what the tower has made of them. A request has one of the two. ``columns`` of the features
    are side by side, which models that rotate by row and column need to know.
    """

    offset: int
    length: int
    key: str
    first: int = 0
    pixels: Pixels | None = None
    features: FloatArray | None = None
    columns: int = 0
    is_sound: bool = False

    @property
    def name(self) -> ImageName:
        """Equal for images with the same features only."""
        return self.key, self.first

    @property
    def end(self) -> int:
        return self.offset + self.length

    def size_bytes(self, feature_size: int) -> int:
        """The most memory that it needs: of its pixels, or of features of ``feature_size`` numbers."""
        pixel_bytes = 0 if self.pixels is None else self.pixels.nbytes
        return max(pixel_bytes, self.length * feature_size * np.dtype(np.float32).itemsize)

    @property
    def grid(self) -> tuple[int, int, int]:
        """As `rope_positions_between` reads it."""
        return self.offset, self.length, self.columns

    @property
    def placed(self) -> tuple[int, FloatArray]:
        """Its features, and the position of its first token."""
        assert self.features is not None, "a sequence begins when its images have features"
        return self.offset, self.features


def placeholder_key(key: str, index: int) -> int:
    """What the prefix cache compares instead of the id of the placeholder of a picture's feature ``index``: a number
    below 0, which is no token's id.

    Consecutive placeholders have different windows of the key, so pictures agree in five of them only if they agree in
    240 bits. tests/conformance/image_keys.json holds every runtime to these numbers.
    """
    start = index % NUM_WINDOWS * HEX_DIGITS
    return -1 - index - int(key[start : start + HEX_DIGITS], 16)


def end_outside_images(images: Iterable[PromptImage], start: int, end: int) -> int:
    """The last position from ``start`` to ``end`` before which a step may end without cutting a picture. Sounds may be
    cut, and pictures are not adjacent.
    """
    cut = next((image for image in images if not image.is_sound and image.offset < end < image.end), None)
    return end if cut is None else max(start, cut.offset)


def prompt_keys(tokens: Sequence[int], images: Iterable[PromptImage]) -> list[int]:
    """The tokens of a prompt as the prefix cache compares them."""
    keys = list(tokens)
    for image in images:
        indices = range(image.first, image.first + image.length)
        keys[image.offset : image.end] = [placeholder_key(image.key, index) for index in indices]
    return keys
