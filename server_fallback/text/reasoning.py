"""Reasoning: how a model writes what it thinks before its answer, and the parser that separates the two.

The markers are single tokens of the vocabulary (``<think>``), so the parser is told of them by id: an answer that spells one with other
tokens is not cut. web/src/text/reasoning.ts does the same, and tests/conformance/reasoning.json holds both to the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nearfar.compiler.text.tokenizer import Tokenizer

# Where an answer is. "start": nothing but white space has come, so reasoning may begin.
State = Literal["start", "reasoning", "content"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The markers, around which models and templates write line breaks."""

    open: str
    close: str


DIALECTS = (Dialect("<think>", "</think>"),)


def find_dialect(template: str, token_id: Callable[[str], int | None]) -> Dialect | None:
    """The dialect whose markers are tokens and whose closing marker the chat template names; None for a model that does not reason."""
    return next(
        (
            each
            for each in DIALECTS
            if each.close in template and None not in (token_id(each.open), token_id(each.close))
        ),
        None,
    )


class Reasoning:
    """How one model reasons, in token ids. ``ending_ids`` are what ends the reasoning: the closing marker and the line breaks around it."""

    def __init__(self, dialect: Dialect, tokenizer: Tokenizer) -> None:
        self.dialect, self._tokenizer = dialect, tokenizer
        open_id, close_id = tokenizer.token_id(dialect.open), tokenizer.token_id(dialect.close)
        assert open_id is not None
        assert close_id is not None
        self.open_id, self.close_id = open_id, close_id
        self.ending_ids = [*self._encode("\n"), close_id, *self._encode("\n\n")]

    @staticmethod
    def of(tokenizer: Tokenizer) -> Reasoning | None:
        """None for a model that does not reason."""
        template = tokenizer.chat_template
        dialect = None if template is None else find_dialect(template.source, tokenizer.token_id)
        return None if dialect is None else Reasoning(dialect, tokenizer)

    def is_blank(self, token_id: int) -> bool:
        """Whether a token is white space."""
        return self._tokenizer.decode([token_id], skip_special_tokens=False).isspace()

    def state_after(self, prompt_ids: Sequence[int]) -> State:
        """Where an answer to a prompt begins. A template may open the reasoning, or close it again if it is switched off."""
        last = next((token_id for token_id in reversed(prompt_ids) if not self.is_blank(token_id)), None)
        return "reasoning" if last == self.open_id else "content" if last == self.close_id else "start"

    def begun(self, state: State, content: str, reasoning: str) -> tuple[list[int], State]:
        """The ids of an answer that the client began, after a prompt that ends in ``state``, and the state after them.

        ``content`` may hold the reasoning itself, between its markers.
        """
        ids: list[int] = []
        is_closed = self.dialect.close in content
        is_whole = not reasoning and (is_closed or content.lstrip().startswith(self.dialect.open))
        if reasoning:
            ids += [*([] if state == "reasoning" else [self.open_id, *self._encode("\n")]), *self._encode(reasoning)]
            state = "reasoning"
        if content:
            ids += [*(self.ending_ids if state == "reasoning" and not is_whole else []), *self._encode(content)]
            state = "reasoning" if is_whole and not is_closed else "content"
        return ids, state

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


class Parts(NamedTuple):
    reasoning: str
    content: str


class ReasoningParser:
    """One answer's text, cut at the markers. Line breaks at both ends of the reasoning and before the content are left out, and the
    result does not depend on how the text comes in pieces. An answer that never closes its reasoning has no content.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        # Text that may turn out to be left out.
        self.held = ""
        # Whether line breaks that come now are left out.
        self._at_start = state != "content"

    def feed(self, text: str) -> Parts:
        """What of the text so far is new and surely belongs to the answer."""
        if self.state == "content":
            return Parts("", self._led(text))
        text, self.held = self.held + text, ""
        if self.state == "start":
            if not text.strip():
                self.held = text
                return Parts("", "")
            self.state, self._at_start = "content", False
            return Parts("", text)
        text = self._led(text)
        settled = text.rstrip("\n")
        self.held = text[len(settled) :]
        return Parts(settled, "")

    def open(self) -> None:
        """The opening marker has come. It counts at the start only."""
        if self.state == "start":
            self.state, self.held = "reasoning", ""

    def close(self) -> None:
        """The closing marker has come. It counts in the reasoning only."""
        if self.state == "reasoning":
            self.state, self.held, self._at_start = "content", "", True

    def finish(self) -> Parts:
        """What is left once the answer has ended."""
        held, self.held = self.held, ""
        return Parts("", held if self.state == "start" else "")

    def _led(self, text: str) -> str:
        if self._at_start:
            text = text.lstrip("\n")
            self._at_start = text == ""
        return text
