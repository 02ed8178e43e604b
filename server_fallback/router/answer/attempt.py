"""Attempt: one request to one side. `running_answer` handles what the side sends; the cost is known at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

from ...schema.chat import SoundTranscript
from ...schema.common import Usage
from ...schema.receipt import SignedReceipt
from ...schema.route import Side
from ..sides.answer_piece import AnswerPiece
from .answer_machine import Event


@dataclass(eq=False, slots=True)
class Attempt:
    """``number`` counts the attempts of this side in this answer from 1; 0 is a request before the decision. ``start``
    is the offset in the answer, in characters, at which this attempt continues. ``sent``: the request really left.
    ``refused``: it failed before anything came back. ``held``: it began before the decision.

    ``num_tokens`` and ``ids`` describe what the side sent; if a server does not list its tokens, pieces of text count.
    ``prompt_logprobs`` belong to the last tokens of the prompt, if they were requested and the side reports them.
    ``transcripts`` are the texts that the side read in place of recordings. ``received`` is the body of the side's
    request, if that wants a receipt, and ``receipt`` what the side has signed; ``changed``: see `AnswerPart`.
    """

    side: Side
    number: int
    start: int = 0
    requested_at: float = field(default_factory=monotonic)
    task: asyncio.Task[None] | None = None
    sent: bool = False
    refused: bool = False
    held: bool = False
    first_token_seconds: float | None = None
    num_tokens: int = 0
    ids: list[int] = field(default_factory=list)
    prompt_logprobs: Sequence[float] = ()
    finish_reason: str | None = None
    stop_reason: str | None = None
    usage: Usage | None = None
    transcripts: Sequence[SoundTranscript] = ()
    received: dict[str, Any] | None = None
    receipt: SignedReceipt | None = None
    changed: list[Literal["masked", "described"]] = field(default_factory=list)

    def event(self, kind: str, /, **fields: Any) -> Event:
        """An event of the answer machine about this attempt."""
        return {"type": kind, "side": self.side, "attempt": self.number, **fields}

    @property
    def output(self) -> dict[str, Any]:
        """A FarOutput of `web/src/shared/decision/costs.ts`."""
        usage = None if self.usage is None else self.usage.model_dump(exclude_none=True)
        return {"usage": usage, "tokens": self.num_tokens, "refused": self.refused}

    def record(self, piece: AnswerPiece) -> None:
        if piece.has_content and self.first_token_seconds is None:
            self.first_token_seconds = monotonic() - self.requested_at
        self.num_tokens += piece.num_tokens
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.stop_reason = piece.stop_reason or self.stop_reason
        self.usage = piece.usage or self.usage
        self.transcripts = piece.transcripts or self.transcripts
        # Several are of a pair of sides, whose request is not this one's.
        self.receipt = piece.receipts[0] if len(piece.receipts) == 1 else self.receipt

    def record_prompt_logprobs(self, logprobs: Sequence[float]) -> None:
        self.prompt_logprobs = logprobs

    def record_request(self, body: dict[str, Any]) -> None:
        self.received = body

    def record_receipt(self, receipt: SignedReceipt) -> None:
        self.receipt = receipt

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
