"""Shown: the part of an answer that the client has, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nearfar.compiler.shared.script import SharedScript

from ...schema.chat import SoundTranscript, ToolCallDelta
from ...schema.common import Usage
from ...schema.fold import fold_calls
from ...schema.receipt import AnswerPart, SignedReceipt
from ...schema.route import Route
from ..sides.answer_piece import AnswerPiece
from ..sides.texts import with_calls
from .attempt import Attempt


@dataclass(slots=True)
class Shown:
    """``tokens``: how many of its tokens each attempt wrote. ``route`` is the last route that was sent, and
    ``transcripts`` are the last texts of recordings.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    tokens: dict[Attempt, int] = field(default_factory=dict)
    route: Route | None = None
    transcripts: Sequence[SoundTranscript] = ()

    def add(self, attempt: Attempt, piece: AnswerPiece) -> None:
        self.text += piece.text
        self.reasoning += piece.reasoning
        self.calls += piece.tool_calls or ()
        self.tokens[attempt] = self.tokens.get(attempt, 0) + piece.num_tokens

    @property
    def num_tokens(self) -> int:
        return sum(self.tokens.values())

    @property
    def text_with_calls(self) -> str:
        return with_calls(self.text, fold_calls(self.calls))

    @property
    def near_writer(self) -> Attempt | None:
        """The attempt of near that wrote all of the answer; None if there were others."""
        writers = list(self.tokens)
        is_near_alone = len(writers) == 1 and writers[0].side == "near" and writers[0].start == 0
        return writers[0] if is_near_alone else None

    def usage(self, last: Attempt) -> Usage:
        """The usage of the answer that ``last`` completes."""
        # A server that breaks off after the end may not have reported any usage.
        usage = None if last.usage is None else last.usage.model_dump(exclude_none=True)
        earlier = sum(tokens for each, tokens in self.tokens.items() if each is not last)
        total = SharedScript.of_thread().ask("totalUsage", usage, last.num_tokens, earlier)
        return Usage.model_validate(total)

    def new_transcripts(self, attempt: Attempt) -> Sequence[SoundTranscript] | None:
        """The texts of the attempt's recordings if the client does not have them yet; it has them from now on."""
        if not attempt.transcripts or attempt.transcripts == self.transcripts:
            return None
        self.transcripts = attempt.transcripts
        return self.transcripts

    def parts(self, last: Attempt, *, described: bool) -> tuple[Sequence[SignedReceipt], Sequence[AnswerPart]]:
        """What the attempts have signed, and what each of them wrote; ``last`` may have written nothing. ``described``:
        all of them received texts in place of media.
        """
        receipts, parts = list[SignedReceipt](), list[AnswerPart]()
        for each in {**self.tokens, last: 0}:
            changed = [*each.changed]
            if each.transcripts or described:
                changed.append("described")
            number = None if each.receipt is None else len(receipts)
            receipts += [] if each.receipt is None else [each.receipt]
            parts.append(
                AnswerPart(
                    side=each.side, start=each.start, receipt=number, request=each.received, changed=changed or None
                )
            )
        return receipts, parts
