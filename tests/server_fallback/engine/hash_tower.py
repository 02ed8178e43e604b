"""Images for the hash model: a tower whose features are hashes of an image's pixels, so that pages with those of
another image, or of another row, give another answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.server_fallback.engine.images import PromptImage
from nearfar.server_fallback.engine.request import TokenRequest

# The placeholder, and the numbers of a feature.
IMAGE_TOKEN, FEATURE_SIZE = 15, 2
Pixels = npt.NDArray[np.uint8]


@dataclass
class HashTower:
    """``at_once``: how many images are computed together. ``fail`` returns the error to raise for a call, by its
    number.
    """

    at_once: int = 1
    fail: Callable[[int], Exception | None] = lambda _: None
    encoded: list[bytes] = field(default_factory=list)
    calls: int = 0

    def num_at_once(self, images: Sequence[Pixels]) -> int:
        return min(len(images), self.at_once)

    def encode(self, images: Sequence[Pixels]) -> list[FloatArray]:
        assert 0 < len(images) <= self.at_once
        self.calls += 1
        error = self.fail(self.calls - 1)
        if error is not None:
            raise error
        self.encoded += [image.tobytes() for image in images]
        return [features_of(image) for image in images]


def features_of(pixels: Pixels) -> FloatArray:
    """One feature for each pixel, which depends on all of them: (n, FEATURE_SIZE)."""
    total = int.from_bytes(sha256(pixels.tobytes()).digest()[:2])
    indices = np.arange(pixels.size // 3)
    return np.stack([100 + (total + 7 * indices) % 9_973, indices], 1).astype(np.float32)


def picture(seed: int, length: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (1, length, 3), np.uint8)


def image_at(offset: int, pixels: Pixels) -> PromptImage:
    return PromptImage(offset, pixels.size // 3, sha256(pixels.tobytes()).hexdigest(), pixels=pixels)


def with_images(parts: Sequence[int | Pixels], **request: object) -> TokenRequest:
    """A request whose prompt has these tokens and images."""
    prompt: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, int):
            prompt.append(part)
        else:
            images.append(image_at(len(prompt), part))
            prompt += [IMAGE_TOKEN] * images[-1].length
    return TokenRequest(prompt, images=images, **request)  # type: ignore[arg-type]
