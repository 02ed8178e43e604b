"""EncodeRequest, the texts of one caller to encode, and EncodeJob, its state in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from nearfar.compiler.runtime.batch import FloatArray


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """Texts as token ids. ``token_types`` has the type of each token, for models that know a query from a passage; None
    for zeros.

    Clients take turns; see `TextQueue`. ``deadline`` is a time of `time.monotonic`, after which no text is computed.
    """

    texts: Sequence[Sequence[int]]
    token_types: Sequence[Sequence[int]] | None = None
    client: str = ""
    priority: int = 0
    deadline: float | None = None


@dataclass(eq=False, slots=True)
class EncodeJob:
    """``result``: the rows of all texts in their order, one per text, or one per token for a model that scores tokens.
    A caller that abandons the job sets ``abandoned``. ``arrived`` is a time of `time.monotonic`.
    """

    request: EncodeRequest
    arrived: float = 0.0
    result: Future[FloatArray] = field(default_factory=Future)
    abandoned: bool = False
    rows: dict[int, FloatArray] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return len(self.rows) == len(self.request.texts)

    def is_late(self, now: float) -> bool:
        return self.request.deadline is not None and self.request.deadline <= now

    def matrix(self) -> FloatArray:
        """The rows of a job that is done, (n, E)."""
        return np.concatenate([self.rows[index] for index in range(len(self.request.texts))])


@dataclass(eq=False, slots=True)
class Text:
    """One text of a job. ``computed`` is the number of its tokens whose keys and values are in its ``pages``, and whose
    states are in the slot ``state``; a model without pages computes a text at once.
    """

    job: EncodeJob
    index: int
    pages: list[int] = field(default_factory=list)
    state: int = 0
    computed: int = 0

    @property
    def ids(self) -> Sequence[int]:
        return self.job.request.texts[self.index]

    @property
    def token_types(self) -> Sequence[int] | None:
        types = self.job.request.token_types
        return None if types is None else types[self.index]
