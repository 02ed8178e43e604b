"""Models of embeddings and scores over fake engines, beside the model "fake", for tests of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fake_models import CREATED, FakeExecutor, FakeModels
from fake_source import FakeEncoder, text_model

from nearfar.compiler.ir.tasks import ClassifierSpec, EmbeddingSpec, PromptSpec
from nearfar.server_fallback.executors.encoder_executor import EncoderExecutor
from nearfar.server_fallback.executors.executor import ExecutorState
from nearfar.server_fallback.schema.models import ModelCard

EMBEDDING = EmbeddingSpec(pooling="mean", normalize=True, size=3, dimensions=(2,))
PROMPTED = replace(EMBEDDING, prompts=(PromptSpec("query", "bb"), PromptSpec("plain", "c")), default_prompt="plain")
LABELS = ("b", "a")


def letters(ids: Sequence[int], types: Sequence[int]) -> list[list[float]]:  # noqa: ARG001
    """How often a text has the letters a, b and c, as its vector."""
    return [[ids.count(97), ids.count(98), ids.count(99)]]


def encoders(folder: Path) -> dict[str, EncoderExecutor]:
    """A vector counts the letters a, b and c; a pair's score is 1 for two texts with an a each, else -1; a text's class
    is the more frequent one of a and b, and a token's class its letter.
    """
    tag = ClassifierSpec(LABELS, "softmax", per_token=True)
    return {
        "embed": EncoderExecutor(FakeEncoder(letters), text_model(folder, embedding=EMBEDDING)),
        "prompted": EncoderExecutor(FakeEncoder(letters), text_model(folder, embedding=PROMPTED)),
        "rank": EncoderExecutor(
            FakeEncoder(lambda ids, _: [[1.0 if ids.count(97) > 1 else -1.0]]),
            text_model(folder, classifier=ClassifierSpec(("relevant",), "sigmoid", relevance=0)),
        ),
        "classify": EncoderExecutor(
            FakeEncoder(lambda ids, _: [[ids.count(98), ids.count(97)]]),
            text_model(folder, classifier=ClassifierSpec(LABELS, "softmax")),
        ),
        "tag": EncoderExecutor(
            FakeEncoder(lambda ids, _: [[token == 98, token == 97] for token in ids]),
            text_model(folder, classifier=tag),
        ),
    }


@dataclass
class ModelsWithEncoders(FakeModels):
    encoders: dict[str, EncoderExecutor] = field(default_factory=dict)

    def cards(self) -> Sequence[ModelCard]:
        return [*super().cards(), *(ModelCard(id=name, created=CREATED, root=name) for name in self.encoders)]

    def states(self) -> Mapping[str, ExecutorState]:
        return {**super().states(), **{name: one.state() for name, one in self.encoders.items()}}

    async def executor(self, name: str) -> FakeExecutor | EncoderExecutor:  # type: ignore[override]
        return self.encoders[name] if name in self.encoders else await super().executor(name)
