"""Sides: near and far, and the state that all answers share: the policy, circuits, speeds, the last conversations,
today's spending.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

from nearfar.compiler.runtime.errors import NearfarError, RequestError, Unavailable
from nearfar.compiler.shared.script import SharedScript

from ...executors.circuit import Circuit
from ...executors.executor import Call
from ...schema.chat import ChatCompletionRequest, Message
from ...schema.common import Usage
from ...schema.completions import CompletionRequest
from ...schema.route import Side
from ...schema.tokenize import TokenizeRequest
from ..decision.budget import Ledger, Spent
from ..decision.decide import Choice, Decision, choose, refusal
from ..decision.policy import Policy
from ..decision.prefix_memory import PrefixMemory
from ..decision.situation import CircuitState, FarState, NearState, Situation, Thermal
from ..decision.situation import Message as WrittenMessage
from .answer_piece import AnswerPiece
from .describer import Describer
from .embedder import Embedder
from .far import FarSide
from .finder import Classifies
from .masker import AskedCaller, Confirm, Masker
from .near import NearSide
from .speculated_far import SpeculatedFar
from .texts import conversation_of
from .wire_speculation import WireCounts

UNKNOWN_SPEED = dict.fromkeys(("prefill_tokens_per_second", "decode_tokens_per_second", "round_trip_seconds"))
# The number of concurrent searches for private patterns.
SEARCHES = 4
# Computing the features of this many characters takes less than 10 ms.
LONG_TEXT_CHARACTERS = 10_000
# One message, whose tokens show whether both sides format chats alike.
PROBE = [Message(role="user", content="a")]


@dataclass(frozen=True, slots=True)
class DeviceHints:
    """The state of the machine that near runs on; None if it is not known. ``battery`` is from 0 to 1."""

    battery: float | None = None
    charging: bool | None = None
    thermal: Thermal | None = None


class Sides:
    """One of ``near`` and ``far`` may be None.

    ``ledger`` None: nothing is counted. ``hints`` is called before each decision.
    """

    def __init__(
        self,
        near: NearSide | None,
        far: FarSide | None,
        policy: Policy,
        ledger: Ledger | None = None,
        hints: Callable[[], DeviceHints] = DeviceHints,
        embedder: Embedder | None = None,
    ) -> None:
        self.near, self.far, self.policy = near, far, policy
        self._ledger, self._hints, self.embedder = ledger, hints, embedder
        self.describer: Describer | None = None
        # None for a policy that masks nothing.
        self.masker: Masker | None = None
        # Requests whose vector the embedder failed to make.
        self.missing_vectors = 0
        wait = policy.breaker.open_ms / 1000
        self.circuits: dict[Side, Circuit] = {
            side: Circuit(failures=policy.breaker.failures, first_wait_seconds=wait, longest_wait_seconds=wait)
            for side in ("near", "far")
        }
        # Each as a Speed of `web/src/shared/decision/speed.ts`.
        self._speeds: dict[Side, dict[str, float | None]] = {"near": {**UNKNOWN_SPEED}, "far": {**UNKNOWN_SPEED}}
        self._memories: dict[Side, PrefixMemory] = {"near": PrefixMemory(), "far": PrefixMemory()}
        self._near_queue_seconds = 0.0
        # Held between the check of the remaining budget and the reservation.
        self.spending = asyncio.Lock()
        # Leaves threads of the event loop to others, whatever clients send.
        self._searches = asyncio.Semaphore(SEARCHES)
        self._same_tokens: bool | None = None
        self._speculated: SpeculatedFar | None = None

    def open_masker(self, finder: Classifies | None, confirm: Confirm | AskedCaller | None) -> None:
        """Set what masks chats, if the policy has masks."""
        if self.policy.private.masks is not None:
            self.masker = Masker(self.policy, self.matches_rules, self.matches_private, finder, confirm)

    def open_near(self, near: NearSide) -> None:
        """Set the near side, which opens after the far side has reported what it serves."""
        self.near, speculation, timeouts = near, self.policy.speculation, self.policy.timeouts
        seconds = (timeouts.near_first_token_ms + timeouts.between_tokens_ms) / 1000
        self.describer = Describer(near, self.circuits["near"], max_seconds=seconds)
        if speculation is not None and self.far is not None and self.far.far.dialect == "nearfar":
            is_private = self.matches_private if self.policy.private_check.patterns else None
            self._speculated = SpeculatedFar(near, self.far, self.same_tokens, is_private, speculation.draft_tokens)

    @property
    def speculation(self) -> WireCounts | None:
        """Counts of near's guesses for far; None if the policy has no speculation, or if one of the sides does not
        support it.
        """
        return None if self._speculated is None else self._speculated.counts

    @property
    def calls_tools(self) -> bool:
        """Whether at least one side calls tools."""
        far = self.far is not None and (self.far.model is None or self.far.model.tools)
        return far or (self.near is not None and (self.near.abilities is None or self.near.abilities.tools))

    @property
    def reads_images(self) -> bool:
        """Whether at least one side reads images."""
        near = self.near is not None and self.near.reads_images
        return near or (self.far is not None and self.far.reads_images)

    @property
    def reads_videos(self) -> bool:
        """Whether at least one side reads videos."""
        near = self.near is not None and self.near.reads_videos
        return near or (self.far is not None and self.far.reads_videos)

    @property
    def hears(self) -> bool:
        """Whether at least one side answers about recordings."""
        return self._near_hears or (self.far is not None and self.far.hears)

    @property
    def _near_hears(self) -> bool:
        """Whether near's model reads recordings, or texts in their places."""
        near = self.near
        return near is not None and (near.hears or near.transcriber is not None)

    async def check(self, *, near_may_answer: bool) -> None:
        """Query what the far server serves.

        Raises RequestError if it can never answer. A server that is offline now is an error only if near may not answer
        instead.
        """
        if self.far is None or self.policy.mode == "near-only":
            return
        try:
            model = await self.far.reach()
        except Unavailable:
            self.circuits["far"].failed(certain=True)
            if not near_may_answer or self.policy.mode == "far-only":
                raise
            return
        self._speeds["far"]["round_trip_seconds"] = model.round_trip_seconds

    async def is_private(self, situation: Situation) -> bool:
        """Whether the policy forbids that the request leaves the device. Only `masker` searches for entities and knows
        what may leave under strict masks, so all other requests are private under a policy that has any.

        Runs in a thread, because long texts take up to seconds.
        """
        masks = self.policy.private.masks
        return bool(masks and (masks.entities or masks.strict)) or await self.matches_rules(situation)

    async def matches_rules(self, situation: Situation) -> bool:
        """Whether a request has a private label or a text that matches a pattern, in a thread as `is_private`."""
        check = self.policy.private_check
        return await self._search(lambda: check.is_private(situation))

    async def matches_private(self, *parts: str) -> bool:
        """Whether a text of these parts matches a private pattern. Runs in a thread, as `is_private`."""
        check = self.policy.private_check
        return await self._search(lambda: check.matches(*parts))

    async def choose(self, situation: Situation, *, private: bool, embeds: bool = False) -> Choice:
        """As `decide.choose`. Runs in a thread if a predictor reads a long text, which takes up to a second."""
        if self.policy.quality.predictor is None or len(situation.last_user_text) <= LONG_TEXT_CHARACTERS:
            return choose(self.policy, situation, private=private, embeds=embeds)
        return await asyncio.to_thread(choose, self.policy, situation, private=private, embeds=embeds)

    async def situation(self, situation: Situation, request: ChatCompletionRequest | CompletionRequest) -> Situation:
        """``situation`` with what is known about both sides now. Nothing is sent to the far side."""
        situation = replace(situation, embedding=await self._embedding(situation))
        ids = await self.near.prompt_ids(request) if self.near is not None else None
        near, far = self.near_state(ids), await self.far_state()
        if ids is None:
            return replace(situation, near=near, far=far)
        cached = self._cached_tokens(conversation_of(request, situation.messages), len(ids))
        # Far's own tokens would be about as many.
        far = replace(far, prompt_tokens=len(ids), cached_tokens=cached["far"])
        return replace(situation, near=replace(near, cached_tokens=cached["near"]), far=far)

    def near_state(self, ids: Sequence[int] | None, *, embeds: bool = False) -> NearState:
        """``ids`` are those of the prompt. ``embeds``: it must embed texts instead of generating one."""
        if self.near is None:
            return NearState(available=False)
        hints, speed, state = self._hints(), self._speeds["near"], self.near.executor.state()
        return NearState(
            available=state.ready and self.near.embeds == embeds,
            context=self.near.executor.context or None,
            tools=self.near.abilities is None or self.near.abilities.tools,
            vision=self.near.reads_images,
            video=self.near.reads_videos,
            sound=self._near_hears,
            describes=() if self.describer is None else self.describer.kinds,
            languages=self.policy.languages.near,
            prompt_tokens=None if ids is None else len(ids),
            prefill_tokens_per_second=speed["prefill_tokens_per_second"],
            decode_tokens_per_second=speed["decode_tokens_per_second"],
            # The estimate is the wait of the last request, if there is a queue now.
            queue_seconds=self._near_queue_seconds if state.waiting else 0.0,
            circuit=self._circuit_state("near"),
            battery=hints.battery,
            charging=hints.charging,
            thermal=hints.thermal,
        )

    async def far_state(self) -> FarState:
        spent = await self._spent()
        if self.far is None:
            return FarState(online=False)
        model, speed = self.far.model, self._speeds["far"]
        return FarState(
            online=True,
            context=model.context if model is not None else None,
            tools=model is None or model.tools,
            vision=self.far.reads_images,
            video=self.far.reads_videos,
            sound=self.far.hears,
            languages=self.policy.languages.far,
            prefill_tokens_per_second=speed["prefill_tokens_per_second"],
            decode_tokens_per_second=speed["decode_tokens_per_second"],
            queue_seconds=self.far.queue_seconds,
            round_trip_seconds=speed["round_trip_seconds"],
            circuit=self._circuit_state("far"),
            spent_usd_today=spent.usd,
            requests_today=spent.requests,
        )

    async def same_tokens(self, call: Call) -> bool:
        """Whether both sides make the same token ids from the same chat. Queries the far side once."""
        if self._same_tokens is None:
            self._same_tokens = await self._compare_tokens(call)
        return self._same_tokens

    def far_answer(
        self, request: ChatCompletionRequest | CompletionRequest, call: Call, *, speculate: bool
    ) -> AsyncGenerator[AnswerPiece, None]:
        """As `FarSide.answer`. ``speculate``: near may guess far's tokens if the policy has speculation."""
        assert self.far is not None
        return (
            self._speculated.answer(request, call)
            if speculate and self._speculated is not None
            else self.far.answer(request, call)
        )

    def refusal(self, decision: Decision, situation: Situation, *, embeds: bool = False) -> NearfarError:
        """The error of a decision without a side. ``embeds``: as for `near_state`."""
        near = "it has no model" if self.near is None else None
        if self.near is not None and self.near.embeds != embeds:
            near = "its model makes no embeddings" if embeds else "its model only makes embeddings"
        return refusal(decision, situation, self.policy, near)

    async def reserve_request(self) -> bool:
        """Reserve a request of today's budget; False if the budget is spent."""
        if self._ledger is None:
            return True
        async with self.spending:
            if self._is_spent(await self._spent()):
                return False
            await asyncio.to_thread(self._ledger.add, requests=1)
            return True

    async def pay(self, output: Mapping[str, Any], prompt_tokens: int | None = None) -> None:
        """Pay for a request to far. ``output``: a FarOutput of `web/src/shared/decision/costs.ts`. ``prompt_tokens``:
        those that are expected.
        """
        price = {"price": self.policy.price.model_dump()}
        usd = SharedScript.of_thread().ask("paidUsd", price, output, prompt_tokens)
        if self._ledger is not None and usd > 0:
            await asyncio.to_thread(self._ledger.add, usd=usd)

    def record_finished(
        self, side: Side, usage: Usage | None, num_tokens: int, first_token_seconds: float, total_seconds: float
    ) -> None:
        """Record a part of an answer that ended well. Seconds count from its request."""
        model = self.far.model if side == "far" and self.far is not None else None
        finished = {
            "usage": None if usage is None else usage.model_dump(exclude_none=True),
            "tokens": num_tokens,
            "first_token_seconds": first_token_seconds,
            "total_seconds": total_seconds,
            "round_trip_seconds": model.round_trip_seconds if model is not None else None,
        }
        self._speeds[side] = SharedScript.of_thread().ask("speedAfter", self._speeds[side], finished)
        if side == "near" and usage is not None:
            self._near_queue_seconds = (usage.queue_ms or 0.0) / 1000

    def record_conversation(self, side: Side, conversation: Sequence[WrittenMessage], answer: str) -> None:
        """Record a conversation. The side that wrote the end of an answer has computed all of it."""
        self._memories[side].remember(conversation, answer, monotonic())

    async def close(self) -> None:
        if self.far is not None:
            await self.far.close()
        if self.near is not None:
            await self.near.close()

    async def _search(self, search: Callable[[], bool]) -> bool:
        if not self.policy.private_check.patterns:
            return search()
        async with self._searches:
            return await asyncio.to_thread(search)

    async def _embedding(self, situation: Situation) -> tuple[float, ...] | None:
        """The vector of the last user message, if the predictor reads it. None if the embedder fails, or takes longer
        than near may for its first token.
        """
        if self.embedder is None or self.policy.quality.components is None:
            return None
        try:
            async with asyncio.timeout(self.policy.timeouts.near_first_token_ms / 1000):
                return tuple(await self.embedder.embed(situation.last_user_text))
        # It may be any function of the application's. A vector that is missing counts as the mean.
        except Exception:
            self.missing_vectors += 1
            return None

    def _cached_tokens(self, conversation: Sequence[WrittenMessage], prompt_tokens: int) -> dict[Side, int]:
        now = monotonic()
        return {
            side: math.floor(prompt_tokens * memory.cached_share(conversation, now))
            for side, memory in self._memories.items()
        }

    def _circuit_state(self, side: Side) -> CircuitState:
        circuit = self.circuits[side]
        # While the one trial request runs, no other request is let through.
        return circuit.state if circuit.admits else "open"

    def _is_spent(self, spent: Spent) -> bool:
        is_spent: bool = SharedScript.of_thread().ask("isSpent", self.policy.budget.model_dump(), asdict(spent))
        return is_spent

    async def _spent(self) -> Spent:
        return Spent() if self._ledger is None else await asyncio.to_thread(self._ledger.today)

    async def _compare_tokens(self, call: Call) -> bool:
        if self.near is None or self.far is None or self.near.abilities is None:
            return False
        ours = self.near.abilities.tokenizer_sha256
        if ours is None or (await self.far.reach(call)).tokenizer_sha256 != ours:
            return False
        probe = TokenizeRequest(model=self.near.name, messages=PROBE)
        try:
            # The tokenizers are the same; the chat templates may differ.
            return (await self.near.executor.tokenize(probe)).tokens == (await self.far.tokenize(probe, call)).tokens
        except RequestError:
            return False
