"""Mixed pool: prefill and decode workers that change roles while they run, as machines do in Splitwise (Patel et al.,
ISCA 2024, section IV-A). Only simulated: the workers of `nearfar serve --role` keep their roles.

A request gets both of its workers when it arrives, each the one with the shortest queue of its role. If that worker is
full, the workers of the mixed pool are considered, and then those of the other role, of which the best one joins the
mixed pool. A worker of the mixed pool computes prompts beside answers, and leaves it when it has no work of the other
role any more. If all are in the mixed pool and full, one worker computes the prompt and the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Literal, NamedTuple

from .request import SimulatedRequest

Role = Literal["prefill", "decode"]
Queue = Callable[["Member"], int]
# A prefill worker is chosen by the tokens that wait, a decode worker by the memory that is promised.
QUEUED: Queue = attrgetter("queued")
RESERVED: Queue = attrgetter("reserved")
# What splitwise-sim has as prompt_max_pending_batch_tokens (configs/orchestrator_repo/schedulers/mixed_pool.yml).
QUEUED_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class MixedPool:
    """A worker with prompts in its queue gets no further one that would make it longer than ``queued_tokens``."""

    queued_tokens: int = QUEUED_TOKENS


@dataclass(eq=False)
class Member:
    """A worker as the pool sees it. ``number`` is its place in the cluster, ``capacity`` the tokens of keys and values
    that it holds.

    ``prompts`` and ``answers`` count the requests that it computes or will compute, ``queued`` the tokens of those
    prompts, and one for each of the answers. ``reserved`` are the keys and values that all of them will need.
    """

    number: int
    role: Role
    capacity: int
    prompts: int = 0
    answers: int = 0
    queued: int = 0
    reserved: int = 0
    is_mixed: bool = False
    chosen: int = 0


class Pair(NamedTuple):
    """The workers of a request: one computes the prompt and the first token, and the other, or the same one, the other
    tokens.
    """

    prefill: Member
    decode: Member


class Pools:
    """The workers of a cluster with a mixed pool. ``changes`` counts how often one has joined it."""

    def __init__(self, pool: MixedPool, members: Sequence[Member]) -> None:
        self.members, self.changes = members, 0
        self._pool, self._choices = pool, count(1)

    def assign(self, request: SimulatedRequest) -> Pair:
        """The workers of a request that arrives now."""
        prompt, output = request.prompt_tokens, request.output_tokens
        prefill = self._find(
            "prefill", QUEUED, lambda each: each.prompts == 0 or each.queued + prompt <= self._pool.queued_tokens
        )
        decode = self._find("decode", RESERVED, lambda each: each.reserved + prompt + output <= each.capacity)
        if prefill is None or decode is None:
            both = self._best(self.members, QUEUED)
            assert both is not None
            prefill = decode = both
        for member, role in ((prefill, "prefill"), (decode, "decode")):
            member.chosen = next(self._choices)
            if member.role != role and not member.is_mixed:
                member.is_mixed = True
                self.changes += 1
        prefill.prompts += 1
        prefill.queued += prompt
        prefill.reserved += prompt
        decode.answers += 1
        decode.queued += 1
        decode.reserved += output if decode is prefill else prompt + output
        return Pair(prefill, decode)

    def prefilled(self, pair: Pair, request: SimulatedRequest) -> None:
        """The request has its first token."""
        prefill, decode = pair
        prefill.prompts -= 1
        prefill.queued -= request.prompt_tokens
        if prefill is not decode:
            prefill.reserved -= request.prompt_tokens
        _settle(prefill)

    def answered(self, pair: Pair, request: SimulatedRequest) -> None:
        """The request has its last token."""
        decode = pair.decode
        decode.answers -= 1
        decode.queued -= 1
        decode.reserved -= request.prompt_tokens + request.output_tokens
        _settle(decode)

    def _find(self, role: Role, queue: Queue, has_room: Callable[[Member], bool]) -> Member | None:
        """The worker with the shortest queue of those that keep the role, if it has room; or else of the mixed pool; or
        else, whether it has room or not, of those that keep the other role.
        """
        other: Role = "decode" if role == "prefill" else "prefill"
        for members in (self._keeping(role), [member for member in self.members if member.is_mixed]):
            best = self._best(members, queue)
            if best is not None and has_room(best):
                return best
        return self._best(self._keeping(other), queue)

    def _best(self, members: Sequence[Member], queue: Queue) -> Member | None:
        """Among equal ones, the one that was chosen longest ago."""
        return min(members, key=lambda member: (queue(member), member.chosen), default=None)

    def _keeping(self, role: Role) -> list[Member]:
        return [member for member in self.members if member.role == role and not member.is_mixed]


def _settle(member: Member) -> None:
    """Leave the mixed pool without work of the other role."""
    if (member.prompts if member.role == "decode" else member.answers) == 0:
        member.is_mixed = False
