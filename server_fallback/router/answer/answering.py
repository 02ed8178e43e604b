"""Answering: one answer of a pair. It does what the answer machine says: asks sides, keeps timers, tells what comes, shows what stands.

    sides' streams, timers  -->  news  -->  events  -->  answer_machine.step  -->  effects  -->  chunks for the client

Each attempt of a side runs in a task of its own and puts what it hears into one queue; this class alone takes from it. Whoever closes the
generator of `chunks` ends all attempts, and it returns when they have ended. It is long because every effect has its few lines here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Generic

from nearfar.compiler.errors import DeadlineExceeded, NearfarError, QueueFull, RequestError, Unavailable

from ...executors.executor import Call
from ...schema.chat import ChatCompletionRequest, ToolCallDelta
from ...schema.common import TokenLogprob, Usage
from ...schema.completions import CompletionRequest
from ...schema.fold import fold_calls
from ...schema.route import Route, Side
from ..decision.decide import may_guess
from ..decision.decision import Decision
from ..decision.features import PROMPT_SIGNAL, SIGNALS
from ..decision.situation import Message, Situation
from ..sides.continued import begun, continued, continued_ids, limits, plain, templated
from ..sides.said import Said
from ..sides.sides import LACKS, Sides, lacking
from ..sides.texts import conversation_of, with_calls
from .answer_machine import State, begin, step, timed_side
from .attempt import Attempt, retry_seconds
from .events import (
    Ask,
    Cancel,
    CancelTimer,
    CircuitOutcome,
    Doubt,
    Effect,
    Emit,
    End,
    Escalate,
    Event,
    Fail,
    Failed,
    Finish,
    Start,
    Switch,
    Tick,
    Timer,
    Token,
    Warm,
    Withdraw,
)
from .failures import failure_of, failure_told
from .forms import ChunkT, Form
from .rules import rules_of
from .signals import SIGNAL_TOKENS, near_signals
from .timers import Due, Timers
from .warm_up import WarmUp
from .watch import Watch

# Alternatives of a token, whose log-probabilities make its entropy.
TOP = 20
# So much of what sides say may wait for a slow reader.
WAITING_NEWS = 64


# None: the attempt has ended as it should.
News = tuple[Attempt, Said | Exception | None] | Due


@dataclass(slots=True)
class _Shown:
    """What of the answer stands. ``tokens``: how many of it each attempt wrote. ``route`` is the last that was told."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    tokens: dict[Attempt, int] = field(default_factory=dict)
    route: Route | None = None


class Answering(Generic[ChunkT]):
    """``request`` has no labels and no pin any more; ``asked`` is the situation as far as the request tells it."""

    def __init__(
        self,
        sides: Sides,
        request: ChatCompletionRequest | CompletionRequest,
        asked: Situation,
        form: Form[ChunkT],
        call: Call,
    ) -> None:
        self._sides, self._request, self._asked, self._call = sides, request, asked, call
        self._form: Form[ChunkT] = form
        self._news: asyncio.Queue[News] = asyncio.Queue()
        self._room = asyncio.Semaphore(WAITING_NEWS)
        # What came before the decision and is still to be told to the machine.
        self._held: deque[News] = deque()
        self._attempts: list[Attempt] = []
        self._current: dict[Side, Attempt] = {}
        self._timers = Timers(self._news.put_nowait)
        self._warm_up: WarmUp | None = None
        self._errors: dict[Side, NearfarError] = {}
        self._shown = _Shown()
        self._over = False
        self._decision: Decision
        self._state: State
        self._watch: Watch | None = None

    async def chunks(self) -> AsyncGenerator[ChunkT, None]:
        """Raises what stopped the answer, as `Executor`, and RequestError or Unavailable where nobody may or can answer."""
        try:
            self._decision = await self._decide()
            for chunk in await self._take(await self._start()):
                yield chunk
            while not self._over:
                news = self._held.popleft() if self._held else await self._next()
                for event, said in self._events(news):
                    for chunk in await self._take(event, said):
                        yield chunk
        finally:
            await self._end()

    async def _decide(self) -> Decision:
        """Where near's own view of the prompt counts, it begins to answer, and goes on from there if it is chosen."""
        sides = self._sides
        situation = self._asked = await sides.situation(self._asked, self._request)
        decision = await sides.decide(situation, private=await sides.is_private(situation))
        if self._wants_signals(decision):
            near = self._begin("near", 0, None)
            heard = await self._hear()
            if isinstance(heard, NearfarError) and not isinstance(heard, RequestError):
                # Who cannot begin cannot answer.
                sides.circuits["near"].failed()
                situation = replace(situation, near=replace(situation.near, available=False))
            else:
                situation = replace(situation, near_signals=near_signals([*self._held_tokens()], near.prompt_logprobs))
            decision = await sides.decide(situation, private=decision.private)
            self._asked = situation
        if decision.side is None:
            raise lacking(decision.reason)
        return decision

    def _wants_signals(self, decision: Decision) -> bool:
        """Whether near's view of the prompt could change the decision: a predictor looks at it, and no other rule has decided."""
        return decision.reason in ("quality", "cost") and not set(SIGNALS).isdisjoint(self._features)

    @property
    def _features(self) -> Sequence[str]:
        """What the policy's predictor looks at."""
        predictor = self._sides.policy.quality.predictor
        return () if predictor is None else predictor.features

    def _held_tokens(self) -> Iterator[TokenLogprob]:
        for news in self._held:
            if not isinstance(news, Due) and isinstance(news[1], Said):
                yield from news[1].tokens

    async def _hear(self) -> Exception | None:
        """Hold what near says until its first tokens are there, or it ends, or takes too long; the error where it failed."""
        heard = 0
        try:
            async with asyncio.timeout(self._sides.policy.timeouts.near_first_token_ms / 1000):
                while heard < SIGNAL_TOKENS:
                    news = await self._next()
                    self._held.append(news)
                    assert not isinstance(news, Due)
                    what = news[1]
                    if not isinstance(what, Said):
                        return what
                    heard += what.num_tokens
        except TimeoutError:
            if heard == 0:
                self._current.pop("near").stop()
                return Unavailable("near: no token came in time", code="near_timeout")
        return None

    async def _start(self) -> Start:
        decision, policy = self._decision, self._sides.policy
        assert decision.side is not None
        self._state = begin(rules_of(self._sides, self._request, private=decision.private))
        if decision.side == "far" and "near" in self._current:
            self._current.pop("near").stop()
            self._held.clear()
        if policy.escalation.then != "never" and not decision.private:
            self._watch = Watch(policy.escalation)
        return Start(decision.side, decision.reason, await self._may_also(decision))

    async def _may_also(self, decision: Decision) -> bool:
        """Whether no hard rule forbids the other side."""
        if self._asked.pin is not None:
            return False
        other: Side = "far" if decision.side == "near" else "near"
        return (await self._sides.decide(replace(self._asked, pin=other), private=decision.private)).side == other

    def _events(self, news: News) -> Iterator[tuple[Event, Said | None]]:
        if isinstance(news, Due):
            if not self._timers.rings(news):
                return
            side = timed_side(news.timer, self._state)
            attempt = None if side is None else self._current.get(side)
            if attempt is not None and attempt.finish_reason is not None:
                # The answer is whole; nobody waits longer for its usage.
                yield End(attempt.side, attempt.number, attempt.finish_reason), None
            else:
                yield Tick(news.timer), None
            return
        attempt, what = news
        side = attempt.side
        if self._current.get(side) is not attempt:
            return
        if isinstance(what, Said):
            if attempt.finish_reason is not None:
                # After the end only the usage counts.
                what = Said(usage=what.usage)
            attempt.hear(what)
            if what.says_something:
                yield Token(side, attempt.number, what.text, bool(what.tool_calls), bool(what.reasoning)), what
                strays = self._strays(attempt, what)
                if strays is not None:
                    yield strays, None
            return
        if attempt.finish_reason is not None and isinstance(what, NearfarError | None):
            # A failure after the end changes nothing.
            yield End(side, attempt.number, attempt.finish_reason), None
            return
        error = what or Unavailable(f"{side}: its answer stopped before the end; ask again")
        if not isinstance(error, NearfarError) or isinstance(error, DeadlineExceeded):
            # A bug of ours, or nobody waits for the answer any longer.
            raise error
        self._errors[side] = error
        if (
            side == "near"
            and attempt.spoke
            and error.details.get("param") == "response_format"
            and self._watch is not None
        ):
            reason = self._watch.schema_failed()
            if reason is not None:
                yield Escalate(reason), None
        kind, retryable = failure_of(side, error, self._state.rules)
        yield Failed(side, attempt.number, kind, retryable), None

    def _strays(self, attempt: Attempt, said: Said) -> Escalate | Doubt | None:
        """Whether near's answer should not go on, or perhaps not, after what it said last."""
        state, watch = self._state, self._watch
        if watch is None or attempt.side != "near" or state.side != "near" or state.phase != "running":
            return None
        limit = min(limits(self._request).values(), default=None)
        if limit is not None and self._num_tokens() >= limit:
            # There is nothing left to be said better.
            return None
        reasons = [
            watch.add(token.token, token.logprob, [top.logprob for top in token.top_logprobs] or None)
            for token in said.tokens
        ]
        if not said.tokens:
            reasons.append(watch.add(said.text))
        reason = next((reason for reason in reasons if reason is not None), None)
        return Escalate(reason) if reason is not None else Doubt() if watch.doubts else None

    async def _take(self, event: Event, said: Said | None = None) -> list[ChunkT]:
        """Tell the machine, and do what it says."""
        self._state, effects = step(self._state, event)
        chunks: list[ChunkT] = []
        for effect in effects:
            chunks += self._show(said) if isinstance(effect, Emit) and said is not None else self._do(effect)
        runs = isinstance(event, Token) and self._state.phase == "running" and self._state.side == event.side
        if runs and said is not None and not any(isinstance(effect, Emit) for effect in effects):
            # A token whose character is not whole yet.
            chunks += self._show(said)
        return chunks

    def _do(self, effect: Effect) -> list[ChunkT]:
        match effect:
            case Ask(side, continue_from, number):
                self._ask(side, continue_from, number)
            case Warm():
                assert not self._decision.private, "a private request does not leave"
                self._warm_up = WarmUp(self._sides, self._request, self._call, self._conversation())
            case Cancel(side):
                self._current.pop(side).stop()
            case Withdraw():
                self._shown = _Shown(route=self._shown.route)
            case Timer(name, ms):
                self._timers.set(name, ms)
            case CancelTimer(name):
                self._timers.stop(name)
            case CircuitOutcome(side, "succeeded"):
                self._sides.circuits[side].succeeded()
            case CircuitOutcome(side):
                self._sides.circuits[side].failed()
            case Finish():
                return self._finish(effect)
            case Fail():
                error = None if effect.side is None else self._errors.get(effect.side)
                raise failure_told(effect, self._state.rules, error)
            case Emit() | Switch():
                # The route of what is shown next tells of a switch.
                pass
        return []

    def _ask(self, side: Side, continue_from: str | None, number: int) -> None:
        before = self._current.get(side)
        if before is not None and before.number == 0:
            # Near has begun before the decision.
            before.number = number
            return
        wait = 0.0
        if before is not None and not before.spoke and before.side in self._errors:
            wait = retry_seconds(number, self._errors[side])
        self._begin(side, number, continue_from, wait)

    def _begin(self, side: Side, number: int, continue_from: str | None, wait_seconds: float = 0.0) -> Attempt:
        if side == "far" and self._warm_up is not None:
            self._warm_up.stop()
        attempt = self._current[side] = Attempt(side, number, len(continue_from or ""))
        self._attempts.append(attempt)
        self._sides.circuits[side].begin()
        attempt.task = asyncio.create_task(self._run(attempt, continue_from, wait_seconds))
        return attempt

    async def _run(self, attempt: Attempt, continue_from: str | None, wait_seconds: float) -> None:
        what: Exception | None = None
        heard = False
        try:
            await asyncio.sleep(wait_seconds)
            stream = await self._stream(attempt, continue_from)
            async with aclosing(stream):
                async for said in stream:
                    heard = True
                    await self._room.acquire()
                    self._news.put_nowait((attempt, said))
        except Exception as error:
            what, attempt.refused = error, not heard
        finally:
            self._sides.circuits[attempt.side].ended()
        await self._room.acquire()
        self._news.put_nowait((attempt, what))

    async def _stream(self, attempt: Attempt, continue_from: str | None) -> AsyncGenerator[Said, None]:
        sides, request, call = self._sides, self._request, self._call
        if attempt.side == "near":
            assert sides.near is not None
            if continue_from is not None:
                request = continued(request, continue_from, self._num_tokens(), self._shown.reasoning)
            observed = replace(call, observe_token=attempt.ids.append)
            if attempt.number == 0 and PROMPT_SIGNAL in self._features:
                observed = replace(observed, observe_prompt_logprobs=attempt.hear_prompt)
            return sides.near.ask(request, observed, self._logprobs(attempt))
        assert sides.far is not None
        assert not self._decision.private, "a private request does not leave"
        if continue_from is not None:
            request = await self._handed_over(continue_from)
        if not await sides.take():
            raise QueueFull(LACKS["budget"], code="budget")
        attempt.sent = True
        return sides.ask_far(request, call, guessed=self._near_guesses())

    def _near_guesses(self) -> bool:
        """Whether near guesses for far: it may, and was not asked in vain in this answer."""
        in_vain = any(attempt.side == "near" and attempt.number > 0 for attempt in self._attempts)
        return not in_vain and may_guess(self._sides.policy, self._asked)

    async def _handed_over(self, text: str) -> ChatCompletionRequest | CompletionRequest:
        """The request for far to go on: by token ids where both sides have the same, else by the text."""
        sides, writers = self._sides, list(self._shown.tokens)
        assert sides.near is not None
        assert sides.far is not None
        request = self._request
        reasoning = self._shown.reasoning
        if await sides.matches_private(*begun(request), text) or (reasoning and await sides.matches_private(reasoning)):
            # Near may have written what nobody asked about, or completed what the client began.
            raise RequestError("what near wrote is private, so it does not leave", code="private")
        if (
            sides.far.far.dialect == "nearfar"
            and isinstance(request, ChatCompletionRequest)
            and plain(request)
            and not templated(request)
        ):
            near_alone = len(writers) == 1 and writers[0].side == "near" and writers[0].start == 0
            answer_ids = await sides.near.ids_of(text, writers[0].ids) if near_alone else None
            if answer_ids is not None and await sides.same_tokens(self._call):
                prompt_ids = await sides.near.prompt_ids(request)
                if prompt_ids is not None:
                    return continued_ids(request, prompt_ids, answer_ids)
        return continued(request, text, self._num_tokens(), reasoning)

    def _logprobs(self, attempt: Attempt) -> int | None:
        """What near is asked to tell of its tokens, beside what the client wants to see."""
        escalation = self._sides.policy.escalation
        if attempt.number == 0 or (self._watch is not None and escalation.max_mean_entropy is not None):
            return TOP
        return None if self._watch is None else 0

    def _show(self, said: Said) -> list[ChunkT]:
        state, shown = self._state, self._shown
        assert state.side is not None
        attempt = self._current[state.side]
        route, first = self._route(state.side, state.reason, state.switched_at), shown.route is None
        chunks = list(self._form.piece(said, len(shown.text), None if route == shown.route else route, first=first))
        shown.route = route
        shown.text += said.text
        shown.reasoning += said.reasoning
        shown.calls += said.tool_calls or ()
        shown.tokens[attempt] = shown.tokens.get(attempt, 0) + said.num_tokens
        return chunks

    def _finish(self, finish: Finish) -> list[ChunkT]:
        self._over = True
        attempt, shown = self._current[finish.side], self._shown
        # A server that breaks off after the end may have reported none.
        usage = attempt.usage or Usage(
            prompt_tokens=0, completion_tokens=attempt.num_tokens, total_tokens=attempt.num_tokens
        )
        before = sum(tokens for each, tokens in shown.tokens.items() if each is not attempt)
        if attempt.start > 0 or before > 0:
            prompt_tokens = self._asked.near.prompt_tokens or usage.prompt_tokens
            completion_tokens = before + usage.completion_tokens
            usage = Usage(
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                total_tokens=prompt_tokens + completion_tokens,
            )
        elif len(self._attempts) == 1 and attempt.first_token_seconds is not None:
            total_seconds = monotonic() - attempt.began
            self._sides.finished(finish.side, usage, attempt.first_token_seconds, total_seconds)
        self._sides.answered(finish.side, self._conversation(), with_calls(shown.text, fold_calls(shown.calls)))
        route = self._route(finish.side, finish.reason, finish.switched_at)
        return list(self._form.ending(finish.finish_reason, usage, route, first=shown.route is None))

    def _route(self, side: Side, reason: str, switched_at: int | None) -> Route:
        return Route(side=side, reason=reason, scores=self._decision.scores.to_json(), switched_at=switched_at)

    def _num_tokens(self) -> int:
        return sum(self._shown.tokens.values())

    def _conversation(self) -> tuple[Message, ...]:
        return conversation_of(self._request, self._asked.messages)

    async def _next(self) -> News:
        news = await self._news.get()
        if not isinstance(news, Due):
            self._room.release()
        return news

    async def _end(self) -> None:
        """However the answer ended: nothing of it runs on, and what far did is paid for."""
        self._timers.close()
        if self._warm_up is not None:
            self._warm_up.stop()
        for attempt in self._attempts:
            attempt.stop()
        await asyncio.gather(
            *(attempt.task for attempt in self._attempts if attempt.task is not None), return_exceptions=True
        )
        for attempt in self._attempts:
            if attempt.sent and not attempt.refused:
                usage = attempt.usage
                # What a server does not tell is guessed from what came of it.
                prompt_tokens = usage.prompt_tokens if usage is not None else self._asked.far.prompt_tokens or 0
                await self._sides.pay(
                    prompt_tokens, usage.completion_tokens if usage is not None else attempt.num_tokens
                )
        if self._warm_up is not None:
            await self._warm_up.ended()
