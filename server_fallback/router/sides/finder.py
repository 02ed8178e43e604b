"""Finder: a classifier of tokens on this machine, whose labels become kinds of private texts, for a policy's
`private.masks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript

from ...executors.encoder_executor import EncoderExecutor
from ...executors.executor import Call, Executor
from ...schema.score import Classification, ClassifyRequest, ClassifyResponse
from ..decision.policy import MaskEntity, Policy


class Classifies(Protocol):
    """The part of an executor that finds entities. Raises the errors of `Executor`."""

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse: ...


class Finder:
    """``labels`` are those of the classifier's model. ``kinds`` has the kind of each label ("COLOR" of "B-COLOR") that
    has another one than its name says, or that no known kind has for a name (`web/src/shared/masks/kinds.ts`): letters
    A to Z, or None if it is not private. The attribute has the kinds of all.

    Raises RequestError for labels without a kind.
    """

    def __init__(
        self,
        classifier: Classifies,
        labels: Sequence[str],
        kinds: Mapping[str, str | None] | None = None,
    ) -> None:
        named = SharedScript.of_thread().ask("kindsOfLabels", list(labels), dict(kinds or {}))
        self._classifier, self.kinds = classifier, dict[str, str | None](named)

    @classmethod
    def of(cls, executor: Executor, kinds: Mapping[str, str | None] | None = None) -> Finder:
        """``executor``, such as that of `open_executor`, stays the caller's to close. Raises RequestError for a model
        that labels no tokens, too.
        """
        labels = token_labels(executor)
        assert isinstance(executor, EncoderExecutor)
        return cls(executor, labels, kinds)

    @property
    def entities(self) -> tuple[MaskEntity, ...]:
        """The kinds that it finds, as the ``entities`` of a policy that masks all of them."""
        found = dict.fromkeys(kind for kind in self.kinds.values() if kind is not None)
        return tuple(MaskEntity(label=kind, kind=kind) for kind in found)

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse:
        """The spans of texts, labelled with their kinds. Raises what the classifier raises."""
        response = await self._classifier.classify(request, call)
        return response.model_copy(update={"data": [self._of_kinds(each) for each in response.data]})

    def _of_kinds(self, found: Classification) -> Classification:
        if found.spans is None:
            return found
        spans = [
            span.model_copy(update={"label": kind})
            for span in found.spans
            if (kind := self.kinds[span.label]) is not None
        ]
        return found.model_copy(update={"spans": spans})


def finder_for(finder: Classifies | None, policy: Policy) -> Classifies | None:
    """A `Finder` of an executor for the policy's entities, which may name labels that no known kind has for a name; any
    other finder as it is. Raises RequestError as `Finder.of`.
    """
    masks = policy.private.masks
    if not isinstance(finder, EncoderExecutor) or masks is None or not masks.entities:
        return finder
    entities = [entity.model_dump() for entity in masks.entities]
    return Finder.of(finder, SharedScript.of_thread().ask("kindsOfPolicy", list(token_labels(finder)), entities))


def token_labels(executor: Executor) -> Sequence[str]:
    """Raises RequestError for a model that labels no tokens."""
    classifier = executor.model.classifier if isinstance(executor, EncoderExecutor) else None
    if classifier is None or not classifier.per_token:
        raise RequestError("the model labels no tokens; use a classifier of tokens", param="finder")
    return classifier.labels
