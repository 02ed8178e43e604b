"""ImageEncoder: the features of the images that answers wait for. A few images are computed at a time, between the
steps of other answers. Features are retained by name; those that were not used for longest are dropped first.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol
from weakref import WeakValueDictionary

import numpy as np

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import DeviceError

from .answer import Answer
from .images import ImageName, Pixels, PromptImage


class Tower(Protocol):
    """Makes features of images. All calls come from the engine's thread."""

    def num_at_once(self, images: Sequence[Pixels]) -> int:
        """How many of the first images can be computed together: at least 1."""

    def encode(self, images: Sequence[Pixels]) -> Sequence[FloatArray]:
        """The features (n, E) of each image (height, width, 3) or sound (samples,)."""


class ImageEncoder:
    """``tower`` is None for models that read text only. ``capacity_bytes`` of features are retained.

    ``queries`` are the images of answers, ``hits`` those whose features were retained or on their way.
    """

    def __init__(
        self, tower: Tower | None, capacity_bytes: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._tower, self._capacity_bytes, self._clock = tower, capacity_bytes, clock
        # From then on, images are computed although other answers run.
        self._due = 0.0
        self._retained: OrderedDict[ImageName, FloatArray] = OrderedDict()
        # Those that answers or `_retained` hold.
        self._held: WeakValueDictionary[ImageName, FloatArray] = WeakValueDictionary()
        # The answers that wait, and by name the images whose features they lack. Their images are computed in turn.
        self._waiting: deque[Answer] = deque()
        self._missing: dict[Answer, dict[ImageName, PromptImage]] = {}
        self.retained_bytes = self.queries = self.hits = 0

    @property
    def waiting(self) -> Sequence[Answer]:
        """The answers that lack features."""
        return self._waiting

    def begin(self, answer: Answer) -> bool:
        """Whether all features of an answer's images are there. Otherwise a later `step` returns the answer."""
        wanted = {image.name: image for image in answer.request.images if image.features is None}
        on_their_way = {name for missing in self._missing.values() for name in missing}
        self.queries += len(wanted)
        self.hits += sum(name in self._held or name in on_their_way for name in wanted)
        answer.features = {name: features for name in wanted if (features := self._find(name)) is not None}
        missing = {name: image for name, image in wanted.items() if name not in answer.features}
        if not missing:
            return True
        self._missing[answer] = missing
        self._waiting.append(answer)
        return False

    def is_due(self, *, others_run: bool) -> bool:
        """Whether to compute images now. Answers that run have as much time between images as the last ones took: a
        tile takes a CPU as long as many decoded tokens.
        """
        return bool(self._waiting) and (not others_run or self._clock() >= self._due)

    def cancel(self, answer: Answer) -> None:
        """An answer has ended; nothing is computed for it alone any more."""
        if self._missing.pop(answer, None) is not None:
            self._waiting.remove(answer)

    def next(self) -> list[PromptImage]:
        """The images to compute now: of the first answer that waits, which then is the last one."""
        assert self._tower is not None
        images = list(self._missing[self._waiting[0]].values())
        self._waiting.rotate(-1)
        return images[: self._tower.num_at_once([_pixels(image) for image in images])]

    def encode(self, images: Sequence[PromptImage]) -> list[FloatArray]:
        """Their features. Raises the errors of the runner, and DeviceError for features that are not numbers."""
        assert self._tower is not None
        started = self._clock()
        rows = [np.asarray(each, np.float32) for each in self._tower.encode([_pixels(image) for image in images])]
        self._due = 2 * self._clock() - started
        for image, features in zip(images, rows, strict=True):
            assert len(features) == image.length, f"{len(features)} features for {image.length} tokens"
            if not np.isfinite(features).all():
                raise DeviceError(
                    f"the {'sound' if image.is_sound else 'image'}'s features are not numbers; try another quantization"
                )
        return rows

    def add(self, images: Sequence[PromptImage], rows: Sequence[FloatArray]) -> list[Answer]:
        """Retain the features of images. Returns the answers that have all of theirs now."""
        ready = []
        for image, features in zip(images, rows, strict=True):
            self._held[image.name] = features
            self._retain(image.name, features)
            for answer in self.waiting_for([image]):
                answer.features[image.name] = features
                missing = self._missing[answer]
                del missing[image.name]
                if not missing:
                    self.cancel(answer)
                    ready.append(answer)
        return ready

    def waiting_for(self, images: Sequence[PromptImage]) -> list[Answer]:
        """The answers that lack the features of any of the images."""
        names = {image.name for image in images}
        return [answer for answer in self._waiting if not names.isdisjoint(self._missing[answer])]

    def _find(self, name: ImageName) -> FloatArray | None:
        features = self._held.get(name)
        if features is not None and name in self._retained:
            self._retained.move_to_end(name)
        return features

    def _retain(self, name: ImageName, features: FloatArray) -> None:
        if name in self._retained or features.nbytes > self._capacity_bytes:
            return
        self._retained[name] = features
        self.retained_bytes += features.nbytes
        while self.retained_bytes > self._capacity_bytes:
            _, oldest = self._retained.popitem(last=False)
            self.retained_bytes -= oldest.nbytes


def placed_images(answer: Answer) -> list[PromptImage]:
    """The images of an answer, with their features."""
    return [
        image if image.features is not None else replace(image, pixels=None, features=answer.features[image.name])
        for image in answer.request.images
    ]


def _pixels(image: PromptImage) -> Pixels:
    assert image.pixels is not None, "check_request requires pixels or features"
    return image.pixels
