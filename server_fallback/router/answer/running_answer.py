"""RunningAnswer: one answer of a pair of sides. It carries out the effects of the answer machine.

    sides' streams, timers --> updates --> events --> AnswerMachine.step --> effects --> chunks for the client

Each attempt of a side runs in its own task and puts its output into one queue, which only this class reads. Closing the
generator of `chunks` ends all attempts, and returns when they have ended.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import monotonic

from nearfar.compiler.runtime.errors import DeadlineExceeded, NearfarError

from ...executors.executor import Call
from ...schema.chat import ChatCompletionRequest
from ...schema.common import MaskedText
from ...schema.completions import CompletionRequest
from ...schema.route import Description, Route, Side
from ..decision.decide import Choice
from ..decision.policy import Escalation
from ..decision.situation import Message, Situation
from ..sides.answer_piece import AnswerPiece, Chunk, Form
from ..sides.continued import continued, limits, request_facts
from ..sides.masker import MaskedChat, Stays, restored
from ..sides.sides import Sides
from ..sides.texts import conversation_of, with_texts_of
from .answer_machine import AnswerMachine, Effect, Event, WatchedToken
from .attempt import Attempt
from .continuation import far_continuation
from .described import choose_with_descriptions
from .failures import side_error, side_fault
from .heard import Heard
from .shown import Shown
from .signals import SIGNAL_TOKENS, near_signals
from .timers import Due, Timers
from .updates import Update, Updates
from .warm_up import WarmUp

# The number of alternatives of a token from which its entropy is computed.
TOP = 20


class RunningAnswer:
    """``request`` no longer has labels or a pin; ``situation`` has what is known from the request alone."""

    def __init__(
        self,
        sides: Sides,
        request: ChatCompletionRequest | CompletionRequest,
        situation: Situation,
        form: Form,
        call: Call,
    ) -> None:
        self._sides, self._request, self._situation = sides, request, situation
        self._form, self._call = form, call
        self._updates = Updates()
        self._attempts: list[Attempt] = []
        self._current: dict[Side, Attempt] = {}
        self._timers = Timers(self._updates.put_due)
        self._warm_up: WarmUp | None = None
        # The last error of each side, and the seconds before the side is asked again.
        self._errors: dict[Side, NearfarError] = {}
        self._waits: dict[Side, float] = {}
        self._shown = Shown()
        self._heard = Heard(sides.near, call)
        # What far receives in place of the request; None: the request itself. Stays: nothing.
        self._masked: MaskedChat | Stays | None = None
        # What the request has in place of media.
        self._descriptions: Sequence[Description] = ()
        self._over = False
        # How near failed before the decision; TimeoutError: its first token was late.
        self._early_failure: NearfarError | TimeoutError | None = None
        self._choice: Choice
        self._machine: AnswerMachine | None = None

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Raises the error that stopped the answer, as `Executor` does; RequestError or Unavailable if no side may or
        can answer.
        """
        try:
            self._choice = await self._choose()
            for chunk in await self._apply(self._start()):
                yield chunk
            while not self._over:
                for event, piece in self._events(await self._updates.next()):
                    for chunk in await self._apply(event, piece):
                        yield chunk
        finally:
            await self._end()

    async def _choose(self) -> Choice:
        """If near's own view of the prompt matters, near begins to answer, and continues from there if it is chosen."""
        sides = self._sides
        situation = self._situation = await sides.situation(self._situation, self._request)
        choice = await sides.choose(situation, private=await self._is_private(self._request, situation))
        if choice.describes:
            described = await choose_with_descriptions(
                sides, self._request, situation, choice.describes, self._is_private, self._call
            )
            self._request, self._descriptions, choice = described.request, described.descriptions, described.choice
            situation = self._situation = described.situation
        may_leave = choice.decision.side == "far" or choice.standby
        masked, masker = self._masked, sides.masker
        agreed = True
        if isinstance(masked, MaskedChat) and masker is not None and may_leave:
            agreed = await masker.may_leave(masked, self._call.confirmed)
            if not agreed and masker.asks_caller and choice.decision.side == "far":
                raise masked.unconfirmed()
        if not agreed:
            self._masked = Stays()
            choice = await sides.choose(situation, private=True)
        if choice.wants_signals:
            near = self._start_attempt("near", 0, None)
            self._early_failure = await self._hold_first_tokens()
            if self._early_failure is None:
                signals = near_signals([*self._updates.held_tokens()], near.prompt_logprobs)
                situation = self._situation = replace(situation, near_signals=signals)
            else:
                self._drop_held()
            choice = await sides.choose(situation, private=choice.decision.private)
        if choice.decision.side is None:
            error = sides.refusal(choice.decision, situation)
            raise self._masked.explained(error) if isinstance(self._masked, Stays) else error
        return choice

    async def _is_private(self, request: ChatCompletionRequest | CompletionRequest, situation: Situation) -> bool:
        """Whether a request must stay here. A chat that is masked need not."""
        masker, sides = self._sides.masker, self._sides
        if masker is None or not isinstance(request, ChatCompletionRequest):
            return await sides.is_private(situation)

        async def situated(masked: ChatCompletionRequest) -> Situation:
            return await asyncio.to_thread(with_texts_of, situation, masked)

        self._masked = await masker.mask(request, situation, situated, self._call)
        return isinstance(self._masked, Stays)

    @property
    def _running(self) -> AnswerMachine:
        assert self._machine is not None
        return self._machine

    @property
    def _watched(self) -> Escalation | None:
        """The rules of the watch; None if near's answer never escalates, or is not decided yet."""
        return None if self._machine is None else self._machine.watched

    @property
    def _features(self) -> Sequence[str]:
        """The features that the policy's predictor reads."""
        predictor = self._sides.policy.quality.predictor
        return () if predictor is None else predictor.features

    def _drop_held(self) -> None:
        self._current.pop("near").stop()
        self._updates.drop_held()

    async def _hold_first_tokens(self) -> NearfarError | TimeoutError | None:
        """Hold near's output until its first tokens arrive, it ends or its time is over; return how near failed."""
        num_tokens = 0
        try:
            async with asyncio.timeout(self._sides.policy.timeouts.near_first_token_ms / 1000):
                while num_tokens < SIGNAL_TOKENS:
                    output = await self._updates.hold()
                    if not isinstance(output, AnswerPiece):
                        return None if output is None else expected(output)
                    num_tokens += output.num_tokens
        except TimeoutError as error:
            return error if num_tokens == 0 else None
        return None

    def _start(self) -> Event:
        decision, policy = self._choice.decision, self._sides.policy
        assert decision.side is not None
        watched = policy.escalation if policy.escalation.then != "never" and not decision.private else None
        rules = policy.answer_rules(
            private=decision.private,
            **request_facts(self._request),
            dialect=None if self._sides.far is None else self._sides.far.far.dialect,
        )
        self._machine = AnswerMachine(rules, watched, min(limits(self._request).values(), default=None))
        if decision.side == "far" and "near" in self._current:
            self._drop_held()
        start = {"type": "start", "side": decision.side, "reason": decision.reason, "standby": self._choice.standby}
        return start if self._early_failure is None else {**start, "near_failed": self._judged(self._early_failure)}

    def _judged(self, early: NearfarError | TimeoutError) -> Mapping[str, object]:
        """An EarlyFailure of `web/src/shared/router/events.ts`."""
        if isinstance(early, TimeoutError):
            return {"kind": "timeout", "retryable": False}
        return self._failure("near", early)

    def _events(self, update: Update) -> Iterator[tuple[Event, AnswerPiece | None]]:
        if isinstance(update, Due):
            if not self._timers.expire(update):
                return
            side = self._running.timed_side(update.timer)
            attempt = None if side is None else self._current.get(side)
            if attempt is not None and attempt.finish_reason is not None:
                # The answer is complete; the router does not wait longer for its usage.
                yield attempt.event("end", finish_reason=attempt.finish_reason), None
            else:
                yield {"type": "tick", "timer": update.timer}, None
            return
        attempt, output = update
        side = attempt.side
        if self._current.get(side) is not attempt:
            return
        if isinstance(output, AnswerPiece):
            if attempt.finish_reason is not None:
                # After the end only the usage and receipts matter.
                output = AnswerPiece(usage=output.usage, receipts=output.receipts)
            attempt.record(output)
            if output.has_content:
                has = {"tool_call": bool(output.tool_calls), "reasoning": bool(output.reasoning)}
                yield attempt.event("token", text=output.text, **has), output
                warning = self._check_piece(attempt, output)
                if warning is not None:
                    yield warning, None
            return
        if attempt.finish_reason is not None and isinstance(output, NearfarError | None):
            # A failure after the end changes nothing.
            yield attempt.event("end", finish_reason=attempt.finish_reason), None
            return
        error = expected(output or side_fault("stopped", side))
        yield attempt.event("failed", **self._failure(side, error)), None

    def _failure(self, side: Side, error: NearfarError) -> Mapping[str, object]:
        """The kind of a failure, and whether the side may be asked again."""
        failure = self._running.failure(side, side_error(error), random.random())
        self._errors[side], self._waits[side] = error, failure.wait_ms / 1000
        return {"kind": failure.kind, "retryable": failure.retryable}

    def _check_piece(self, attempt: Attempt, piece: AnswerPiece) -> Event | None:
        """Whether the last piece gives reason to end near's answer, or to doubt it."""
        machine = self._running
        if machine.watched is None or attempt.side != "near" or machine.side != "near" or machine.phase != "running":
            return None
        tokens = [
            WatchedToken(token.token, token.logprob, [top.logprob for top in token.top_logprobs] or None)
            for token in piece.tokens
        ]
        reason = machine.watch(tokens or [WatchedToken(piece.text)])
        if reason is not None:
            return {"type": "escalate", "reason": reason}
        return {"type": "doubt"} if machine.doubts else None

    async def _apply(self, event: Event, piece: AnswerPiece | None = None) -> list[Chunk]:
        """Process the event in the machine and carry out its effects."""
        machine = self._running
        effects = machine.step(event)
        chunks: list[Chunk] = []
        for effect in effects:
            if effect["type"] == "finish" and self._request.receipt:
                # A side that was broken off signs its part while it ends.
                writers = self._shown.tokens
                stopped = [each.task for each in writers if each.task is not None and each.finish_reason is None]
                await asyncio.gather(*stopped, return_exceptions=True)
            chunks += self._show(piece) if effect["type"] == "emit" and piece is not None else self._do(effect)
        runs = event["type"] == "token" and machine.phase == "running" and machine.side == event["side"]
        if runs and piece is not None and not any(effect["type"] == "emit" for effect in effects):
            # This is a token whose character is not complete yet.
            chunks += self._show(piece)
        return chunks

    def _do(self, effect: Effect) -> list[Chunk]:
        match effect:
            case {"type": "ask", "side": side, "continue_from": continue_from, "attempt": number}:
                self._ask(side, continue_from, number)
            case {"type": "warm"}:
                assert not self._choice.decision.private, "a private request does not leave"
                request = self._masked.sent() if isinstance(self._masked, MaskedChat) else self._request
                self._warm_up = WarmUp(self._sides, request, self._call, self._conversation())
            case {"type": "cancel", "side": side}:
                self._current.pop(side).stop()
            case {"type": "withdraw"}:
                self._shown = Shown(route=self._shown.route, transcripts=self._shown.transcripts)
            case {"type": "timer", "name": name, "ms": ms}:
                self._timers.set(name, ms)
            case {"type": "cancel_timer", "name": name}:
                self._timers.stop(name)
            case {"type": "circuit", "side": side, "outcome": "succeeded"}:
                self._sides.circuits[side].succeeded()
            case {"type": "circuit", "side": side}:
                self._sides.circuits[side].failed()
            case {"type": "finish", "finish_reason": finish_reason}:
                return self._finish(finish_reason)
            case {"type": "fail", "side": side}:
                known = None if side is None or effect["kind"] == "timeout" else self._errors.get(side)
                raise known or self._running.fail_error(effect)
            case {"type": "emit" | "switch"}:
                # The route of the next chunk reports the switch.
                pass
            case _:
                raise AssertionError(f"{effect} is not an effect of the answer machine")
        return []

    def _ask(self, side: Side, continue_from: str | None, number: int) -> None:
        before = self._current.get(side)
        if before is not None and before.number == 0:
            # Near began before the decision.
            before.number, before.held = number, True
            return
        self._start_attempt(side, number, continue_from, self._waits.pop(side, 0.0))

    def _start_attempt(self, side: Side, number: int, continue_from: str | None, wait_seconds: float = 0.0) -> Attempt:
        if side == "far" and self._warm_up is not None:
            self._warm_up.stop()
        attempt = self._current[side] = Attempt(side, number, len(continue_from or ""))
        self._attempts.append(attempt)
        self._sides.circuits[side].begin()
        attempt.task = asyncio.create_task(self._run(attempt, continue_from, wait_seconds))
        return attempt

    async def _run(self, attempt: Attempt, continue_from: str | None, wait_seconds: float) -> None:
        failure: Exception | None = None
        received = False
        try:
            await asyncio.sleep(wait_seconds)
            attempt.requested_at = monotonic()
            stream = await self._stream(attempt, continue_from)
            async with aclosing(stream):
                async for piece in stream:
                    received = True
                    await self._updates.put(attempt, piece)
        except Exception as error:
            failure, attempt.refused = error, not received
        finally:
            self._sides.circuits[attempt.side].ended()
        await self._updates.put(attempt, failure)

    async def _stream(self, attempt: Attempt, continue_from: str | None) -> AsyncGenerator[AnswerPiece, None]:
        sides, call = self._sides, self._call
        request = self._request
        if attempt.side == "near":
            assert sides.near is not None
            request, attempt.transcripts = await self._heard.read(request)
            if continue_from is not None:
                request = continued(request, continue_from, self._shown.num_tokens, self._shown.reasoning)
            observed = replace(call, observe_token=attempt.ids.append)
            if attempt.number == 0 and "prompt_mean_logprob" in self._features:
                observed = replace(observed, observe_prompt_logprobs=attempt.record_prompt_logprobs)
            if request.receipt:
                # The model is near's own, whatever the client calls the pair.
                attempt.received = request.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"model"})
                observed = replace(observed, received=attempt.received, observe_receipt=attempt.record_receipt)
            return sides.near.answer(request, observed, self._logprobs(attempt))
        assert sides.far is not None
        assert not self._choice.decision.private, "a private request does not leave"
        call = self._far_call(attempt)
        if isinstance(self._masked, MaskedChat):
            return await self._masked_stream(attempt, self._masked, continue_from)
        if continue_from is not None:
            request = await far_continuation(sides, request, call, continue_from, self._shown)
        if not await sides.reserve_request():
            raise side_fault("budgetSpent", "far")
        attempt.sent = True
        return sides.far_answer(request, call, speculate=self._near_guesses())

    async def _masked_stream(
        self, attempt: Attempt, masked: MaskedChat, continue_from: str | None
    ) -> AsyncGenerator[AnswerPiece, None]:
        """Far's answer to the masked chat, with the private texts. Near knows them, so it does not guess."""
        sides, call, shown = self._sides, self._far_call(attempt), self._shown
        assert sides.masker is not None
        request: ChatCompletionRequest | CompletionRequest = masked.request
        masks, more, answer = masked.masks, list[MaskedText](), None
        if continue_from is not None:
            answer = await sides.masker.continuation(masked, continue_from, shown.reasoning, call)
            if answer is None:
                raise side_fault("privateText", "near")
            masks, more = answer.masks, answer.changed
        # Token ids are no text that could be shown.
        hides = bool(masks) or sides.masker.strict
        if continue_from is not None and not hides:
            request = await far_continuation(sides, masked.request, call, continue_from, shown)
        elif answer is not None:
            request = continued(request, answer.text, shown.num_tokens, answer.reasoning)
        if not await sides.reserve_request():
            raise side_fault("budgetSpent", "far")
        attempt.sent = True
        masked.sent(more)
        if masked.left:
            attempt.changed.append("masked")
        guesses = not hides and continue_from is None and self._near_guesses()
        pieces = sides.far_answer(request, call, speculate=guesses)
        return restored(masks, masked.request, pieces) if masks else pieces

    def _far_call(self, attempt: Attempt) -> Call:
        return replace(self._call, observe_request=attempt.record_request) if self._request.receipt else self._call

    def _near_guesses(self) -> bool:
        """Whether near guesses for far: it may, did not fail and has not been asked for this answer before. Far then
        checks tokens only, and signs nothing.
        """
        if self._request.receipt:
            return False
        near_was_asked = any(attempt.side == "near" and attempt.number > 0 for attempt in self._attempts)
        return not near_was_asked and self._early_failure is None and self._choice.may_guess

    def _logprobs(self, attempt: Attempt) -> int | None:
        """The log-probabilities that near must report besides those that the client requested."""
        if attempt.number == 0 or (self._watched is not None and self._watched.max_mean_entropy is not None):
            return TOP
        return None if self._watched is None else 0

    def _show(self, piece: AnswerPiece) -> list[Chunk]:
        machine, shown = self._running, self._shown
        assert machine.side is not None
        route, first, attempt = self._route(), shown.route is None, self._current[machine.side]
        changed = None if route == shown.route else route
        transcripts = shown.new_transcripts(attempt)
        chunks = list(self._form.chunks(piece, len(shown.text), changed, first=first, transcripts=transcripts))
        shown.route = route
        shown.add(attempt, piece)
        return chunks

    def _finish(self, finish_reason: str) -> list[Chunk]:
        self._over = True
        side, shown = self._running.side, self._shown
        assert side is not None
        attempt = self._current[side]
        usage = shown.usage(attempt)
        # The time of a held answer is not the time of its generation.
        if not attempt.held and attempt.first_token_seconds is not None:
            seconds = attempt.first_token_seconds, monotonic() - attempt.requested_at
            self._sides.record_finished(side, attempt.usage, attempt.num_tokens, *seconds)
        self._sides.record_conversation(side, self._conversation(), shown.text_with_calls)
        transcripts = shown.new_transcripts(attempt)
        receipts, parts = (
            shown.parts(attempt, described=bool(self._descriptions)) if self._request.receipt else ((), ())
        )
        return list(
            self._form.last_chunks(
                finish_reason,
                usage,
                self._route(),
                first=shown.route is None,
                transcripts=transcripts,
                receipts=receipts,
                parts=parts,
                stop_reason=attempt.stop_reason,
            )
        )

    def _route(self) -> Route:
        machine, scores = self._running, dict(self._choice.decision.scores)
        assert machine.side is not None
        return Route(
            side=machine.side,
            reason=machine.reason,
            scores=scores,
            switched_at=machine.switched_at,
            described=list(self._descriptions) or None,
            masked=(list(self._masked.left) or None) if isinstance(self._masked, MaskedChat) else None,
        )

    def _conversation(self) -> tuple[Message, ...]:
        return conversation_of(self._request, self._situation.messages)

    async def _end(self) -> None:
        """Clean up, however the answer ended: stop everything that still runs, and pay for what far did."""
        self._timers.close()
        if self._machine is not None:
            self._machine.close()
        if self._warm_up is not None:
            self._warm_up.stop()
        for attempt in self._attempts:
            attempt.stop()
        await asyncio.gather(
            *(attempt.task for attempt in self._attempts if attempt.task is not None), return_exceptions=True
        )
        for attempt in self._attempts:
            if attempt.sent:
                await self._sides.pay(attempt.output, self._situation.far.prompt_tokens)
        if self._warm_up is not None:
            await self._warm_up.ended()


def expected(error: Exception) -> NearfarError:
    """Raises what no other side may answer for: a bug of ours, or that nobody waits for the answer any longer."""
    if not isinstance(error, NearfarError) or isinstance(error, DeadlineExceeded):
        raise error
    return error
