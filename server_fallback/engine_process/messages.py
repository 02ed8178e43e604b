"""The messages between servers and the process of an engine, over a `Connection`. Those that say so are calls.

The server that started the process opens its engine, changes its adapters and closes it. Others attach to it, and only
send requests. An `Ask` is for the engine. An answer has a number, which its server chose. Times are those of
`time.monotonic`, which all processes share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nearfar.compiler.runtime.batch import IntArray
from nearfar.compiler.runtime.errors import NearfarError

from ..engine.encoder_engine import EncoderEngine
from ..engine.images import ImageName
from ..engine.item_queue import Item
from ..engine.masks import Masks
from ..engine.request import TokenRequest
from ..engine.stats import EngineStats
from ..engine.token_engine import TokenEngine
from ..option_types import HANG_SECONDS

# --- from a server ---


class EngineRecipe(Protocol):
    """A recipe with which the process creates its engine. It is pickled, so it is a dataclass of a module. ``name`` is
    that of its model.
    """

    @property
    def name(self) -> str: ...

    def open(self, masks: Masks | None) -> TokenEngine | EncoderEngine:
        """Raises NearfarError's leaves."""


@dataclass(frozen=True, slots=True)
class Open:
    """A call that returns `Opened`. From then on, the process sends beats that are noticed if they are missing for
    ``hang_seconds``.
    """

    recipe: EngineRecipe
    max_mask_wait_seconds: float
    hang_seconds: float = HANG_SECONDS


@dataclass(frozen=True, slots=True)
class Listen:
    """A call: let other servers attach at a Unix socket. Its folder must be private to this user, because anybody who
    can connect can run code in the process.
    """

    path: str


@dataclass(frozen=True, slots=True)
class Attach:
    """The first call of another server. It returns `Opened`."""


@dataclass(frozen=True, slots=True)
class Generate:
    """``request`` has no constraint; ``is_constrained``: the server computes its masks. Its images have no pixels if an
    earlier message had them (`SentImages`).
    """

    answer: int
    request: TokenRequest
    is_constrained: bool


@dataclass(frozen=True, slots=True)
class Abandon:
    """Cancel an answer that nobody reads any more."""

    answer: int


@dataclass(frozen=True, slots=True)
class TakeBlock:
    """The reader of an export, which is an answer, has taken a block."""

    answer: int


@dataclass(frozen=True, slots=True)
class ForgetImages:
    """No unfinished answer of this server has these images any more."""

    names: Sequence[ImageName]


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of an answer's next token, as bits; None allows all. For the rest see `MaskTask`."""

    answer: int
    mask: IntArray | None
    finished: bool
    is_complete: bool
    error: Exception | None
    last_seconds: float


@dataclass(frozen=True, slots=True)
class Close:
    """See `TokenEngine.close`. The process ends after it."""

    drain_seconds: float
    reason: NearfarError | None


# --- from the process ---


@dataclass(frozen=True, slots=True)
class Opened:
    context: int
    max_drafts: int
    device: str
    activation: str | None
    bundle: str
    hang_seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """The results of the steps since the last message: tokens without log-probabilities, by their answers' numbers; and
    all other items, which follow the tokens of their answers.
    """

    answers: list[int]
    token_ids: list[int]
    others: list[tuple[int, Item]]


@dataclass(frozen=True, slots=True)
class MaskTurns:
    """Answers whose constraints accept a token, None for the first mask, and whether it is the last; see
    `MaskTask.advance`.
    """

    turns: list[tuple[int, int | None, bool]]


@dataclass(frozen=True, slots=True)
class Stats:
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Logged:
    """An event for the server's log; see `log_event`."""

    event: str
    level: int
    fields: Mapping[str, object]
