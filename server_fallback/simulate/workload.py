"""Workload: the requests of a simulation, and when they arrive.

Arrivals are open, at a rate or as in a trace, or closed: each of some clients sends a request when its last one is
answered, as `nearfar bench serve` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from nearfar.compiler.runtime.errors import RequestError

from ..schema.common import Request
from .lengths import Lengths
from .presets import LENGTHS
from .request import Segment, SimulatedRequest
from .trace import HASHED_TOKENS, read_trace

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
# Texts with these and higher numbers are the same for several prompts; each prompt's own text has a negative one.
SHARED = 1 << 40
CONVERSATIONS = 1 << 50


class Poisson(Request):
    """Independent arrivals, ``rate`` a second on average."""

    kind: Literal["poisson"]
    rate: Positive


class Gamma(Request):
    """As Poisson, but the gaps between arrivals have the coefficient of variation ``cv``: bursts above 1."""

    kind: Literal["gamma"]
    rate: Positive
    cv: Positive


class Clients(Request):
    """Each of ``number`` clients sends one request after the other."""

    kind: Literal["clients"]
    number: Count


class Recording(Request):
    """The arrivals and lengths of the trace in ``file``, a path relative to the scenario; its time runs ``speed`` times
    as fast.
    """

    kind: Literal["trace"]
    file: str
    speed: Positive = 1.0


class Conversations(Request):
    """Each request continues, with the probability ``more``, in another turn, ``pause_seconds`` (mean of an exponential
    distribution) after the answer: its prompt is the whole conversation so far, and a new message.
    """

    more: Annotated[float, Field(ge=0, lt=1)]
    pause_seconds: Seconds = 0.0


class Workload(Request):
    """``requests`` are sent in all, counting each turn. ``lengths`` is a name of `presets.py`, instead of ``prompt``
    and ``output``; a trace has lengths of its own. ``shared_tokens`` at the start of each prompt are the same for all
    prompts of one of ``apps``. In a conversation, the lengths of prompts are those of the new messages.
    """

    arrivals: Annotated[Poisson | Gamma | Clients | Recording, Field(discriminator="kind")]
    requests: Count = 1000
    lengths: str | None = None
    prompt: Lengths | None = None
    output: Lengths | None = None
    shared_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    apps: Count = 1
    conversations: Conversations | None = None

    @model_validator(mode="after")
    def _has_lengths(self) -> Workload:
        own = [name for name in ("prompt", "output") if getattr(self, name) is not None]
        if self.arrivals.kind == "trace":
            given = [*own, *(name for name in ("lengths", "conversations", "shared_tokens") if getattr(self, name))]
            if given:
                raise ValueError(f"a trace has its own lengths and texts; remove {', '.join(given)}")
        elif self.lengths is not None:
            if own:
                raise ValueError(f"lengths are those of prompts and answers; remove {', '.join(own)}")
            if self.lengths not in LENGTHS:
                raise ValueError(f"unknown lengths '{self.lengths}'; there are {', '.join(LENGTHS)}")
        elif len(own) < 2:
            raise ValueError("give lengths, or both prompt and output")
        if self.arrivals.kind == "clients" and self.conversations is not None:
            raise ValueError("conversations need arrivals at a rate, not clients")
        return self

    @property
    def _both(self) -> tuple[Lengths, Lengths]:
        """Those of prompts and answers."""
        if self.lengths is not None:
            return LENGTHS[self.lengths]
        assert self.prompt is not None
        assert self.output is not None
        return self.prompt, self.output

    def at_rate(self, rate: float) -> Workload:
        """The same with another mean rate of arrivals, of conversations if there are any."""
        if isinstance(self.arrivals, Poisson | Gamma):
            return self.model_copy(update={"arrivals": self.arrivals.model_copy(update={"rate": rate})})
        raise RequestError(
            f"workload.arrivals: the kind '{self.arrivals.kind}' has no rate that can be searched; use poisson or gamma"
        )

    def make(self, seed: int, folder: Path, *, devices: int = 1) -> list[SimulatedRequest]:
        """The requests that arrive without waiting for an answer, in the order of arrival; for clients, all requests,
        each at 0. ``devices``: how many users' devices send them. Raises RequestError for a trace that cannot be read.
        """
        # A stream for each thing: with another rate, the lengths stay the same.
        gaps, lengths, turns, users = (np.random.default_rng(each) for each in np.random.SeedSequence(seed).spawn(4))
        if isinstance(self.arrivals, Recording):
            return self._recorded(folder / self.arrivals.file, self.arrivals.speed, users, devices)
        prompts, outputs = (each.draw(lengths, self.requests).tolist() for each in self._both)
        apps = users.integers(self.apps, size=self.requests).tolist()
        owners = users.integers(devices, size=self.requests).tolist()
        times = iter(self._times(gaps))
        found: list[SimulatedRequest] = []
        last: SimulatedRequest | None = None
        for number in range(self.requests):
            own = Segment(-1 - number, prompts[number])
            talk = self.conversations
            if last is not None and talk is not None and turns.random() < talk.more:
                segments = (*last.segments, Segment(last.number, last.output_tokens), own)
                request = SimulatedRequest(number, 0.0, segments, outputs[number], last.device)
                last.turn = (float(turns.exponential(talk.pause_seconds)) if talk.pause_seconds else 0.0, request)
            else:
                shared = (Segment(SHARED + apps[number], self.shared_tokens),) if self.shared_tokens else ()
                request = SimulatedRequest(number, next(times), (*shared, own), outputs[number], owners[number])
                found.append(request)
            last = request
        return found

    def _times(self, chance: np.random.Generator) -> Sequence[float]:
        arrivals, count = self.arrivals, self.requests
        if isinstance(arrivals, Poisson):
            gaps = chance.exponential(1 / arrivals.rate, count)
        elif isinstance(arrivals, Gamma):
            shape = arrivals.cv**-2
            gaps = chance.gamma(shape, 1 / (shape * arrivals.rate), count)
        else:
            return [0.0] * count
        times: list[float] = np.cumsum(gaps).tolist()
        return times

    def _recorded(self, path: Path, speed: float, users: np.random.Generator, devices: int) -> list[SimulatedRequest]:
        rows = read_trace(path)[: self.requests]
        owners = users.integers(devices, size=len(rows)).tolist()
        return [
            SimulatedRequest(
                number,
                row.arrival / speed,
                (Segment(-1 - number, row.prompt_tokens),)
                if row.blocks is None
                else tuple(_blocks(row.blocks, row.prompt_tokens)),
                row.output_tokens,
                owners[number],
            )
            for number, row in enumerate(rows)
        ]


def _blocks(blocks: Sequence[int], tokens: int) -> Iterator[Segment]:
    for block in blocks:
        yield Segment(SHARED + block, min(HASHED_TOKENS, tokens))
        tokens -= HASHED_TOKENS


def all_requests(requests: Sequence[SimulatedRequest]) -> list[SimulatedRequest]:
    """With the later turns of conversations, by number."""
    found: list[SimulatedRequest] = []
    for request in requests:
        each: SimulatedRequest | None = request
        while each is not None:
            found.append(each)
            each = None if each.turn is None else each.turn[1]
    return sorted(found, key=lambda each: each.number)
