"""The ``nearfar`` field of a pipeline's answers (extension): its steps with their times, and the passages."""

from __future__ import annotations

from .common import LeftOut, Reply


class StepTime(Reply):
    """``name`` is the step's output. ``started_ms`` counts from the arrival of the request at the pipeline."""

    name: str
    kind: str
    model: str | None = None
    started_ms: float
    ms: float


class UsedPassage(Reply):
    """A passage that the answering model was given: the characters ``begins`` to ``ends`` of a document's text."""

    source: str
    begins: int
    ends: int
    score: float
    text: str


class PipelineTrace(Reply):
    """In a stream, the first chunk has the steps before the answer and the passages, and the one with the finish reason
    all steps.
    """

    steps: list[StepTime]
    passages: LeftOut[list[UsedPassage]] = None
