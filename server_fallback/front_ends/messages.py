"""The messages between the main process and its front ends, over a `Connection`. Those that return something are calls.

An admitted request has a number, which its front end chose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nearfar.compiler.ir.tasks import Task

from ..api.config import ApiConfig
from ..api.kept_answers import Asked, Claim, Name
from ..api.keys import ApiKey
from ..executors.executor import Call, ModelChange, Recording
from ..executors.local_share import LocalShare, SpeechShare
from ..processes.frames import Ask
from ..schema.models import ModelCard
from ..schema.transcription import TranscriptionRequest

# --- from the main process ---


@dataclass(frozen=True, slots=True)
class SharedModel:
    """A model of the main process. ``share`` is None while the model loads or sleeps; ``asleep`` is its card then."""

    name: str
    model: str
    created: int
    aliases: tuple[str, ...]
    adapters: Mapping[str, str]
    task: Task
    answers_at_once: int | None
    memory_bytes: int
    share: LocalShare | SpeechShare | None
    asleep: ModelCard | None = None


@dataclass(frozen=True, slots=True)
class Configure:
    """A call. ``started``: all models that the server was started with have been loaded."""

    config: ApiConfig
    started: bool


@dataclass(frozen=True, slots=True)
class Begin:
    """``again``: after a front end that failed or hung."""

    configure: Configure
    again: bool


@dataclass(frozen=True, slots=True)
class Publish:
    """All models from now on. It returns when the front end uses them."""

    models: tuple[SharedModel, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """A call, which returns when the front end does not use an engine any more, whose model has no name."""

    engine: str


# --- from a front end ---


@dataclass(frozen=True, slots=True)
class Beating:
    """The front end sends beats from now on."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Returns the headers of `Admission`, and so does `TakeAnswers`. ``request`` is the number of the request."""

    request: int
    client: str
    key: ApiKey | None


@dataclass(frozen=True, slots=True)
class TakeAnswers:
    request: int
    count: int
    capacity: int
    param: str


@dataclass(frozen=True, slots=True)
class TakeBody:
    request: int
    size: int


@dataclass(frozen=True, slots=True)
class ReserveTokens:
    """Returns the headers of `Admission`."""

    request: int
    tokens: float


@dataclass(frozen=True, slots=True)
class TakeTokens:
    """Of an admitted request. Not a call."""

    request: int
    count: int


@dataclass(frozen=True, slots=True)
class Release:
    request: int


@dataclass(frozen=True, slots=True)
class Transcribe:
    """A call: the arguments of `Transcribes.transcribe` for the model whose share has this engine. Returns its
    `Transcript`; its parts are the texts of windows.
    """

    engine: str
    recording: Recording
    request: TranscriptionRequest
    call: Call


@dataclass(frozen=True, slots=True)
class Disown:
    """A claim of this front end is over. `Claim` itself is a call, which returns whether it is granted."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class EndAnswer:
    """A call, which the main process passes on to the front end that keeps the answer, as it does `Asked`. Returns
    whether one kept it.
    """

    name: Name


# A `ModelChange` is a call too, and so is an `Ask`, of `OwnResponses`. The parts of `Asked` are the messages of a
# response, after a first one that says that the answer is kept; it returns None without parts if it is not.
FromFrontEnd = (
    Beating
    | Admit
    | TakeAnswers
    | TakeBody
    | ReserveTokens
    | TakeTokens
    | Release
    | Transcribe
    | ModelChange
    | Claim
    | Disown
    | Asked
    | EndAnswer
    | Ask[Any]
)
