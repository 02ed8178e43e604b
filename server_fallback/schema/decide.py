"""/v1/decide: typed questions about a context, and the probability of each answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .chat import Message, Messages
from .common import Exactly, Int64, Items, LeftOut, Reply, Request
from .encoding import EncodingUsage, require_few

Texts = Annotated[Items[str], BeforeValidator(require_few)]


class ChoiceQuestion(Request):
    """Exactly one of ``choices`` is the answer."""

    type: Literal["choice"]
    question: str
    choices: Texts


class YesNoQuestion(Request):
    """The answer is true or false."""

    type: Literal["yes_no"]
    question: str


class ScoreQuestion(Request):
    """The answer is an integer from ``minimum`` to ``maximum``, or one of the levels of ``scale``, lowest first."""

    type: Literal["score"]
    question: str
    minimum: int | None = None
    maximum: int | None = None
    scale: Texts | None = None


class LabelsQuestion(Request):
    """Any number of ``labels`` hold, each independently of the others. A label replaces {} of ``question``, or follows
    it after a colon.
    """

    type: Literal["labels"]
    question: str
    labels: Texts


class Scaling(Request):
    """How the log-probabilities of a question's answers become its probabilities: the softmax of log-probability /
    ``temperature`` + ``bias``, which has a number for each answer.
    """

    temperature: Annotated[float, Field(gt=0)]
    bias: dict[str, float]


class DecisionCalibration(Request):
    """What `fit_calibration` learned from examples. ``model`` is the ``calibration_model`` of their answers, None for
    any. ``questions``: the scaling of each question by its name; of labels, by its name, a slash and the label.
    """

    version: Exactly[Literal[1]]
    model: str | None = None
    examples: Annotated[int, Field(ge=0)] | None = None
    questions: dict[str, Scaling]


Question = Annotated[ChoiceQuestion | YesNoQuestion | ScoreQuestion | LabelsQuestion, Field(discriminator="type")]


class DecideRequest(Request):
    """``questions`` by name, about a ``context`` or the ``messages`` of a chat, of which exactly one is given. A
    question whose answer's confidence is less than ``abstain_below`` gets none.
    """

    model: str
    questions: dict[str, Question]
    context: str | None = None
    messages: Messages[Message] | None = None
    calibration: DecisionCalibration | None = None
    abstain_below: Annotated[float, Field(ge=0, le=1)] | None = None
    user: str | None = None
    priority: Int64 | None = None


class DecidedAnswer(Reply):
    """``answer`` is the likeliest choice, true or false, the likeliest score (an integer or a level), or the labels
    that hold; null if its confidence is below the bound. ``confidence`` is the answer's probability; of labels, that of
    the least certain one. ``probabilities`` has each answer's ("Yes" and "No"; of a label, the probability that it
    holds). ``expectation`` is the mean score, whose levels count from 0. ``unsure`` are labels that are below the
    bound. ``mass`` is the probability, before calibration, that the model would write one of the answers; of labels,
    the least. ``logprobs`` are those of the answers (of each label: Yes and No), from which `fit_calibration` learns.
    """

    type: Literal["choice", "yes_no", "score", "labels"]
    answer: str | bool | int | list[str] | None
    confidence: float
    probabilities: dict[str, float]
    expectation: LeftOut[float] = None
    unsure: LeftOut[list[str]] = None
    mass: float
    logprobs: list[list[float]]


class DecideResponse(Reply):
    """``decisions`` by the names of the questions. ``calibration_model`` is the name of the model in its manifest, the
    same wherever it runs; a calibration is fitted to it.
    """

    id: str
    object: Literal["decisions"] = "decisions"
    created: int
    model: str
    calibration_model: str
    decisions: dict[str, DecidedAnswer]
    usage: EncodingUsage
