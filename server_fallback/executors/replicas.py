"""Replicas: choose which of several servers of the same model gets a request.

score = our running requests on it  -  PREFIX_WORTH * blocks of the prompt that it has seen / max(blocks of the prompt,
FULL_PROMPT)

The lowest score wins; among equal ones, the replica that was chosen longest ago. So a replica that has computed all of
a long prompt is preferred until it has PREFIX_WORTH requests more than another. Short prompts, which cost little to
compute again, are sent to the least busy replica. The prompts that a replica has seen are estimated from what was sent
to it; the least recently used ones are forgotten first.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Generic, Protocol

from typing_extensions import TypeVar

from nearfar.compiler.runtime.errors import Unavailable

from ..schema.chat import ChatCompletionRequest
from ..schema.completions import CompletionRequest
from .circuit import Circuit
from .upstream import Upstream

PREFIX_WORTH = 4.0
# In bytes of text: about a hundred tokens.
BLOCK_BYTES = 512
FULL_PROMPT = 8
# The most blocks of a prompt that are compared, and the most that are remembered for a replica.
MOST_BLOCKS = 256
REMEMBERED_BLOCKS = 65_536


class Balanced(Protocol):
    """What a choice depends on: an `Upstream`, or a worker of a simulation."""

    @property
    def url(self) -> str: ...

    @property
    def circuit(self) -> Circuit: ...

    @property
    def outstanding(self) -> int: ...


Server = TypeVar("Server", bound=Balanced, default=Upstream)


@dataclass(eq=False)
class Replica(Generic[Server]):
    """``seen`` holds the prefixes that were sent to the replica, the least recent first; ``chosen`` is the number of
    its last choice. ``hears``: its server reads recordings, None if that is not known.
    """

    upstream: Server
    seen: OrderedDict[bytes, None] = field(default_factory=OrderedDict, repr=False)
    chosen: int = 0
    hears: bool | None = None

    def score(self, prefixes: Sequence[bytes]) -> float:
        return self.upstream.outstanding - PREFIX_WORTH * self.matched(prefixes) / max(len(prefixes), FULL_PROMPT)

    def matched(self, prefixes: Sequence[bytes]) -> int:
        """How many blocks of a prompt the replica has seen."""
        return next((index for index, prefix in enumerate(prefixes) if prefix not in self.seen), len(prefixes))

    def remember(self, prefixes: Sequence[bytes]) -> None:
        # The longest first: then the prefix that many prompts share is the most recent, and the last to be forgotten.
        for prefix in reversed(prefixes):
            self.seen[prefix] = None
            self.seen.move_to_end(prefix)
        while len(self.seen) > REMEMBERED_BLOCKS:
            self.seen.popitem(last=False)


class Replicas(Generic[Server]):
    def __init__(self, upstreams: Iterable[Server]) -> None:
        self.all = [Replica(upstream) for upstream in upstreams]
        self._choices = count(1)

    def choose(
        self, prefixes: Sequence[bytes], tried: Sequence[Server] = (), *, among: Sequence[Replica[Server]] | None = None
    ) -> Server:
        """The upstream for a prompt, preferably one that is not in ``tried``; one of ``among``, or of all. Raises
        Unavailable if no upstream accepts requests now.
        """
        for replica in self.all:
            if replica.upstream.circuit.state == "open":
                # A server that restarts has an empty cache, and perhaps other options.
                replica.seen.clear()
                replica.hears = None
        admitted = [replica for replica in among or self.all if replica.upstream.circuit.admits]
        if not admitted:
            raise self.unavailable()
        fresh = [replica for replica in admitted if replica.upstream not in tried]
        best = min(fresh or admitted, key=lambda replica: (replica.score(prefixes), replica.chosen))
        best.chosen = next(self._choices)
        best.remember(prefixes)
        return best.upstream

    def unavailable(self) -> Unavailable:
        upstreams = [replica.upstream for replica in self.all]
        wait = min(upstream.circuit.seconds_until_trial for upstream in upstreams)
        names = ", ".join(upstream.url for upstream in upstreams)
        return Unavailable(
            f"no server of this model answers ({names}); check that they are running",
            retry_after_seconds=max(1.0, wait),
        )


def prefixes_of(request: ChatCompletionRequest | CompletionRequest) -> list[bytes]:
    """A hash of each prefix of the prompt that consists of full blocks."""
    return hashes_of(prompt_bytes(request))


def hashes_of(text: bytes) -> list[bytes]:
    """A hash of each prefix that consists of full blocks."""
    text = text[: MOST_BLOCKS * BLOCK_BYTES]
    prefixes, digest = list[bytes](), b""
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        digest = blake2b(digest + text[start : start + BLOCK_BYTES], digest_size=8).digest()
        prefixes.append(digest)
    return prefixes


def prompt_bytes(request: ChatCompletionRequest | CompletionRequest) -> bytes:
    """The text that determines the first token ids: tools come before messages, as in chat templates."""
    if isinstance(request, CompletionRequest):
        return request.prompt.encode() if isinstance(request.prompt, str) else json.dumps(request.prompt).encode()
    parts = [tool.model_dump_json() for tool in request.tools or ()]
    parts += [message.model_dump_json(exclude_none=True) for message in request.messages]
    return "\n".join(parts).encode()
