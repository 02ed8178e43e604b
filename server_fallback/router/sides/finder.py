"""Finder: a classifier of tokens on this machine, whose labels become kinds of private texts, for a policy's
`private.masks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.shared.script import SharedScript

from ...executors.encoder_executor import EncoderExecutor
from ...executors.executor import Call
from ...schema.score import Classification, ClassifyRequest, ClassifyResponse
from ..decision.policy import MaskEntity

MAX_CHARACTERS = 100_000
TIMEOUT_SECONDS = 20.0


class Classifies(Protocol):
    """The part of an executor that finds entities. Raises the errors of `Executor`."""

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse: ...


class Finder:
    """``labels`` are those of the classifier's model. ``kinds`` has the kind of each label ("MISC" of "B-MISC") that
    has another one than its name says, or that no known kind has for a name (`web/src/shared/masks/kinds.ts`): letters
    A to Z, or None if it is not private. A text of more than ``max_characters``, or whose search takes longer than
    ``timeout_seconds``, is not searched, so its request stays on this machine.

    Raises RequestError for labels without a kind.
    """

    def __init__(
        self,
        classifier: Classifies,
        labels: Sequence[str],
        kinds: Mapping[str, str | None] | None = None,
        *,
        max_characters: int = MAX_CHARACTERS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        named = SharedScript.of_thread().ask("kindsOfLabels", list(labels), dict(kinds or {}))
        self._classifier, self._kinds = classifier, dict[str, str | None](named)
        self._max_characters, self._timeout_seconds = max_characters, timeout_seconds

    @classmethod
    def of(cls, executor: EncoderExecutor, kinds: Mapping[str, str | None] | None = None) -> Finder:
        """``executor`` stays the caller's to close. Raises RequestError for a model that labels no tokens, too."""
        classifier = executor.model.classifier
        if classifier is None or not classifier.per_token:
            raise RequestError(f"{executor.model.name} labels no tokens; use a classifier of tokens", param="finder")
        return cls(executor, classifier.labels, kinds)

    @property
    def entities(self) -> tuple[MaskEntity, ...]:
        """The kinds that it finds, as the ``entities`` of a policy that masks all of them."""
        found = dict.fromkeys(kind for kind in self._kinds.values() if kind is not None)
        return tuple(MaskEntity(label=kind, kind=kind) for kind in found)

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse:
        """The spans of texts, labelled with their kinds. Raises RequestError for texts that are too long, DeviceError
        if the search takes too long, and what the classifier raises.
        """
        texts = [request.input] if isinstance(request.input, str) else request.input
        characters = sum(len(text) for text in texts if isinstance(text, str))
        if characters > self._max_characters:
            raise RequestError(
                f"the finder searches at most {self._max_characters} characters of a text, which has {characters}; "
                "shorten it, or raise max_characters",
                param="input",
            )
        try:
            async with asyncio.timeout(self._timeout_seconds) as limit:
                response = await self._classifier.classify(request, call)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeviceError(f"the finder has not searched a text within {self._timeout_seconds} s") from error
        return response.model_copy(update={"data": [self._of_kinds(each) for each in response.data]})

    def _of_kinds(self, found: Classification) -> Classification:
        if found.spans is None:
            return found
        spans = [
            span.model_copy(update={"label": kind})
            for span in found.spans
            if (kind := self._kinds[span.label]) is not None
        ]
        return found.model_copy(update={"spans": spans})
